"""A verb that serves, as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Self


class VerbServer(ABC):
    """`code-rl VERB`, listening. `port=0` takes a free port, which a restart keeps."""

    verb = ""

    def __init__(self, environment: Mapping[str, str] | None = None, **settings: object) -> None:
        self.settings = {"port": 0, **settings}
        self.environment = {**os.environ, **(environment or {})}
        self.process: subprocess.Popen[str] | None = None
        self.port = 0
        # A file rather than a pipe, which a talkative server would fill and then wait on.
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it lives as long as the server

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def launch(self) -> str:
        """Start the process and return the first line that it prints; empty if it prints none."""
        self._stderr.seek(0)
        self._stderr.truncate()
        words = [f"{name}={value}" for name, value in self.settings.items()]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "code_rl.cli", self.verb, *words],
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            env=self.environment,
        )
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    @abstractmethod
    def start(self) -> Self:
        """Launch it, and wait until it listens."""

    def listens_at(self, port: str) -> Self:
        """Keep the port for a restart."""
        self.port = self.settings["port"] = int(port)
        return self

    def said(self) -> str:
        """The process's stderr so far."""
        self._stderr.seek(0)
        return self._stderr.read()

    def stop(self, number: int | None = signal.SIGTERM) -> tuple[int, str]:
        """Wait for the end, after a signal if one is given. Returns exit code and stderr."""
        process, self.process = self.process, None
        if process is None:
            return 0, ""
        if number is not None and process.poll() is None:
            process.send_signal(number)
        process.communicate(timeout=120)
        return process.returncode, self.said()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
