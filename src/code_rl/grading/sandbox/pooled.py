"""Several machines used as one: slots by capacity, least-loaded balancing, health checks.

A failing machine is taken out and checked until it is well. If it fails again right after its
return, it stays out twice as long, so one that passes checks but fails every program attracts no
load.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

from code_rl.grading.sandbox.executor import Execution, Job, LostError, RefusedError
from code_rl.util.concurrency import closing
from code_rl.util.errors import SandboxError

PROBE_INTERVAL_S = 0.25
GAMBLE_AFTER_S = 1.0
"""Seconds without a healthy machine after which an unhealthy one is tried."""
LONGEST_PAUSE_S = 15.0

logger = logging.getLogger("code_rl.outages")


class Member(abc.ABC):
    """A server that runs `slots` submissions at once."""

    def __init__(self, name: str, slots: int) -> None:
        """Make a healthy machine without submissions. `name` is for messages."""
        self.name, self.slots = name, slots
        self.in_flight = 0
        self.failures = 0
        self.down_until: float | None = None
        """None while healthy; else the `time.monotonic()` before which its health checks do not
        count."""
        self.spoken_of: float | None = None
        """The `time.monotonic()` when its failure was reported to the user, or None."""

    @abc.abstractmethod
    def attempt(self, job: Job, alone: bool) -> AsyncIterator[Execution]:
        """Try `job` once on this machine, as a `blame.Attempt`. A LostError or a RefusedError
        says nothing about the machine; any other SandboxError takes it out of the pool."""

    @abc.abstractmethod
    async def well(self) -> bool:
        """Return True if the machine passes its health check, within seconds: the pool waits for
        all checks together. A failed check is False, not an exception."""


AnyMember = TypeVar("AnyMember", bound=Member)


class Pool(Generic[AnyMember]):
    """Runs each attempt on the least loaded healthy machine of `members`, which may change. It
    belongs to one event loop."""

    def __init__(self) -> None:
        self.members: list[AnyMember] = []
        self._waiting: deque[asyncio.Future[AnyMember]] = deque()
        self._prober: asyncio.Task[None] | None = None

    async def attempt(self, job: Job, alone: bool) -> AsyncIterator[Execution]:
        """Try `job` once on one machine, as a `blame.Attempt`, and note whether it failed. Raises
        as that machine's `attempt` does, and SandboxError if there is no machine."""
        async with self.slot() as member:
            try:
                async with closing(member.attempt(job, alone)) as executions:
                    async for execution in executions:
                        self.succeeded(member)
                        yield execution
            except RefusedError:
                raise
            except LostError as error:
                (self.failed if error.unanswered else self.succeeded)(member, str(error))
                raise
            except SandboxError as error:
                self.failed(member, str(error))
                raise

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[AnyMember]:
        """Hold one slot during the block.

        Waits for busy machines without limit. If none is healthy for `GAMBLE_AFTER_S`, gives a slot
        of an unhealthy one: the caller's attempt then fails there and uses its retry budget. Raises
        SandboxError if there is no machine by then.
        """
        member = await self._acquire()
        try:
            yield member
        finally:
            member.in_flight -= 1
            self._dispatch()

    def add(self, member: AnyMember) -> None:
        """Add a machine that has joined; waiting submissions begin on it at once."""
        self.members.append(member)
        self._dispatch()

    def remove(self, member: AnyMember) -> None:
        """Remove a machine, if it is in the pool; its running submissions fail by themselves."""
        if member in self.members:
            self.members.remove(member)

    def succeeded(self, member: AnyMember, _why: str = "") -> None:
        """Record that the machine ran a program: it is healthy, and its next pause is short again.
        Its return is logged if its failure was."""
        if member.spoken_of is not None:
            logger.warning(
                "sandbox %s is back after %.0f s", member.name, time.monotonic() - member.spoken_of
            )
            member.spoken_of = None
        member.failures = 0
        self._bring_back(member)

    def failed(self, member: AnyMember, why: str) -> None:
        """Record that the machine failed: take it out until it passes a health check after its
        pause.

        Submissions that were in flight at the same time fail together and count once. A failure
        of a machine that is out, or has left, does not count.
        """
        if member not in self.members or member.down_until is not None:
            return
        # `blame` reports the outage of an only machine.
        if member.spoken_of is None and len(self.members) > 1:
            member.spoken_of = time.monotonic()
            logger.warning("sandbox %s is out, the others go on (%s)", member.name, why)
        member.failures += 1
        pause = min(PROBE_INTERVAL_S * 2 ** min(member.failures - 1, 10), LONGEST_PAUSE_S)
        member.down_until = time.monotonic() + pause
        if self._prober is None or self._prober.done():
            self._prober = asyncio.get_running_loop().create_task(self._probe())

    async def aclose(self) -> None:
        """Stop probing. Machines stay in the pool; those that are down stay so. Idempotent."""
        if self._prober is not None:
            self._prober.cancel()
            await asyncio.gather(self._prober, return_exceptions=True)

    async def _acquire(self) -> AnyMember:
        """Wait for a free member and count one more submission there; if all are down for a second,
        gamble on the least bad one. Raises SandboxError if there is no member by then. A cancelled
        turn is given back."""
        turn: asyncio.Future[AnyMember] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._dispatch()
        try:
            while not (await asyncio.wait([turn], timeout=GAMBLE_AFTER_S))[0]:
                if not self.members:
                    turn.cancel()
                    raise SandboxError("none of the machines that run programs is left")
                gamble = self._least_bad()
                if gamble is not None:
                    turn.cancel()
                    gamble.in_flight += 1
                    return gamble
            return turn.result()
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                turn.result().in_flight -= 1
                self._dispatch()
            turn.cancel()
            raise

    def _dispatch(self) -> None:
        """Give waiting submissions to the least loaded healthy members, first come, first served,
        and count them there."""
        while self._waiting:
            if self._waiting[0].done():
                self._waiting.popleft()
                continue
            free = [m for m in self.members if m.down_until is None and m.in_flight < m.slots]
            if not free:
                return
            member = min(free, key=lambda m: m.in_flight / m.slots)
            member.in_flight += 1
            self._waiting.popleft().set_result(member)

    def _least_bad(self) -> AnyMember | None:
        """Return the member with a free slot whose pause ends first, or None if one is healthy or
        none has a slot."""
        if any(member.down_until is None for member in self.members):
            return None
        free = [member for member in self.members if member.in_flight < member.slots]
        return min(free, key=lambda m: m.down_until or 0.0, default=None)

    def _bring_back(self, member: AnyMember) -> None:
        """Count the machine as healthy, and give it waiting submissions. Its number of failures
        stays."""
        member.down_until = None
        self._dispatch()

    async def _probe(self) -> None:
        """Check members that are down, once their pause is over, until all are back or removed."""
        while any(member.down_until is not None for member in self.members):
            await asyncio.sleep(PROBE_INTERVAL_S)
            due = [
                member
                for member in self.members
                if member.down_until is not None and member.down_until <= time.monotonic()
            ]
            answers = await asyncio.gather(*(member.well() for member in due))
            for member, alive in zip(due, answers, strict=True):
                if alive:
                    self._bring_back(member)
