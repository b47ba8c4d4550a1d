"""An Executor on Sandbox Fusion servers.

Each request carries the harness, the program and the inputs of one chunk of tests. Outputs come
back in a fetched file, and expected outputs never leave this process. Chunks grow (1, 4, 16, 64
tests), so a program that fails its first test is cheap. A trusted job, which may see expected
outputs, runs on this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from aiohttp import ClientSession, TCPConnector

from code_rl.grading.sandbox.executor import Execution, Job, default_slots, require_linux
from code_rl.grading.sandbox.fusion.attempts import Attempts
from code_rl.grading.sandbox.fusion.protocol import RunRequest, ping_url, run_urls
from code_rl.grading.sandbox.fusion.transport import ping, post_run
from code_rl.grading.sandbox.pooled import Server, ServerPool
from code_rl.grading.sandbox.retries import REMOTE_OUTAGE_TIMEOUT_S, RefusedError, Retries
from code_rl.util.concurrency import closing
from code_rl.util.errors import ConfigError, IsolationError, SandboxError
from code_rl.util.proxies import settle_proxies, via_proxy

DEFAULT_URL = "http://localhost:8080/run_code"
DEFAULT_CONCURRENCY = 4
MEASURE = "import os\nprint(len(os.sched_getaffinity(0)))\n"
"""Prints a server's number of processors. The server gets twice as many slots, like the embedded
sandbox."""
GRACE_S = 30.0
CHECK_S = 10.0
OVERSUBSCRIPTION = 8.0
"""Submissions that may share a server's processor. With more, waiting counts against a submission's
own seconds."""

if TYPE_CHECKING:
    from code_rl.grading.sandbox.local.pool import EmbeddedSandbox

logger = logging.getLogger("code_rl.grading.sandbox")


@dataclass(slots=True)
class _PerLoop:
    """The resources of one event loop. `local` runs trusted jobs and is made for the first one."""

    attempts: Attempts
    retries: Retries
    asked: asyncio.Task[list[float | None]]
    """Asks the servers how long a program may run."""
    local: EmbeddedSandbox | None = None


class FusionClient:
    """Runs submissions on one or several Sandbox Fusion servers.

    Args:
        urls: `/run_code` addresses, or base addresses. None: SANDBOX_URL, comma-separated (default
            http://localhost:8080/run_code).
        concurrency: requests in flight on each server. None: SANDBOX_MAX_CONCURRENCY, else twice
            the processors that `check` finds there, at least 4 (4 until `check` is called).
        outage_timeout_s: how long to wait for servers that are unreachable or busy.
        stop: an event that ends that wait.
        grace_s: how long an answer may take beyond its run's own time limit (queueing, transfer).

    Raises:
        ConfigError: an address or a number is invalid.

    It can be used from several event loops, one after another. Each loop gets its own session and
    view of the servers' health, which are closed with the loop.
    """

    def __init__(
        self,
        urls: Sequence[str] | None = None,
        concurrency: int | None = None,
        *,
        outage_timeout_s: float = REMOTE_OUTAGE_TIMEOUT_S,
        stop: asyncio.Event | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        if urls is None:
            self.urls = run_urls(os.environ.get("SANDBOX_URL") or DEFAULT_URL)
        else:
            self.urls = run_urls(",".join([urls] if isinstance(urls, str) else urls), "urls")
        self._measures = concurrency is None and not os.environ.get("SANDBOX_MAX_CONCURRENCY")
        self.concurrency = _concurrency(concurrency)
        self._outage_timeout_s, self._stop, self._grace_s = outage_timeout_s, stop, grace_s
        self._retries_before = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lifetime: AsyncGenerator[_PerLoop, None]
        self._state: _PerLoop

    @property
    def description(self) -> str:
        """One line about the servers for users."""
        return f"Sandbox Fusion at {', '.join(self.urls)} ({self.slots} requests at once)"

    @property
    def slots(self) -> int:
        """The number of submissions that run at once, on all servers."""
        if self._loop is None:
            return self.concurrency * len(self.urls)
        return sum(server.slots for server in self._state.attempts.pool.servers)

    @property
    def retries(self) -> int:
        """The number of failed attempts so far."""
        return self._retries_before + (self._state.retries.count if self._loop else 0)

    async def run(self, job: Job) -> AsyncIterator[Execution]:
        """Yield one Execution per case, in order; see the Executor contract."""
        state = await self._per_loop()
        if job.trusted:
            if state.local is None:
                state.local = _local_sandbox()
            executions = state.local.run(job)
        else:
            await asyncio.shield(state.asked)
            executions = state.retries.run(job)
        async with closing(executions):
            async for execution in executions:
                yield execution

    async def check(self) -> None:
        """Find out how many submissions each server runs at once.

        Raises SandboxError, naming the addresses, if no server answers its health check, or if one
        refuses to run programs.
        """
        attempts = (await self._per_loop()).attempts
        servers, session = attempts.pool.servers, attempts.session
        refusals = asyncio.gather(
            *(_refusal(session, server, self._measures) for server in servers)
        )
        answers = await _ask(session, attempts.pool)
        for refusal in filter(None, await refusals):
            raise SandboxError(refusal)
        if all(answer is None for answer in answers):
            raise SandboxError(
                f"no Sandbox Fusion server answers at {', '.join(self.urls)}"
                f"{via_proxy(self.urls[0])}; start one (`code-rl sandbox port=8080`) or set "
                "SANDBOX_URL"
            )

    async def aclose(self) -> None:
        """Close the resources of this event loop. Idempotent; a later `run` opens them again."""
        if self._loop is asyncio.get_running_loop():
            await self._lifetime.aclose()

    async def _per_loop(self) -> _PerLoop:
        if self._loop is not asyncio.get_running_loop():
            # `shutdown_asyncgens` of its loop closes a started asynchronous generator, so
            # asyncio.run closes the session.
            self._lifetime = self._open()
            self._state = await anext(self._lifetime)
            self._loop = asyncio.get_running_loop()
        return self._state

    async def _open(self) -> AsyncGenerator[_PerLoop, None]:
        for url in self.urls:
            settle_proxies(url)
        # The number of requests is limited instead of that of connections.
        session = ClientSession(connector=TCPConnector(limit=0, ttl_dns_cache=60), trust_env=True)
        servers = [Server(url, self.concurrency) for url in self.urls]
        pool = ServerPool(servers, partial(_answers, session))
        attempts = Attempts(session, pool, self._outage_timeout_s, self._grace_s)
        retries = Retries(
            attempts.run,
            outage_timeout_s=self._outage_timeout_s,
            oversubscription=OVERSUBSCRIPTION,
            stop=self._stop,
        )
        state = _PerLoop(attempts, retries, asyncio.create_task(_ask(session, pool)))
        try:
            yield state
        finally:
            self._loop = None
            self._retries_before += retries.count
            state.asked.cancel()
            await retries.aclose()
            await pool.aclose()
            await session.close()
            if state.local is not None:
                await state.local.aclose()


def _local_sandbox() -> EmbeddedSandbox:
    """Return the sandbox for trusted jobs. These are the problem author's programs, so weak
    isolation is better than no checker. Raises ConfigError if this machine has no embedded
    sandbox."""
    require_linux(
        "a problem's checker, which runs on this machine,",
        "leave such problems out (code-rl prepare checkers=drop), or start this command on Linux",
    )
    from code_rl.grading.sandbox.local.pool import EmbeddedSandbox

    try:
        return EmbeddedSandbox()
    except IsolationError as error:
        logger.warning("checkers run on this machine without isolation: %s", error)
        return EmbeddedSandbox(isolation="none")


async def _answers(session: ClientSession, server: Server) -> bool:
    return await ping(session, ping_url(server.name)) is not None


async def _refusal(session: ClientSession, server: Server, measures: bool) -> str | None:
    """Return why the server refuses programs (a missing key, another kind of server), or None if it
    accepts them or is busy.

    With `measures` its slots are set from its number of processors.
    """
    try:
        answer = await post_run(session, server.name, RunRequest(MEASURE), CHECK_S)
    except RefusedError as error:
        return str(error)
    except SandboxError:
        return None
    if measures and answer.run_result is not None:
        with contextlib.suppress(ValueError, OverflowError):
            server.slots = default_slots(float(answer.run_result.stdout))
    return None


async def _ask(session: ClientSession, pool: ServerPool[Server]) -> list[float | None]:
    """Return each server's answer to a health check. The shortest run limit applies to all
    servers."""
    answers = await asyncio.gather(
        *(ping(session, ping_url(server.name)) for server in pool.servers)
    )
    pool.longest_run_s = min(
        pool.longest_run_s, *(answer for answer in answers if answer is not None), math.inf
    )
    return answers


def _concurrency(value: int | None) -> int:
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
