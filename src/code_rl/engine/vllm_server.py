"""`sampler=vllm`: a vLLM server that the run starts itself, on this machine.

A guard (`guard.py`) starts it again if it dies, and ends it with the run however the run ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import secrets
import shlex
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from code_rl.engine.adapters import vllm_rank
from code_rl.engine.names import source_of
from code_rl.engine.places import BackendKind, Place, TrainingOptions
from code_rl.engine.remote import Link
from code_rl.util.errors import BackendError, ConfigError
from code_rl.util.options import SamplingOptions
from code_rl.util.proxies import settle_proxies

HEALTH = "/health"
logger = logging.getLogger("code_rl.engine")
_GUARD = str(Path(__file__).with_name("guard.py"))
_START_S, _CHECK_S, _END_S = 1800.0, 0.5, 30.0
_SERVER = "-m vllm.entrypoints.openai.api_server"
_ERROR = re.compile(r"\w*([Ee]rror|Exception)[:,] .+")


def command_of(training: TrainingOptions) -> list[str]:
    """Return the words of the command that starts vLLM, without the run's options: `vllm_command`,
    or if that is None, vLLM in this interpreter. Raises ConfigError if it is not installed, or the
    given command cannot be used."""
    if training.vllm_command is not None:
        try:
            given = shlex.split(training.vllm_command)
        except ValueError as error:
            raise ConfigError(f"vllm_command={training.vllm_command!r}: {error}") from error
        if not given:
            raise ConfigError("vllm_command= is empty; leave it out for vLLM beside code-rl")
        for name in sorted({"--host", "--port", "--api-key"} & _flags(given)):
            raise ConfigError(
                f"vllm_command= gives {name}, which the run chooses; leave it out, or start the "
                "server yourself and give sampler=http://…"
            )
        return given
    command = [sys.executable, *_SERVER.split()]
    if find_spec("vllm") is None:
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
        """Start it, under a guard that ends it with this process, without waiting until it answers.
        `context` is in tokens, `share` the part of the device's memory that it may take (None: its
        own default), and `log` its log file, which is appended to. Flags of `vllm_command` replace
        the run's.

        Raises ConfigError if the command or the model's name cannot be used, and OSError for the
        log.
        """
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        key = f"tml-{secrets.token_hex(16)}"
        flags = {
            "--model": source_of(str(options.model_name)),
            "--dtype": dtype,
            "--host": "127.0.0.1",
            "--port": port,
            "--max-lora-rank": vllm_rank(training.lora_rank),
            # The current adapter, and that of completions still in flight.
            "--max-loras": 2,
            "--max-model-len": context,
        }
        if share is not None:
            flags["--gpu-memory-utilization"] = f"{share:.4f}"
            flags |= {"--max-num-batched-tokens": 2048, "--max-num-seqs": 256}
        if options.temperature not in (0.0, 1.0):
            flags["--logprobs-mode"] = "processed_logprobs"
        command = [*command_of(training), "--enable-lora"]
        for name in sorted(flags.keys() - _flags(command)):
            command += [name, str(flags[name])]
        # The key is in the environment, where other users of the machine cannot read it.
        secret = {"VLLM_API_KEY": key, "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
        self.place = Place(BackendKind.SERVER, f"http://127.0.0.1:{port}", key)
        settle_proxies(self.place.url)
        self._link = Link(self.place, options.outage_timeout, health=HEALTH)
        self._log = log
        with log.open("ab") as output:
            self._from = output.tell()
            self._guard = subprocess.Popen(
                [sys.executable, _GUARD, *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**os.environ, **secret},
                start_new_session=True,
            )

    async def ready(self) -> None:
        """Wait until the server is healthy, for half an hour at most. Raises ConfigError, with the
        log's last errors, if it does not come up."""
        began = time.monotonic()
        logger.info("vLLM starts at %s; its log is %s", self.place.url, self._log)
        while await asyncio.to_thread(self._link.silence) is not None:
            if self._guard.poll() is not None or time.monotonic() - began > _START_S:
                raise ConfigError(f"sampler=vllm did not start; {self._errors()}")
            await asyncio.sleep(_CHECK_S)

    def check(self) -> None:
        """Raise BackendError, with the log's last errors, if the server has ended and its guard
        will not start it again."""
        if self._guard.poll() is not None:
            raise BackendError(f"vLLM has ended and is not started again; {self._errors()}")

    def _errors(self) -> str:
        """Return the last three errors that this start wrote to the log, or else its last lines,
        shortened and without control characters."""
        read = b""
        with contextlib.suppress(FileNotFoundError):
            read = self._log.read_bytes()[self._from :]
        said = read.decode("utf-8", "replace").splitlines()
        lines = ["".join(filter(str.isprintable, line)).strip()[:300] for line in said]
        errors = dict.fromkeys(found[0] for found in map(_ERROR.search, lines) if found)
        return f"{self._log} has: {'; '.join([*errors][-3:] or lines[-3:])}"

    def close(self) -> None:
        """End the server, and wait half a minute at most for its guard. It does not raise if the
        guard takes longer."""
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._guard.wait(_END_S)


def _flags(command: list[str]) -> set[str]:
    """Return the words of a command; an option stands without its value, and with `-` for `_`, as
    vLLM reads it."""
    return {part.partition("=")[0].replace("_", "-") for part in command}
