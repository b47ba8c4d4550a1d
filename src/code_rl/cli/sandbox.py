"""`code-rl sandbox`: Sandbox Fusion's protocol on top of the embedded sandbox, without Docker.

Programs run at the chosen isolation level. At level `full` they may fork, but not start other
programs or open sockets.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping

import chz

from code_rl.grading.sandbox.server import (
    RUN_PATH,
    TOKEN_VARIABLE,
    RunLimits,
    SandboxApplication,
    require_linux,
)
from code_rl.util.admission import Admission, is_loopback, stop_signal, url_of
from code_rl.util.options import AT_LEAST_0, AT_LEAST_1, FROM_0, HOST, PORT, check_that, option
from code_rl.util.settings import make_settings

MANY = check_that(lambda value: 0 < value <= 1 << 20, "above 0, at most 1048576")
SECONDS = check_that(lambda value: 0 < value <= 1e6, "above 0, at most 1e6 s")
"""Limits of the kernel and the event loop; NaN is outside them."""


@chz.chz
class SandboxConfig:
    """Settings of `code-rl sandbox`: a Sandbox Fusion server on this machine's embedded sandbox."""

    port: int = option(8080, "TCP port; 0 takes a free one and prints it.", PORT)
    host: str = option(
        "127.0.0.1",
        "Address to bind. Beyond loopback, other machines may run programs here, without a "
        f"password unless {TOKEN_VARIABLE} holds one.",
        HOST,
    )
    isolation: str = option("auto", "auto (the strongest available level), full, landlock or none.")
    sandbox_concurrency: int | None = option(
        None, "Programs that run at once (None: twice the processors, at least four).", AT_LEAST_1
    )
    max_queue: int = option(
        4096,
        "Maximum queued requests; beyond it, 429 with Retry-After.",
        AT_LEAST_0,
    )
    max_request_mb: int = option(256, "Largest request body; beyond it, 413.", MANY)
    max_output_mb: int = option(
        128,
        "Largest stdout, and sum of fetched files, of a run; beyond it, the run fails.",
        MANY,
    )
    memory_mb: int = option(4096, "Memory per run; a request's memory_limit_MB may lower it.", MANY)
    processes: int = option(1024, "Processes and threads per run.", MANY)
    max_run_s: float = option(3600.0, "Longest run_timeout that is accepted.", SECONDS)
    shutdown_grace_s: float = option(
        30.0,
        "Seconds for open requests to finish after SIGTERM or SIGINT.",
        FROM_0,
    )


def sandbox_command(given: Mapping[str, str]) -> int:
    """Run `code-rl sandbox` with its settings as text: serve until SIGTERM or SIGINT, and return
    the exit code, 0.

    Raises ConfigError for a wrong setting or an address that cannot be bound, IsolationError if the
    isolation level is not available.
    """
    config = make_settings(SandboxConfig, given)
    require_linux("code-rl sandbox")
    asyncio.run(_serve(config))
    return 0


async def _serve(config: SandboxConfig) -> None:
    """Answer requests until SIGTERM or SIGINT, then drain within the grace; programs that run
    longer are stopped. Raises ConfigError for an address that cannot be bound, IsolationError."""
    from code_rl.grading.sandbox.server import EmbeddedSandbox  # it can be imported only on Linux

    token = os.environ.get(TOKEN_VARIABLE)
    sandbox = EmbeddedSandbox(config.sandbox_concurrency, config.isolation)
    try:
        application = SandboxApplication(
            sandbox,
            Admission(sandbox.slots, config.max_queue),
            RunLimits(
                config.memory_mb, config.max_output_mb << 20, config.processes, config.max_run_s
            ),
            config.max_request_mb << 20,
            token,
        )
        stop = stop_signal()
        async with application.listening(config.host, config.port) as port:
            _announce(config, sandbox.description, port, token)
            await stop.wait()
            print("stopping: waiting for the programs that run", file=sys.stderr, flush=True)
            if not await application.drain(config.shutdown_grace_s):
                print(
                    f"stopped the programs that ran longer than {config.shutdown_grace_s:g} s",
                    file=sys.stderr,
                )
    finally:
        await sandbox.aclose()


def _announce(config: SandboxConfig, description: str, port: int, token: str | None) -> None:
    """Print the address on stdout, which a supervisor may read, and a warning on stderr if others
    can reach the server without a token."""
    if not is_loopback(config.host) and token is None:
        print(
            f"warning: bound to {config.host}: whoever reaches this port can run programs on this "
            f"machine; set {TOKEN_VARIABLE} here and on the clients, or put a firewall in front",
            file=sys.stderr,
        )
    print(f"serving {url_of(config.host, port)}{RUN_PATH} ({description})", flush=True)
