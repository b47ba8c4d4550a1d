"""Sandbox Fusion servers, by their addresses."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from urllib.parse import urlsplit

from aiohttp import ClientSession, TCPConnector

from code_rl.grading.sandbox.executor import RefusedError, default_slots
from code_rl.grading.sandbox.fusion.protocol import RunRequest, run_urls
from code_rl.grading.sandbox.fusion.servers import FusionServer
from code_rl.grading.sandbox.fusion.transport import TOKEN_VARIABLE, bearer, post_run
from code_rl.grading.sandbox.pooled import Pool
from code_rl.grading.sandbox.remote import RemoteExecutor
from code_rl.util.errors import ConfigError, SandboxError
from code_rl.util.proxies import settle_proxies, via_proxy

DEFAULT_CONCURRENCY = 4
MEASURE = "import os\nprint(len(os.sched_getaffinity(0)))\n"
"""Prints a server's number of processors. The server gets twice as many slots, like the embedded
sandbox."""
GRACE_S = 30.0
CHECK_S = 10.0


class FusionServers(RemoteExecutor):
    """One or several Sandbox Fusion servers.

    Args:
        urls: `/run_code` addresses, or base addresses.
        concurrency: requests in flight on each server. None: SANDBOX_MAX_CONCURRENCY, else twice
            the processors that `check` finds there, at least 4 (4 until `check` is called).
        outage_timeout_s: how long an outage may last, and a busy server may ask to wait.
        grace_s: how long an answer may take beyond its run's own time limit (queueing, transfer).

    Raises ConfigError for an invalid address or number.
    """

    pool: Pool[FusionServer]
    oversubscription = 8.0
    """Submissions that may share a server's processor. With more, waiting counts against a
    submission's own seconds."""

    def __init__(
        self,
        urls: Sequence[str],
        concurrency: int | None = None,
        *,
        outage_timeout_s: float,
        grace_s: float = GRACE_S,
        stop: asyncio.Event | None = None,
    ) -> None:
        """Read the addresses and the number of requests; no connection is opened before `ready`.
        Raises ConfigError as the class says."""
        super().__init__(outage_timeout_s, stop)
        self.urls = run_urls(",".join(urls), "urls")
        self._measures = concurrency is None and not os.environ.get("SANDBOX_MAX_CONCURRENCY")
        self.concurrency = _concurrency(concurrency)
        self._outage_timeout_s, self._grace_s = outage_timeout_s, grace_s
        self._first_look: asyncio.Future[list[bool]] | None = None

    @property
    def description(self) -> str:
        """One line about the servers for users: their addresses and the requests at once."""
        return f"Sandbox Fusion at {', '.join(self.urls)} ({self.slots} requests at once)"

    @property
    def slots(self) -> int:
        """The number of submissions that run at once, on all servers; `check` may change it."""
        members = self.pool.members
        return sum(server.slots for server in members) or self.concurrency * len(self.urls)

    async def ready(self) -> None:
        """Open the connections, and find out which servers take jobs; the first call does so, later
        ones wait for it. Servers that do not answer stay in the pool. Raises ConfigError for a
        proxy that cannot be used."""
        await self._looked()

    async def check(self) -> None:
        """Find out how many submissions each server runs at once, by running a program there;
        `slots` follow unless the user has set them.

        Raises SandboxError, naming the addresses, if no server answers its health check, or if one
        refuses to run programs.
        """
        well = await self._looked()
        refusals = await asyncio.gather(*map(self._refusal, self.pool.members))
        for refusal in filter(None, refusals):
            raise SandboxError(refusal)
        if not any(well):
            raise SandboxError(
                f"no Sandbox Fusion server answers at {', '.join(self.urls)}"
                f"{via_proxy(self.urls[0])}; start one there (`code-rl sandbox port="
                f"{urlsplit(self.urls[0]).port or 80}`), or give the address of one that runs "
                "(executor= or SANDBOX_URL)"
            )

    async def release(self) -> None:
        """Close the connections; a later `ready` opens them again. Idempotent."""
        if self._first_look is not None:
            self._first_look.cancel()
            self._first_look = None
            await self._session.close()
            self.pool.members.clear()

    async def _looked(self) -> list[bool]:
        """Return for each server, in the order of `urls`, whether it answered its first health
        check. The first call opens the connections and asks."""
        if self._first_look is None:
            for url in self.urls:
                settle_proxies(url)
            # The number of requests is limited instead of that of connections.
            connector = TCPConnector(limit=0, ttl_dns_cache=60)
            self._session = ClientSession(
                headers=bearer(os.environ.get(TOKEN_VARIABLE)), connector=connector, trust_env=True
            )
            for url in self.urls:
                self.pool.add(
                    FusionServer(
                        self._session,
                        url,
                        self.concurrency,
                        self._outage_timeout_s,
                        self._grace_s,
                    )
                )
            self._first_look = asyncio.ensure_future(
                asyncio.gather(*(server.well() for server in self.pool.members))
            )
        return await asyncio.shield(self._first_look)

    async def _refusal(self, server: FusionServer) -> str | None:
        """Return why the server refuses programs (a missing key, another kind of server), or None
        if it accepts them, is busy or does not answer. Its slots are set from its number of
        processors, unless the user has set them."""
        try:
            answer = await post_run(self._session, server.url, RunRequest(MEASURE), CHECK_S)
        except RefusedError as error:
            return str(error)
        except SandboxError:
            return None
        if self._measures and answer.run_result is not None:
            with contextlib.suppress(ValueError, OverflowError):
                server.slots = default_slots(float(answer.run_result.stdout))
        return None


def _concurrency(value: int | None) -> int:
    """Return the requests at once on each server: `value`, or else SANDBOX_MAX_CONCURRENCY, the
    course's variable, or else 4. Raises ConfigError that names its source if it is no whole number
    above 0."""
    name, shown = "concurrency", str(value)
    if value is None:
        name, shown = (
            "SANDBOX_MAX_CONCURRENCY",
            os.environ.get("SANDBOX_MAX_CONCURRENCY") or str(DEFAULT_CONCURRENCY),
        )
    try:
        number = int(shown)
    except ValueError:
        number = 0
    if number < 1:
        raise ConfigError(
            f"{name}={shown!r} is not a positive whole number; give how many requests a server "
            "takes at once"
        )
    return number
