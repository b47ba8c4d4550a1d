"""The live page: the report, served during the run and updated at every step. It only reads the
run's files, so the run can be stopped, resumed or deleted while the page is open."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import AsyncIterator, Sequence

import orjson
from aiohttp import web

from code_rl.training.report.overview import side_by_side
from code_rl.training.report.page import PackedRollouts, pack_rollouts, policy, render
from code_rl.training.report.run import RunReader
from code_rl.util.admission import is_loopback, listening, stop_signal, url_of
from code_rl.util.errors import InputError

LOOK_EVERY_S = 0.25
KEEP_ALIVE_S = 15.0


class LivePage:
    """Watches the runs' files and updates open pages."""

    def __init__(self, readers: Sequence[RunReader]) -> None:
        self._readers = readers
        self._lock = threading.Lock()
        self._news = self._overviews()
        self._rollouts: dict[int, tuple[int, PackedRollouts]] = {}
        self._listeners: set[asyncio.Event] = set()

    def application(self) -> web.Application:
        """Return the web application, which watches the files while it runs."""
        application = web.Application()
        application.router.add_get("/", self._page)
        application.router.add_get("/events", self._events)
        application.router.add_get(r"/runs/{run:\d{1,3}}/index", self._part)
        application.router.add_get(
            r"/runs/{run:\d{1,3}}/group/{step:-?\d{1,15}}/{group:\d{1,10}}", self._part
        )
        application.router.add_get(r"/runs/{run:\d{1,3}}/problem/{problem:\d{1,10}}", self._part)
        application.cleanup_ctx.append(self._watching)
        return application

    async def _watching(self, _: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(self._watch())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                changed = await asyncio.to_thread(self._look)
            # A file is being replaced, a network share is gone, or a line is damaged: try again
            except (OSError, InputError) as error:
                print(f"the run cannot be read now: {error}", file=sys.stderr, flush=True)
                continue
            if changed:
                for listener in self._listeners:
                    listener.set()

    def _look(self) -> bool:
        with self._lock:
            changed = [reader.refresh() for reader in self._readers]
            if any(changed):
                self._news = self._overviews()
        return any(changed)

    def _overviews(self) -> bytes:
        return orjson.dumps(side_by_side(self._readers))

    def _rendered(self) -> str:
        with self._lock:
            return render(self._readers, live=True)

    def _packed(self, run: int) -> PackedRollouts:
        """Return the rollouts of one run, built on request and cached until the run adds some."""
        with self._lock:
            version, packed = self._rollouts.get(run, (-1, None))
            if packed is None or version != self._readers[run].version:
                packed = pack_rollouts(self._readers[run])
                self._rollouts[run] = (self._readers[run].version, packed)
            return packed

    async def _page(self, _: web.Request) -> web.Response:
        headers = {"Content-Security-Policy": policy(live=True), **_HEADERS}
        return web.Response(
            text=await asyncio.to_thread(self._rendered), content_type="text/html", headers=headers
        )

    async def _events(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **_HEADERS})
        await response.prepare(request)
        news = asyncio.Event()
        self._listeners.add(news)
        try:
            news.set()
            while True:
                try:
                    await asyncio.wait_for(news.wait(), KEEP_ALIVE_S)
                    news.clear()
                    await response.write(b"data: " + self._news + b"\n\n")
                except TimeoutError:
                    await response.write(b": still here\n\n")
        except ConnectionResetError:
            return response
        finally:
            self._listeners.discard(news)

    async def _part(self, request: web.Request) -> web.Response:
        names = request.match_info
        if int(names["run"]) >= len(self._readers):
            raise web.HTTPNotFound
        packed = await asyncio.to_thread(self._packed, int(names["run"]))
        part: bytes | None = packed.index
        if "problem" in names:
            part = packed.problems.get(int(names["problem"]))
        elif "group" in names:
            part = packed.groups.get((int(names["step"]), int(names["group"])))
        if part is None:
            raise web.HTTPNotFound
        return web.Response(body=part, content_type="application/octet-stream", headers=_HEADERS)


_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}


async def serve(readers: Sequence[RunReader], host: str, port: int) -> int:
    """Serve until interrupted, and return the exit code. Raises ConfigError if the address cannot
    be used."""
    page = LivePage(readers)
    async with listening(page.application(), host, port) as bound:
        print(f"live report: {url_of(host, bound)}/  (Ctrl-C ends it; the run goes on)", flush=True)
        if not is_loopback(host):
            print("note: anyone who reaches this address can read the run", flush=True)
        await stop_signal().wait()
    return 0
