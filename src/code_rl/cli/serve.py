"""`code-rl serve`: the embedded engine behind the wire protocol of the Tinker SDK (0.38).

A Tinker program runs unmodified with TINKER_BASE_URL=http://127.0.0.1:8000 and
TINKER_API_KEY=tml-dummy.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import chz

from code_rl.engine.local import share_cores
from code_rl.util.admission import is_loopback, stop_signal, url_of
from code_rl.util.errors import ConfigError, require
from code_rl.util.options import ABOVE_0, AT_LEAST_1, FROM_0, HOST, PORT, DeviceOptions, option
from code_rl.util.settings import make_settings

QUIET_S = 0.015
"""How long no sample arrives after the last of a batch, sent one by one over HTTP."""
TOKEN_VARIABLE = "CODE_RL_SERVE_TOKEN"  # noqa: S105 - its name


@chz.chz
class ServeConfig(DeviceOptions):
    """Settings of `code-rl serve`: the embedded engine as a server for the Tinker SDK."""

    port: int = option(8000, "TCP port; 0 takes a free one and prints it.", PORT)
    host: str = option(
        "127.0.0.1",
        f"Address to bind. Beyond loopback, {TOKEN_VARIABLE} must hold a token.",
        HOST,
    )
    state_dir: str = option(
        "~/.code-rl/serve", "Folder for sessions, checkpoints and sampler weights."
    )
    models: str | None = option(
        None,
        "TOML file: its table [models] maps names of base models to tiny, folders or hub ids.",
    )
    preload: str | None = option(None, "Base model to load at the start.")
    max_models: int = option(
        64,
        "Maximum models in training; beyond it, 429, which the SDK retries.",
        AT_LEAST_1,
    )
    max_samplers: int = option(
        16,
        "Sampler snapshots in memory; others are on disk.",
        AT_LEAST_1,
    )
    max_queue: int = option(4096, "Maximum queued requests; beyond it, 429.", AT_LEAST_1)
    max_request_mb: int = option(256, "Largest request body; beyond it, 413.", AT_LEAST_1)
    max_queued_mb: int = option(1024, "Maximum queued request bodies; beyond it, 429.", AT_LEAST_1)
    idle_s: float = option(900.0, "Seconds after which an unused base model is unloaded.", ABOVE_0)
    session_timeout_s: float = option(
        180.0,
        "Seconds after which a silent client loses its queued requests and, idle_s later, its "
        "models.",
        ABOVE_0,
    )
    shutdown_grace_s: float = option(
        60.0, "Seconds for queued requests to finish after SIGTERM or SIGINT.", FROM_0
    )


def serve_command(given: Mapping[str, str]) -> int:
    """Run `code-rl serve` with its settings as text, until SIGTERM or SIGINT. Return the exit code:
    0, or 1 if requests outlived the grace. Raises ConfigError for a wrong setting, a missing token
    or package, or an address that cannot be bound."""
    config = make_settings(ServeConfig, given)
    token = read_token(config.host)
    require("serve", "serve", "torch", "prometheus_client")
    share_cores()
    return asyncio.run(_serve(config, token, Path(config.state_dir).expanduser().absolute()))


def read_token(host: str) -> str | None:
    """Return the token that clients must send, from CODE_RL_SERVE_TOKEN, or None without one.
    Raises ConfigError if other machines can reach the address and there is none, or if it does not
    begin with `tml-`."""
    token = os.environ.get(TOKEN_VARIABLE) or None
    if token is None and not is_loopback(host):
        raise ConfigError(
            f"host={host} lets other machines in: set {TOKEN_VARIABLE} to a secret that starts "
            "with 'tml-', and TINKER_API_KEY to the same on the clients"
        )
    if token is not None and not token.startswith("tml-"):
        raise ConfigError(f"{TOKEN_VARIABLE} must start with 'tml-': the SDK sends no other keys")
    return token


async def _serve(config: ServeConfig, token: str | None, state_dir: Path) -> int:
    """Answer requests until SIGTERM or SIGINT. Return 1 if requests outlived the grace, else 0; the
    state's lock is freed in any case. Raises ConfigError for an unusable state folder, table of
    models, or address."""
    from code_rl.engine.local import EmbeddedService
    from code_rl.engine.serve import (
        Core,
        ServiceLimits,
        StateStore,
        TinkerApplication,
        read_models,
    )

    models = read_models(config.models)
    store = StateStore(state_dir)
    try:
        limits = ServiceLimits(
            max_models=config.max_models,
            max_samplers=config.max_samplers,
            max_queue=config.max_queue,
            max_queued_bytes=config.max_queued_mb << 20,
            idle_s=config.idle_s,
            session_timeout_s=config.session_timeout_s,
        )
        service = EmbeddedService(config.device, config.dtype, config.threads, quiet_s=QUIET_S)
        core = Core(store, models, limits, service)
        if config.preload is not None:
            await service.load(core.local_name(config.preload))
        application = TinkerApplication(core, token, config.max_request_mb << 20)
        stop = stop_signal()
        async with application.listening(config.host, config.port) as port:
            print(
                f"serving {url_of(config.host, port)} ({service.device}, state in {store.folder})",
                flush=True,
            )
            await stop.wait()
            print("stopping: ending what is queued", file=sys.stderr, flush=True)
            if not await application.drain(config.shutdown_grace_s):
                print(
                    f"stopped what took longer than {config.shutdown_grace_s:g} s", file=sys.stderr
                )
                return 1
    finally:
        store.close()
    return 0
