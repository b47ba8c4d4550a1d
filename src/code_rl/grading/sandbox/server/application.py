"""Sandbox Fusion's protocol on top of an executor: `POST /run_code` and `GET /v1/ping`, plus
`/health` and `/metrics`. It runs only Python; other languages are refused by name."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager

from aiohttp import web

from code_rl.grading.sandbox.executor import Executor
from code_rl.grading.sandbox.fusion.protocol import (
    LONGEST_RUN_HEADER,
    PING_PATH,
    RUN_PATH,
    SANDBOX_ERROR,
    RunResponse,
)
from code_rl.grading.sandbox.server.requests import (
    MalformedRequestError,
    UnrunnableRequestError,
    parse_request,
)
from code_rl.grading.sandbox.server.runs import RunLimits, run_request
from code_rl.util.admission import Admission, NotTakenError, listening


class SandboxApplication:
    """Serves `sandbox` under Sandbox Fusion's protocol. It belongs to one event loop."""

    def __init__(
        self, sandbox: Executor, admission: Admission, limits: RunLimits, max_request_bytes: int
    ) -> None:
        self.admission = admission
        self._sandbox, self._limits = sandbox, limits
        self._max_request_bytes = max_request_bytes
        self._ended: Counter[str] = Counter()
        self._seconds = 0.0

    def listening(self, host: str, port: int) -> AbstractAsyncContextManager[int]:
        """Listen as `admission.listening` does."""
        app = web.Application(client_max_size=self._max_request_bytes)
        for slash in ("", "/"):
            app.router.add_post(RUN_PATH + slash, self._run_code)
            app.router.add_get(PING_PATH + slash, self._ping)
            app.router.add_get("/health" + slash, self._health)
            app.router.add_get("/metrics" + slash, self._metrics)
        return listening(app, host, port, unpacks=True)

    async def drain(self, grace_s: float) -> bool:
        """Refuse new requests and wait for admitted ones. Return False if one still ran after
        `grace_s`."""
        self.admission.draining = True
        try:
            await asyncio.wait_for(self.admission.idle.wait(), grace_s)
        except TimeoutError:
            return False
        return True

    async def _ping(self, _request: web.Request) -> web.Response:
        return web.json_response(
            "pong", headers={LONGEST_RUN_HEADER: f"{self._limits.longest_s:g}"}
        )

    async def _health(self, _request: web.Request) -> web.Response:
        draining = self.admission.draining
        return web.json_response(
            {"status": "draining" if draining else "ok"}, status=503 if draining else 200
        )

    async def _metrics(self, _request: web.Request) -> web.Response:
        text = figures(self._ended, self._seconds, self.admission)
        return web.Response(text=text, content_type="text/plain")

    async def _run_code(self, request: web.Request) -> web.Response:
        try:
            with self.admission.admitted():
                return await self._admitted(await request.read())
        except NotTakenError as error:
            self._ended["refused"] += 1
            return web.json_response(
                {"detail": str(error)}, status=error.status, headers=error.headers
            )

    async def _admitted(self, body: bytes) -> web.Response:
        try:
            parsed = parse_request(body, self._limits.longest_s)
        except MalformedRequestError as error:
            return web.json_response({"detail": error.detail}, status=422)
        except UnrunnableRequestError as error:
            return web.json_response(RunResponse(SANDBOX_ERROR, message=str(error)).to_json())
        del body
        async with self.admission.running:
            started = time.monotonic()
            response = await run_request(self._sandbox, parsed, self._limits)
            self._seconds += time.monotonic() - started
        self._ended[response.status] += 1
        return web.json_response(response.to_json())


def figures(ended: Mapping[str, int], seconds: float, admission: Admission) -> str:
    """Return the server's metrics in Prometheus's text format, which needs no package."""
    lines = [
        "# HELP code_rl_sandbox_requests_total Requests answered, by status.",
        "# TYPE code_rl_sandbox_requests_total counter",
        *(f'code_rl_sandbox_requests_total{{status="{k}"}} {n}' for k, n in sorted(ended.items())),
        "# HELP code_rl_sandbox_run_seconds_total Seconds that programs held a place.",
        "# TYPE code_rl_sandbox_run_seconds_total counter",
        f"code_rl_sandbox_run_seconds_total {seconds:.6f}",
        "# HELP code_rl_sandbox_requests_held Requests that run or wait.",
        "# TYPE code_rl_sandbox_requests_held gauge",
        f"code_rl_sandbox_requests_held {admission.held}",
        "# HELP code_rl_sandbox_places Programs that run at once.",
        "# TYPE code_rl_sandbox_places gauge",
        f"code_rl_sandbox_places {admission.places}",
    ]
    return "\n".join(lines) + "\n"
