"""Several machines used as one: slots by capacity, least-loaded balancing, health checks.

A failing server is taken out and pinged until it answers. If it fails again right after its return,
it stays out twice as long, so a server that answers pings but fails every run attracts no load.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from code_rl.util.errors import SandboxError

PROBE_INTERVAL_S = 0.25
LONGEST_PAUSE_S = 15.0

logger = logging.getLogger("code_rl.outages")


@dataclass(slots=True, eq=False)
class Server:
    """One server, or one node of a cluster, as seen from one event loop: its address, and how many
    submissions it runs at once."""

    name: str
    slots: int
    in_flight: int = 0
    failures: int = 0
    down_until: float | None = None
    """None while healthy; else the `time.monotonic()` before which its pings do not count."""
    spoken_of: float | None = None
    """The `time.monotonic()` when its failure was reported to the user, or None."""


AnyServer = TypeVar("AnyServer", bound=Server)


class ServerPool(Generic[AnyServer]):
    """Assigns requests to the least loaded healthy server of `servers`, which may change. It
    belongs to one event loop."""

    def __init__(
        self, servers: Iterable[AnyServer], ping: Callable[[AnyServer], Awaitable[bool]]
    ) -> None:
        self.servers = list(servers)
        self.longest_run_s = math.inf
        """The shortest run limit that any server has named."""
        self._ping = ping
        self._order = itertools.count()
        self._waiting: list[tuple[int, int, asyncio.Future[AnyServer]]] = []
        self._prober: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def slot(
        self, priority: int = 0, outage_timeout_s: float = 5.0
    ) -> AsyncIterator[AnyServer]:
        """Hold one slot during the block. A lower `priority` is served first.

        Waits for busy servers without limit. If no server is healthy for `outage_timeout_s`, gives
        a slot of an unhealthy one: the caller's attempt then fails there and uses its retry budget.
        Raises SandboxError if there is no server by then.
        """
        server = await self._acquire(priority, outage_timeout_s)
        try:
            yield server
        finally:
            server.in_flight -= 1
            self._dispatch()

    def add(self, server: AnyServer) -> None:
        """Add a server that has joined."""
        self.servers.append(server)
        self._dispatch()

    def remove(self, server: AnyServer) -> None:
        """Remove a server; its running requests fail by themselves."""
        if server in self.servers:
            self.servers.remove(server)

    def succeeded(self, server: AnyServer) -> None:
        """Record that the server completed a request."""
        if server.spoken_of is not None:
            logger.warning(
                "sandbox %s is back after %.0f s", server.name, time.monotonic() - server.spoken_of
            )
            server.spoken_of = None
        server.failures = 0
        self._bring_back(server)

    def failed(self, server: AnyServer, why: str) -> None:
        """Record that the server failed a request: take it out until a ping succeeds after its
        pause.

        Requests that were in flight at the same time fail together and count once. A failure while
        the server is out does not count.
        """
        if server.down_until is not None:
            return
        if (
            server.spoken_of is None and len(self.servers) > 1
        ):  # `retries` reports the outage of an only server
            server.spoken_of = time.monotonic()
            logger.warning("sandbox %s is out, the others go on (%s)", server.name, why)
        server.failures += 1
        pause = min(PROBE_INTERVAL_S * 2 ** min(server.failures - 1, 10), LONGEST_PAUSE_S)
        server.down_until = time.monotonic() + pause
        if self._prober is None or self._prober.done():
            self._prober = asyncio.get_running_loop().create_task(self._probe())

    async def aclose(self) -> None:
        """Stop probing."""
        if self._prober is not None:
            self._prober.cancel()
            await asyncio.gather(self._prober, return_exceptions=True)

    async def _acquire(self, priority: int, outage_timeout_s: float) -> AnyServer:
        future: asyncio.Future[AnyServer] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (priority, next(self._order), future))
        self._dispatch()
        try:
            while True:
                done, _ = await asyncio.wait([future], timeout=outage_timeout_s)
                if done:
                    return future.result()
                if not self.servers:
                    future.cancel()
                    raise SandboxError("none of the machines that run programs is left")
                gamble = self._least_bad()
                if gamble is not None:
                    future.cancel()
                    gamble.in_flight += 1
                    return gamble
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                future.result().in_flight -= 1
                self._dispatch()
            future.cancel()
            raise

    def _dispatch(self) -> None:
        while self._waiting:
            if self._waiting[0][2].done():
                heapq.heappop(self._waiting)
                continue
            free = [s for s in self.servers if s.down_until is None and s.in_flight < s.slots]
            if not free:
                return
            server = min(free, key=lambda s: s.in_flight / s.slots)
            server.in_flight += 1
            heapq.heappop(self._waiting)[2].set_result(server)

    def _least_bad(self) -> AnyServer | None:
        if any(server.down_until is None for server in self.servers):
            return None
        free = [server for server in self.servers if server.in_flight < server.slots]
        return min(free, key=lambda s: s.down_until or 0.0, default=None)

    def _bring_back(self, server: AnyServer) -> None:
        server.down_until = None
        self._dispatch()

    async def _probe(self) -> None:
        while any(server.down_until is not None for server in self.servers):
            await asyncio.sleep(PROBE_INTERVAL_S)
            due = [
                s
                for s in self.servers
                if s.down_until is not None and s.down_until <= time.monotonic()
            ]
            answers = await asyncio.gather(*(self._ping(server) for server in due))
            for server, alive in zip(due, answers, strict=True):
                if alive:
                    self._bring_back(server)
