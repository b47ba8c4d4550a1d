"""A process with foreign code that answers each line of JSON with a line of JSON. It is confined by
default."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

from code_rl.util.errors import ConfigError

SAID = 300
_LONGEST = 1 << 24
_SHIM = Path(__file__).with_name("shim.py")


async def start(python: str, target: str, confined: bool, folder: str) -> Process:
    """Start the interpreter `python` with `shim` on `target`. If `confined`, it has no network and
    a read-only file system.

    It can read `folder`, the working directory, the interpreter's import path and the folder of
    this file. Raises ConfigError.
    """
    command = [python, str(_SHIM), target, os.getcwd()]
    pipe = asyncio.subprocess.PIPE
    try:
        if confined:
            seen = json.dumps(
                sorted({folder, os.getcwd(), str(_SHIM.parent), *_import_path(python)})
            )
            command = [
                sys.executable,
                "-m",
                "code_rl.grading.audit.graders.confined",
                seen,
                *command,
            ]
        started = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, limit=_LONGEST
        )
    except OSError as error:
        raise ConfigError(
            f"python={python} cannot be started: {error.strerror}; name an interpreter"
        ) from None
    return Process(started)


_IMPORT_PATH = """
import json, os, sys
print(json.dumps([os.path.dirname(sys.executable), sys.prefix, *map(os.path.abspath, sys.path)]))
"""


def _import_path(python: str) -> list[str]:
    """Return the folders of an interpreter, and those where it looks for modules."""
    asked = subprocess.run([python, "-c", _IMPORT_PATH], stdout=subprocess.PIPE, check=False)
    return list(json.loads(asked.stdout or "[]"))


class Process:
    """One shim: a line of JSON in, a line out."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._last = b""
        self._draining = asyncio.create_task(self._drain())

    async def request(self, question: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to one line, skipping output of programs. The first answer comes once
        the process has loaded its code. Raises EOFError with the last line of stderr if there is
        none."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        nonce = secrets.token_hex(8)
        with contextlib.suppress(OSError):  # it has ended, as the next line shows
            self._process.stdin.write(json.dumps({**question, "nonce": nonce}).encode() + b"\n")
            await self._process.stdin.drain()
        while True:
            try:
                line = await self._process.stdout.readline()
            except ValueError:
                raise EOFError(f"a line of more than {_LONGEST >> 20} MiB came back") from None
            if not line:
                break
            with contextlib.suppress(ValueError, RecursionError):
                answer = json.loads(line)
                if isinstance(answer, dict) and answer.get("nonce") == nonce:
                    return answer
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._draining), 1)
        words = self._last.decode("utf-8", "replace").strip().splitlines()
        raise EOFError("the process has ended" + (f": {words[-1][:SAID]}" if words else ""))

    async def end(self) -> None:
        """Kill the process and all that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, 9)
        await self._process.wait()
        await asyncio.wait(
            [self._draining], timeout=1
        )  # a process that it started may keep its stderr open
        self._draining.cancel()

    async def _drain(self) -> None:
        assert self._process.stderr is not None
        while part := await self._process.stderr.read(1 << 16):
            self._last = (self._last + part)[-4096:]
