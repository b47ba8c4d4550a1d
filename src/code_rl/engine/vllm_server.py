"""`sampler=vllm`: a vLLM server that the run starts itself, on this machine.

A guard (`guard.py`) starts it again if it dies, and ends it with the run however the run ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path

from code_rl.engine.names import source_of
from code_rl.engine.places import BackendKind, Place
from code_rl.engine.remote import Link
from code_rl.engine.settings import TrainingOptions
from code_rl.util.errors import ConfigError
from code_rl.util.options import SamplingOptions

OWN, HEALTH = "vllm", "/health"
logger = logging.getLogger("code_rl.engine")
LOG = "vllm.log"
_GUARD = str(Path(__file__).with_name("guard.py"))
_START_S, _CHECK_S, _NOTICE_S, _END_S = 1800.0, 0.5, 15.0, 30.0
_SERVER = "-m vllm.entrypoints.openai.api_server"


def command_of(training: TrainingOptions) -> list[str]:
    """Return the command that starts vLLM, without the run's options. Raises ConfigError if it is
    not installed."""
    if training.vllm_command is not None:
        return shlex.split(training.vllm_command)
    command = [sys.executable, *_SERVER.split()]
    probe = "import sys; from importlib.util import find_spec; sys.exit(find_spec('vllm') is None)"
    if subprocess.run([sys.executable, "-c", probe], check=False).returncode:
        raise ConfigError(
            "sampler=vllm: vLLM is not installed beside code-rl; give "
            f"vllm_command='/its/environment/bin/python {_SERVER}'"
        )
    return command


class OwnVllm:
    """A running server at `place`, for the run's model and adapters."""

    def __init__(
        self,
        options: SamplingOptions,
        training: TrainingOptions,
        dtype: str,
        context: int,
        share: float | None,
        log: Path,
    ) -> None:
        """Start it. `context` is in tokens, `share` the part of the device's memory that it may
        take (None: its own default), and `log` its log file."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        key = f"tml-{secrets.token_hex(16)}"
        flags = {
            "model": source_of(str(options.model_name)),
            "dtype": dtype,
            "host": "127.0.0.1",
            "port": port,
            # The ranks that vLLM accepts are powers of two from 8 on.
            "max-lora-rank": max(8, 1 << (training.lora_rank - 1).bit_length()),
            # The current adapter, and that of completions still in flight.
            "max-loras": 2,
            "max-model-len": context,
        }
        if share is not None:
            flags["gpu-memory-utilization"] = f"{share:.2f}"
        if options.temperature not in (0.0, 1.0):
            flags["logprobs-mode"] = "processed_logprobs"
        command = [*command_of(training), "--enable-lora"]
        command += [part for name, value in flags.items() for part in (f"--{name}", str(value))]
        # The key is in the environment, where other users of the machine cannot read it.
        secret = {"VLLM_API_KEY": key, "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
        self.place = Place(BackendKind.SERVER, f"http://127.0.0.1:{port}", key)
        self._link = Link(self.place, options.outage_timeout, health=HEALTH)
        self._log = log
        with log.open("ab") as output:
            self._guard = subprocess.Popen(
                [sys.executable, _GUARD, *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**os.environ, **secret},
                start_new_session=True,
            )

    async def ready(self) -> None:
        """Wait until the server is healthy, and log its state now and then. Raises ConfigError,
        with the log's last line, if it does not come up."""
        began = noticed = time.monotonic()
        logger.info("vLLM starts at %s; its log is %s", self.place.url, self._log)
        while await asyncio.to_thread(self._link.silence) is not None:
            now = time.monotonic()
            if self._guard.poll() is not None or now - began > _START_S:
                raise ConfigError(
                    f"sampler=vllm did not start; {self._log} ends with: {_last(self._log)}"
                )
            if now - noticed > _NOTICE_S:
                logger.info("vLLM starts since %.0f s: %s", now - began, _last(self._log))
                noticed = now
            await asyncio.sleep(_CHECK_S)

    def close(self) -> None:
        """End the server. Never raises."""
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._guard.wait(_END_S)


def _last(log: Path) -> str:
    """Return the log's last line of the server's own, shortened."""
    lines = log.read_text(errors="replace").splitlines()
    own = [line for line in lines if line.strip() and not line.startswith("code-rl: ")]
    return own[-1].strip()[:300] if own else "nothing"
