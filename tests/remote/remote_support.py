"""Runs over real HTTP: `code-rl serve` on a thread of the test, a proxy that injects faults, and the run's records."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any, Self

from aiohttp import ClientSession, web

from code_rl.runs.recorder import read_metrics

RUN = {
    "model_name": "tiny", "recipe": "tiny", "executor": "embedded", "batch_size": "16", "group_size": "4",
    "eval_every": "-1", "max_tokens": "48", "max_steps": "5", "save_every": "1", "backend_patience": "60",
}  # fmt: skip


def settings(url: str, log_path: Path, **changes: str) -> dict[str, str]:
    return {**RUN, "backend": url, "log_path": str(log_path), **changes}


def records(log_path: Path) -> list[dict[str, Any]]:
    """A run's metrics without times, rounded: sums in another order differ in the last bits."""
    return [
        {
            key: round(value, 5) if isinstance(value, float) else value
            for key, value in record.items()
            if "time/" not in key
        }
        for record in read_metrics(log_path)
    ]


def sampled(log_path: Path) -> list[list[list[int]]]:
    """The tokens of every completion, by group."""
    lines = (log_path / "rollouts.jsonl").read_text().splitlines()
    return [[completion["tokens"] for completion in json.loads(line)["completions"]] for line in lines]


class Loopback:
    """A server on loopback, in a thread of its own, that answers every request with `_answer`."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        application = web.Application(client_max_size=64 << 20)
        application.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(application)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.port = runner.addresses[0][1]
        async with ClientSession(auto_decompress=False) as self._client:
            self._ready.set()
            await self._stop.wait()
        await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        raise NotImplementedError


class FaultyProxy(Loopback):
    """A proxy on loopback that spoils chosen requests. `plan` maps a path's end to the faults of its first requests.

    Faults: a status (the request is not forwarded), `lost` (forwarded, the answer is dropped), `cut` (forwarded, half of the answer
    comes), `hang` (forwarded, then nothing until the connection is closed), None (passed on).
    """

    def __init__(self, upstream: str, plan: dict[str, list[int | str | None]]) -> None:
        self.upstream = upstream
        self.plan = {path: list(faults) for path, faults in plan.items()}
        self.injected: list[tuple[str, int | str]] = []
        self.seen: list[str] = []
        super().__init__()

    async def _own(self, request: web.Request) -> web.StreamResponse | None:
        """An answer of the proxy's own, where a subclass has one."""
        return None

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request.path)
        own = await self._own(request)
        if own is not None:
            return own
        faults = next((faults for end, faults in self.plan.items() if request.path.endswith(end)), [])
        fault = faults.pop(0) if faults else None
        if fault is not None:
            self.injected.append((request.path, fault))
        if isinstance(fault, int):
            return web.json_response({"detail": "injected"}, status=fault)
        headers = {
            name: value for name, value in request.headers.items() if name.lower() not in ("host", "content-length")
        }
        async with self._client.request(
            request.method, f"{self.upstream}{request.rel_url}", headers=headers, data=await request.read()
        ) as answer:
            body = await answer.read()
        if fault == "hang":
            await asyncio.sleep(2)
        if fault in ("lost", "hang"):
            assert request.transport is not None
            request.transport.close()
            return web.Response(status=502)
        kept = {
            name: value
            for name, value in answer.headers.items()
            if name.lower() in ("content-type", "content-encoding")
        }
        if fault == "cut":
            spoiled = web.StreamResponse(status=answer.status, headers={**kept, "Content-Length": str(len(body))})
            await spoiled.prepare(request)
            await spoiled.write(body[: len(body) // 2])
            assert request.transport is not None
            request.transport.close()
            return spoiled
        return web.Response(status=answer.status, body=body, headers=kept)


class OtherServer(Loopback):
    """Answers every request with one handler."""

    def __init__(self, handler: Any) -> None:
        super().__init__()
        self._handler = handler

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        answer: web.StreamResponse = await self._handler(request)
        return answer


class EscapingProxy(FaultyProxy):
    """Names a file outside the folder among the addresses of a checkpoint's files."""

    async def _own(self, request: web.Request) -> web.StreamResponse | None:
        if not request.path.endswith("external_weights_urls"):
            return None
        urls = {"../escaped": f"{self.url}/file"}
        return web.json_response({"urls": urls, "expires": "2100-01-01T00:00:00Z"})
