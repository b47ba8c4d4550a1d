"""`code-rl sandbox`: Sandbox Fusion's protocol on top of the embedded sandbox, without Docker.

Answers `POST /run_code` and `GET /v1/ping`. Runs Python only; other languages are refused by name. Programs run at the chosen
isolation level: they may fork, but neither start other programs nor open sockets at level `full`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import chz
from aiohttp import web

from code_rl.errors import ConfigError
from code_rl.sandbox.embedded import EmbeddedSandbox
from code_rl.sandbox.fusion.protocol import LONGEST_RUN_HEADER, PING_PATH, RUN_PATH, SANDBOX_ERROR, RunResponse
from code_rl.sandbox.serving.admission import LOOPBACK, Admission, NotTakenError, stop_signal, url_of
from code_rl.sandbox.serving.bodies import Pace, read_body
from code_rl.sandbox.serving.requests import MalformedRequestError, UnrunnableRequestError, parse_request
from code_rl.sandbox.serving.runs import RunLimits, run_request
from code_rl.settings import make_settings

LARGE_BODY_BYTES = 1 << 18


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
        application = Application(sandbox, config)
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
    print(f"serving {url_of(config.host, port)}{RUN_PATH} ({description})", flush=True)


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


class Application:
    """Serves `sandbox` under Sandbox Fusion's protocol. Belongs to one event loop."""

    def __init__(self, sandbox: EmbeddedSandbox, config: SandboxServerConfig) -> None:
        self.admission = Admission(sandbox.concurrency, config.max_queue, config.max_queued_mb << 20)
        self._sandbox = sandbox
        self._limits = RunLimits(config.memory_mb, config.max_output_mb << 20, config.processes)
        self._max_request_bytes = config.max_request_mb << 20
        self._longest_run_s = config.max_run_s
        self._pace = Pace(config.body_timeout_s, config.body_grace_s, config.body_kb_per_s * 1024)

    @asynccontextmanager
    async def listening(self, host: str, port: int) -> AsyncIterator[int]:
        """Accept connections; yields the port. On leaving nothing new is accepted; requests that were admitted are cancelled."""
        app = web.Application()
        for slash in ("", "/"):
            app.router.add_post(RUN_PATH + slash, self._run_code)
            app.router.add_get(PING_PATH + slash, self._ping)
        # handler_cancellation: a client that goes away takes its program with it. auto_decompress: `bodies` unpacks, and counts.
        runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0, auto_decompress=False
        )
        await runner.setup()
        try:
            site = web.TCPSite(runner, host, port, backlog=1024)
            await site.start()
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()

    async def drain(self, grace_s: float) -> bool:
        """Refuse what is new, wait for what was admitted. False when something still ran after `grace_s`."""
        self.admission.draining = True
        try:
            await asyncio.wait_for(self.admission.idle.wait(), grace_s)
        except TimeoutError:
            return False
        return True

    async def _ping(self, _request: web.Request) -> web.Response:
        return web.json_response("pong", headers={LONGEST_RUN_HEADER: f"{self._longest_run_s:g}"})

    async def _run_code(self, request: web.Request) -> web.Response:
        size = request.content_length or 0
        try:
            if size > self._max_request_bytes:
                raise NotTakenError(413, f"a request may have {self._max_request_bytes} bytes, this one has {size}")
            with self.admission.receiving(size) as count:
                body = await read_body(request, count, self._max_request_bytes, self._pace)
                with self.admission.admitted():
                    return await self._admitted(body)
        except NotTakenError as error:
            return web.json_response({"detail": str(error)}, status=error.status, headers=error.headers)

    async def _admitted(self, body: bytearray) -> web.Response:
        try:
            if len(body) < LARGE_BODY_BYTES:
                parsed = parse_request(body, self._longest_run_s)
            else:
                parsed = await asyncio.to_thread(parse_request, body, self._longest_run_s)
        except MalformedRequestError as error:
            return web.json_response({"detail": error.detail}, status=422)
        except UnrunnableRequestError as error:
            return await _answer(RunResponse(SANDBOX_ERROR, message=str(error)))
        body.clear()
        async with self.admission.running:
            response = await run_request(self._sandbox, parsed, self._limits)
        return await _answer(response)


async def _answer(response: RunResponse) -> web.Response:
    size = sum(map(len, response.files.values())) + (len(response.run_result.stdout) if response.run_result else 0)
    if size < LARGE_BODY_BYTES:
        return web.json_response(response.to_json())
    text = await asyncio.to_thread(lambda: json.dumps(response.to_json()))
    return web.json_response(text=text)
