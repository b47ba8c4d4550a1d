"""`code-rl sandbox`: Sandbox Fusion's protocol on top of the embedded sandbox, without Docker.

Answers `POST /run_code` and `GET /v1/ping`. Runs Python only; other languages are refused by name. Programs run at the chosen
isolation level: they may fork, but neither start other programs nor open sockets at level `full`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping

import chz

from code_rl.errors import ConfigError
from code_rl.sandbox.embedded import EmbeddedSandbox
from code_rl.sandbox.fusion.protocol import RUN_PATH
from code_rl.sandbox.serving.admission import LOOPBACK, stop_signal
from code_rl.sandbox.serving.application import Application
from code_rl.settings import make_settings


@chz.chz
class SandboxServerConfig:
    """Settings of `code-rl sandbox`: a Sandbox Fusion server on this machine's embedded sandbox."""

    port: int = chz.field(default=8080, doc="TCP port; 0 takes a free one and prints it.")
    host: str = chz.field(
        default="127.0.0.1",
        doc="Address to bind. Anything but loopback lets other machines run programs here; the protocol has no password.",
    )
    isolation: str = chz.field(
        default="auto", doc="auto (the strongest level that this machine allows), full, landlock or none."
    )
    concurrency: int | None = chz.field(
        default=None, doc="Programs that run at once (None: twice the processors, at least four)."
    )
    max_queue: int = chz.field(
        default=4096, doc="Requests that may wait for a place; one more is answered 429 with Retry-After."
    )
    max_request_mb: int = chz.field(default=256, doc="Largest request body; a larger one is answered 413.")
    max_queued_mb: int = chz.field(
        default=1024,
        doc="Request bodies held in memory at once, counted as they arrive and unpacked; what would exceed it is answered 429.",
    )
    max_output_mb: int = chz.field(
        default=64,
        doc="Largest stdout, and largest sum of fetched files, of one run. Nothing is cut silently: beyond it the run is stopped, "
        "status is Failed and `message` says so.",
    )
    memory_mb: int = chz.field(default=4096, doc="Memory of a run; a request's memory_limit_MB may ask for less.")
    processes: int = chz.field(default=128, doc="Processes and threads of a run.")
    max_run_s: float = chz.field(default=3600.0, doc="Longest run_timeout that is accepted.")
    body_timeout_s: float = chz.field(
        default=60.0, doc="How long the body of a request may take to arrive; a slower one is answered 408."
    )
    body_kb_per_s: float = chz.field(
        default=64.0, doc="Slowest rate at which a body may arrive; a slower one is answered 408 after body_grace_s."
    )
    body_grace_s: float = chz.field(
        default=5.0, doc="How far behind body_kb_per_s a body may be, and so how long its sender may pause."
    )
    shutdown_grace_s: float = chz.field(
        default=30.0, doc="How long running and queued requests may take to end after SIGTERM or SIGINT."
    )


_MOST = {
    **dict.fromkeys(("max_request_mb", "max_queued_mb", "max_output_mb", "memory_mb", "body_kb_per_s"), 1 << 20),
    "processes": 1 << 20,
    **dict.fromkeys(("max_run_s", "body_timeout_s", "body_grace_s"), 1e6),
}
"""Settings that have to be above 0, and up to where the kernel and the event loop can take them."""
_MOST_OR_NONE = {"max_queue": 1 << 30, "shutdown_grace_s": 1e6}


def serve(config: SandboxServerConfig) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code, 0.

    Raises:
        ConfigError: a setting is out of range, or the address cannot be bound.
        IsolationError: the isolation level cannot be had here.
    """
    _validate(config)
    asyncio.run(_serve(config))
    return 0


def sandbox_command(given: Mapping[str, str]) -> int:
    """`code-rl sandbox` with its settings as written."""
    return serve(make_settings(SandboxServerConfig, given))


async def _serve(config: SandboxServerConfig) -> None:
    sandbox = EmbeddedSandbox(config.concurrency, config.isolation)
    try:
        application = Application(sandbox, sandbox.concurrency, config)
        stop = stop_signal()
        try:
            async with application.listening(config.host, config.port) as port:
                _announce(config, sandbox.description, port)
                await stop.wait()
                print("stopping: waiting for the programs that run", file=sys.stderr, flush=True)
                if not await application.drain(config.shutdown_grace_s):
                    print(f"stopped the programs that ran longer than {config.shutdown_grace_s:g} s", file=sys.stderr)
        except OSError as error:
            raise ConfigError(
                f"host={config.host} port={config.port} cannot be bound ({os.strerror(error.errno or 0)}); choose another port"
            ) from error
    finally:
        await sandbox.aclose()


def _announce(config: SandboxServerConfig, description: str, port: int) -> None:
    if config.host not in LOOPBACK:
        print(
            f"warning: bound to {config.host}: whoever reaches this port can run programs on this machine; "
            "put a firewall or an authenticating proxy in front",
            file=sys.stderr,
        )
    shown = f"[{config.host}]" if ":" in config.host else config.host
    print(f"serving http://{shown}:{port}{RUN_PATH} ({description})", flush=True)


def _validate(config: SandboxServerConfig) -> None:
    if not 0 <= config.port <= 65535:
        raise ConfigError(f"port={config.port} is not a TCP port; use 0 to 65535")
    if not config.host:
        raise ConfigError("host= is empty; use 127.0.0.1, or an address of this machine")
    for name, most in _MOST.items():
        value = getattr(config, name)
        if not 0 < value <= most:  # not a number is neither
            raise ConfigError(f"{name}={value} must be above 0, at most {most:g}")
    for name, most in _MOST_OR_NONE.items():
        value = getattr(config, name)
        if not 0 <= value <= most:
            raise ConfigError(f"{name}={value} must be 0 or more, at most {most:g}")
