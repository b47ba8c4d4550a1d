"""Sandbox Fusion's protocol on top of an executor: `POST /run_code` and `GET /v1/ping`, plus
`POST /v1/jobs` (`fusion.jobs`), `/v1/boxes` (`fusion.boxes`), `/health` and `/metrics`. `/run_code`
runs Python, and the languages of `grading.languages` that are installed.

With a token, whoever runs programs must send it. Without one, jobs and boxes are for this machine
only.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager

from aiohttp import web

from code_rl.grading.sandbox.executor import Executor
from code_rl.grading.sandbox.fusion.protocol import (
    BOXES_PATH,
    JOBS_HEADER,
    JOBS_PATH,
    PING_PATH,
    RUN_PATH,
    SANDBOX_ERROR,
    RunResponse,
)
from code_rl.grading.sandbox.fusion.transport import TOKEN_VARIABLE
from code_rl.grading.sandbox.server.boxes import serve_box
from code_rl.grading.sandbox.server.jobs import job_lines, read_job
from code_rl.grading.sandbox.server.run_code import (
    MalformedRequestError,
    RunLimits,
    UnrunnableRequestError,
    parse_request,
    run_request,
)
from code_rl.util.admission import Admission, NotTakenError, is_loopback, listening
from code_rl.util.concurrency import closing


class SandboxApplication:
    """Serves `sandbox` under Sandbox Fusion's protocol. It belongs to one event loop."""

    def __init__(
        self,
        sandbox: Executor,
        admission: Admission,
        limits: RunLimits,
        max_request_bytes: int,
        token: str | None = None,
    ) -> None:
        """Serve nothing yet. `token` None: everyone on the network may use /run_code, and only this
        machine jobs and boxes. The caller closes `sandbox`."""
        self.admission = admission
        self._token = token
        self._sandbox, self._limits = sandbox, limits
        self._max_request_bytes = max_request_bytes
        self._ended: Counter[str] = Counter()
        self._seconds = 0.0

    def listening(self, host: str, port: int) -> AbstractAsyncContextManager[int]:
        """Listen at `host` and `port` during the block, and yield the port, as
        `admission.listening` does. Bodies may be compressed. Raises ConfigError if the address
        cannot be used."""
        app = web.Application(client_max_size=self._max_request_bytes)
        for slash in ("", "/"):
            app.router.add_post(RUN_PATH + slash, self._run_code)
            app.router.add_post(JOBS_PATH + slash, self._run_job)
            app.router.add_get(BOXES_PATH + slash, self._open_box)
            app.router.add_get(PING_PATH + slash, self._ping)
            app.router.add_get("/health" + slash, self._health)
            app.router.add_get("/metrics" + slash, self._metrics)
        return listening(app, host, port, unpacks=True)

    async def drain(self, grace_s: float) -> bool:
        """Refuse new requests, for good, and wait for admitted ones. Return False if one still ran
        after `grace_s` seconds; it is not stopped here."""
        self.admission.draining = True
        try:
            await asyncio.wait_for(self.admission.idle.wait(), grace_s)
        except TimeoutError:
            return False
        return True

    def _may_run(self, request: web.Request) -> bool:
        """Return True if the request has the token, or the server has none. The comparison takes
        the same time for every wrong token."""
        sent = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        return self._token is None or hmac.compare_digest(sent, f"Bearer {self._token}".encode())

    def _may_send_jobs(self, request: web.Request) -> bool:
        """Return True if the request may also send jobs and open boxes: without a token, only from
        this machine."""
        return self._may_run(request) and (
            self._token is not None or is_loopback(request.remote or "")
        )

    async def _ping(self, request: web.Request) -> web.Response:
        """Answer that the server runs, and, in a header, that this client may send jobs. No token
        is needed."""
        takes_jobs = {JOBS_HEADER: "yes"} if self._may_send_jobs(request) else {}
        return web.json_response("pong", headers=takes_jobs)

    async def _health(self, _request: web.Request) -> web.Response:
        """Answer 200, or 503 while draining. No token is needed."""
        draining = self.admission.draining
        return web.json_response(
            {"status": "draining" if draining else "ok"}, status=503 if draining else 200
        )

    async def _metrics(self, _request: web.Request) -> web.Response:
        """Answer with `figures`. No token is needed."""
        text = figures(self._ended, self._seconds, self.admission)
        return web.Response(text=text, content_type="text/plain")

    async def _run_code(self, request: web.Request) -> web.StreamResponse:
        return await self._admitted(request, self._may_run(request), self._answer_run)

    async def _run_job(self, request: web.Request) -> web.StreamResponse:
        return await self._admitted(request, self._may_send_jobs(request), self._answer_job)

    async def _open_box(self, request: web.Request) -> web.StreamResponse:
        return await self._admitted(request, self._may_send_jobs(request), self._answer_box)

    async def _admitted(
        self,
        request: web.Request,
        allowed: bool,
        answer: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        """Check the token and the queue, then answer; refusals become their HTTP status: 401, 422
        for a malformed request, 429 or 503. The request counts as running until its answer has
        ended."""
        if not allowed:
            return web.json_response(
                {"detail": f"{TOKEN_VARIABLE} is missing, or not this server's"}, status=401
            )
        try:
            with self.admission.admitted():
                return await answer(request)
        except NotTakenError as error:
            self._ended["refused"] += 1
            return web.json_response(
                {"detail": str(error)}, status=error.status, headers=error.headers
            )
        except MalformedRequestError as error:
            return web.json_response({"detail": error.detail}, status=422)

    async def _answer_run(self, request: web.Request) -> web.StreamResponse:
        """Run a run_code request in its turn, and answer it. One that cannot run gets the status
        SandboxError. Raises MalformedRequestError."""
        try:
            parsed = parse_request(await request.read(), self._limits.longest_s)
        except UnrunnableRequestError as error:
            return web.json_response(RunResponse(SANDBOX_ERROR, message=str(error)).to_json())
        async with self.admission.running:
            started = time.monotonic()
            response = await run_request(self._sandbox, parsed, self._limits)
            self._seconds += time.monotonic() - started
        self._ended[response.status] += 1
        return web.json_response(response.to_json())

    async def _answer_box(self, request: web.Request) -> web.StreamResponse:
        """Open a box for the connection, and serve it until it ends."""
        self._ended["box"] += 1
        most = 2 * self._max_request_bytes  # as base64, with the rest of a message
        return await serve_box(request, self._limits, most, self.admission.running)

    async def _answer_job(self, request: web.Request) -> web.StreamResponse:
        """Stream a job's executions as JSON lines, each as soon as it ends. Raises
        MalformedRequestError before the answer begins; a later failure is the last line."""
        job = read_job(await request.read(), self._limits)
        response = web.StreamResponse()
        response.content_type = "application/x-ndjson"
        await response.prepare(request)
        started = time.monotonic()
        async with closing(job_lines(self._sandbox, job, self.admission.running)) as lines:
            async for line in lines:
                await response.write(line)
        self._seconds += time.monotonic() - started
        self._ended["job"] += 1
        return response


def figures(ended: Mapping[str, int], seconds: float, admission: Admission) -> str:
    """Return the server's metrics in Prometheus's text format, which needs no package. `ended` are
    answered requests by status, `seconds` the wall seconds of runs."""
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
