"""The HTTP application: routes, refusals, and the life of the server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from aiohttp import web

from code_rl.sandbox.executor import Executor
from code_rl.sandbox.fusion.protocol import LONGEST_RUN_HEADER, PING_PATH, RUN_PATH, SANDBOX_ERROR, RunResponse
from code_rl.sandbox.serving.admission import Admission, NotTakenError
from code_rl.sandbox.serving.bodies import Pace, read_body
from code_rl.sandbox.serving.requests import MalformedRequestError, UnrunnableRequestError, parse_request
from code_rl.sandbox.serving.runs import RunLimits, run_request

if TYPE_CHECKING:
    from code_rl.sandbox.server import SandboxServerConfig

LARGE_BODY_BYTES = 1 << 18


class Application:
    """Serves `sandbox`, of so many places, under Sandbox Fusion's protocol. Belongs to one event loop."""

    def __init__(self, sandbox: Executor, places: int, config: SandboxServerConfig) -> None:
        self.admission = Admission(places, config.max_queue, config.max_queued_mb << 20)
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
            with self.admission.receiving(size) as held:
                body = await read_body(request, held, self._max_request_bytes, self._pace)
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
