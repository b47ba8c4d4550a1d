"""Real servers on loopback: ours as a process, and proxies in front of it that misbehave."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from code_rl.grading.sandbox import Executor, Job, connect_executor
from code_rl.grading.sandbox.executor import Execution
from code_rl.util.errors import OutageError, SandboxError
from tests.boxes import served
from tests.grading.jobs import collect
from tests.verb_server import VerbServer

STUBBORN: dict[str, Any] = {"outage_timeout_s": 60.0}


def connected(urls: list[str], concurrency: int | None = None, outage_timeout_s: float = 2.0) -> Executor:
    """The executor on the servers at these addresses."""
    return connect_executor(",".join(urls), concurrency=concurrency, outage_timeout_s=outage_timeout_s)


Forward = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
Handler = Callable[[int, dict[str, Any], Forward], Awaitable[web.StreamResponse]]


class ServerProcess(VerbServer):
    """`code-rl sandbox` in a process of its own."""

    verb = "sandbox"

    def __init__(self, **settings: object) -> None:
        super().__init__(None, **{"sandbox_concurrency": 4, **settings})
        self.line = ""

    def start(self) -> ServerProcess:
        pytest.importorskip("chz", reason="the verb `sandbox` needs the extra train")
        self.line = self.launch()
        if not self.line and "isolation" not in self.settings:
            self.stop()
            self.settings["isolation"] = "none"
            return self.start()
        return self.listens_at(self.line.split("/run_code")[0].rpartition(":")[2])

    def send(self, number: int) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)


@asynccontextmanager
async def fake_server(
    handler: Handler, upstream: str | None = None, alive: Callable[[], bool] = lambda: True
) -> AsyncIterator[str]:
    """A server whose /run_code is `handler(number of the request, its body, forward to upstream)`; yields its URL."""
    count = 0
    async with aiohttp.ClientSession() as session:

        async def forward(body: dict[str, Any]) -> dict[str, Any]:
            async with session.post(f"{upstream}/run_code", json=body) as response:
                return await response.json()

        async def run_code(request: web.Request) -> web.StreamResponse:
            nonlocal count
            count += 1
            return await handler(count, json.loads(await request.read()), forward)

        async def ping(_: web.Request) -> web.Response:
            return web.json_response("pong", status=200 if alive() else 503)

        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/run_code", run_code)
        app.router.add_get("/v1/ping", ping)
        async with served(app) as url:
            yield url


async def relay(_number: int, body: dict[str, Any], forward: Forward) -> web.StreamResponse:
    """A handler that passes everything on."""
    return web.json_response(await forward(body))


def recording(seen: list[dict[str, Any]]) -> Handler:
    """A handler that keeps each request and passes it on."""

    async def handler(number: int, body: dict[str, Any], forward: Forward) -> web.StreamResponse:
        seen.append(body)
        return await relay(number, body, forward)

    return handler


def through(
    servers: list[Handler | str],
    use: Callable[[Executor], Awaitable[Any]],
    upstream: str | None = None,
    concurrency: int = 2,
    **more: Any,
) -> Any:
    """The result of `use(client)`, with a client of these servers: addresses, or handlers of fake ones."""

    async def go() -> Any:
        async with AsyncExitStack() as stack:
            urls = [
                s if isinstance(s, str) else await stack.enter_async_context(fake_server(s, upstream)) for s in servers
            ]
            client = connected(urls, concurrency, **more)
            stack.push_async_callback(client.aclose)
            return await use(client)

    return asyncio.run(asyncio.wait_for(go(), 100))


async def outcome(client: Executor, job: Job) -> list[Execution] | SandboxError | OutageError:
    try:
        return await collect(client, job)
    except (SandboxError, OutageError) as error:
        return error


def run_all(url: str, job: Job, concurrency: int = 4, **more: Any) -> list[Execution]:
    """Every execution of one job, by the harness: a relay hides that our server takes jobs."""
    return through([relay], lambda client: collect(client, job), url, concurrency, **more)


def run_job(url: str, job: Job, **more: Any) -> list[Execution]:
    """Every execution of one job, as a whole job for our server."""
    return through([url], lambda client: collect(client, job), **more)
