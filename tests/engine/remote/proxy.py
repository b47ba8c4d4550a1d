"""A proxy on loopback that spoils chosen requests of a client of a server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from typing import Self

from aiohttp import ClientSession, web

Fault = int | str | None


class Loopback:
    """A server on loopback, in a thread of its own, that answers every request with `_answer`."""

    def __init__(self) -> None:
        self.port = 0  # any
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._ready.wait(30):
            raise OSError("no server on loopback within 30 s")
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
        await web.TCPSite(runner, "127.0.0.1", self.port).start()
        self.port = runner.addresses[0][1]
        async with ClientSession(auto_decompress=False) as self._client:
            self._ready.set()
            await self._stop.wait()
        await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        raise NotImplementedError


class FaultyProxy(Loopback):
    """Passes requests on to `upstream`. `plan` maps a path's end to the faults of its first requests.

    Faults: a status (the request is not forwarded), `lost` (forwarded, the answer is dropped), `cut` (forwarded, half of the answer
    comes), `hang` (forwarded, then nothing until the connection is closed), `twice` (forwarded twice), None (passed on).
    """

    def __init__(self, upstream: str, plan: Mapping[str, Sequence[Fault]]) -> None:
        self.upstream = upstream
        self.plan = {path: list(faults) for path, faults in plan.items()}
        self.injected: list[tuple[str, int | str]] = []
        self.seen: list[str] = []
        super().__init__()

    async def _own(self, request: web.Request) -> web.StreamResponse | None:
        """An answer of the proxy's own, where a subclass has one."""
        del request
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
        for _ in range(2 if fault == "twice" else 1):
            status, kept, body = await self._forwarded(request)
        if fault == "hang":
            await asyncio.sleep(2)
        if fault in ("lost", "hang", "cut"):
            answer = web.StreamResponse(status=status, headers={**kept, "Content-Length": str(len(body))})
            if fault == "cut":
                await answer.prepare(request)
                await answer.write(body[: len(body) // 2])
            if request.transport is not None:
                request.transport.close()
            return answer
        return web.Response(status=status, body=body, headers=kept)

    async def _forwarded(self, request: web.Request) -> tuple[int, dict[str, str], bytes]:
        dropped, kept = ("host", "content-length"), ("content-type", "content-encoding")
        headers = {name: value for name, value in request.headers.items() if name.lower() not in dropped}
        url, body = f"{self.upstream}{request.rel_url}", await request.read()
        async with self._client.request(request.method, url, headers=headers, data=body) as answer:
            return (
                answer.status,
                {name: value for name, value in answer.headers.items() if name.lower() in kept},
                await answer.read(),
            )
