"""Retries of submissions, and the decision who is to blame for a lost result.

An attempt fails in one of three ways:

- `LostError`: the submission began and has no result. It runs again. After a second loss it runs
  alone, in its own processes. After the third, a probe program with a known output runs in the
  same way. If the probe passes, the program is blamed and gets the attempt's status; if not, the
  sandbox is blamed.
- Any other `SandboxError`: the sandbox, or the connection to it, failed. Probe programs run with
  growing pauses until one passes; then the submission continues. All submissions share one outage:
  it is reported once, and ends for all of them.
- `RefusedError`: every attempt would fail in the same way.

A test that ends by its wall time alone runs once more, alone, with the same limits: a machine that
was busy or asleep is not the program's fault.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from code_rl.grading.sandbox.executor import (
    Execution,
    Job,
    Limits,
    LostError,
    RefusedError,
    Status,
    StdinInput,
    check_seconds,
)
from code_rl.util.concurrency import closing
from code_rl.util.errors import OutageError, SandboxError
from code_rl.util.outage import Outage

CONTROL_WALL_S = 12.0
"""Short enough for a server that allows only short runs."""
CONTROL = Job(
    "print(input()[::-1])",
    (StdinInput(b"control\n"),),
    limits=Limits(cpu_s=10, wall_s=CONTROL_WALL_S),
)
CONTROL_OUTPUT = b"lortnoc\n"
MAX_LOST_RESULTS = 3
"""Lost results tolerated per test; the last attempt runs alone. If a probe program then passes,
the program is blamed."""
EXCUSES = 3
"""Failures of one test, while controls pass, after which the submission ends as SandboxError."""
OUTAGES = 10
"""Outages at one test after which the submission ends as SandboxError too: a program that stops a
remote server each time must not block the run forever."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
EMBEDDED_OUTAGE_TIMEOUT_S, REMOTE_OUTAGE_TIMEOUT_S = 10.0, 600.0
"""Default seconds of an outage before it becomes an error."""

Attempt = Callable[[Job, bool], AsyncIterator[Execution]]
"""`attempt(job, alone)` tries `job` once. With `alone` it runs in new processes that serve nothing
else."""


def only_slept(execution: Execution, limits: Limits) -> bool:
    """Return True if the wall limit ended a test within its CPU limit, so that it is to run again.
    With `strict` that limit is a request's own, and the result stands."""
    return (
        execution.status is Status.TIME_LIMIT
        and execution.cpu_s <= limits.cpu_s
        and not limits.strict
    )


class Retries:
    """Runs jobs through `attempt`. It belongs to one event loop at a time.

    It waits out outages of up to `outage_timeout_s` seconds, and raises OutageError after that
    time, or as soon as `stop` is set.
    """

    def __init__(
        self,
        attempt: Attempt,
        *,
        outage_timeout_s: float,
        oversubscription: float = 0.0,
        repeats_sleepers: bool = True,
        stop: asyncio.Event | None = None,
    ) -> None:
        """`attempt` is called from `run` alone. `oversubscription` is how many submissions in
        flight share one processor, if the wall seconds of an execution include its waiting for one.
        Without `repeats_sleepers`, `attempt` repeats them. Raises ConfigError for an
        `outage_timeout_s` that is no time."""
        check_seconds("outage_timeout_s", outage_timeout_s)
        self._attempt, self._outage_timeout_s, self._oversubscription, self._stop = (
            attempt,
            outage_timeout_s,
            oversubscription,
            stop,
        )
        self._repeats_sleepers = repeats_sleepers
        self._outage: asyncio.Task[bool] | None = None
        self.count = 0
        """Failed attempts so far."""

    async def run(self, job: Job) -> AsyncIterator[Execution]:
        """Yield one execution per case, in order, like `Executor.run`. Executions already yielded
        stay valid, and their tests never run again.

        Once all tests took longer than the submission's seconds, the rest end with TIME_LIMIT
        without running. Raises SandboxError if the sandbox fails this submission repeatedly,
        RefusedError at once, OutageError if it stays unreachable.
        """
        done, lost_results, transient_failures, outages, spent = 0, 0, 0, 0, 0.0
        slept = False
        allowed = job.limits.submission_s(len(job.cases))
        while done < len(job.cases):
            if spent > allowed:
                yield Execution(
                    Status.TIME_LIMIT,
                    detail=f"the submission's {allowed:g} s for all of its tests are spent",
                )
                done += 1
                continue
            try:
                alone = slept or lost_results >= MAX_LOST_RESULTS - 1
                async with closing(self._attempt(job.since(done), alone)) as executions:
                    async for execution in executions:
                        spent += self._seconds(execution)
                        repeats = self._repeats_sleepers and not alone
                        slept = repeats and only_slept(execution, job.limits)
                        if slept:
                            break
                        done, lost_results, transient_failures, outages = done + 1, 0, 0, 0
                        yield execution
                        if execution.status is Status.COMPILE_ERROR:
                            return
                        if spent > allowed:
                            break
            except LostError as error:
                self.count += 1
                lost_results += 1
                if lost_results < MAX_LOST_RESULTS:
                    continue
                if await self._probe_failure() is None:
                    yield Execution(
                        error.blame, detail=f"the program ended its own sandbox: {error}"
                    )
                    done, lost_results, transient_failures, outages = done + 1, 0, 0, 0
                    continue
                lost_results = MAX_LOST_RESULTS - 1
                outages += 1
                await self._outlasts(error)
                if outages >= OUTAGES:
                    raise
            except RefusedError:
                raise
            except SandboxError as error:
                self.count += 1
                if await self._outlasts(error):
                    outages += 1
                else:
                    transient_failures += 1
                if transient_failures >= EXCUSES or outages >= OUTAGES:
                    raise

    def _seconds(self, execution: Execution) -> float:
        """Return the seconds of the submission's allowance that a test took: its compile time,
        and its CPU time or, if that is more, its wall time less `oversubscription` times its CPU
        time."""
        idle_s = execution.wall_s - self._oversubscription * execution.cpu_s
        return execution.compile_s + max(execution.cpu_s, idle_s)

    async def aclose(self) -> None:
        """Stop waiting for the end of an outage; submissions that wait for it are cancelled.
        Idempotent."""
        if self._outage is not None and not self._outage.done():
            self._outage.cancel()
            await asyncio.wait([self._outage])

    async def _outlasts(self, error: SandboxError) -> bool:
        """Return False if the sandbox answers at once, True if it was unreachable and is back.
        Concurrent callers share one wait, which goes on if a caller is cancelled. Raises as `_wait`
        does."""
        if self._outage is None or self._outage.done():
            self._outage = asyncio.create_task(self._wait(error))
            self._outage.add_done_callback(_seen)
        return await asyncio.shield(self._outage)

    async def _wait(self, error: SandboxError) -> bool:
        """Wait, with growing pauses, until the sandbox answers a probe; True if it was away.

        Raises OutageError at the limit, and once `stop` is set.
        """
        limit_s = self._outage_timeout_s
        outage = Outage("the sandbox", limit_s, OutageError)
        pause_s = min(FIRST_PAUSE_S, limit_s / 20)
        while (probe_failure := await self._probe_failure()) is not None:
            if self._stop is not None and self._stop.is_set():
                raise OutageError(
                    f"the sandbox does not answer ({probe_failure}), and the run was asked to stop"
                ) from error
            outage.missed(probe_failure)
            await self._pause(min(pause_s, max(limit_s - outage.seconds, 0.01)))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        waited = outage.away
        outage.answered()
        return waited

    async def _pause(self, seconds: float) -> None:
        """Sleep for `seconds`, or until `stop` is set, if that is earlier."""
        if self._stop is None:
            await asyncio.sleep(seconds)
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)

    async def _probe_failure(self) -> str | None:
        """Run a probe program with a known output, alone. Return the failure as text, or None if
        the sandbox works."""
        try:
            async with closing(self._attempt(CONTROL, True)) as executions:
                answers = [execution async for execution in executions]
        except SandboxError as error:
            return str(error)
        outputs = [answer.stdout for answer in answers]
        return (
            None
            if outputs == [CONTROL_OUTPUT]
            else f"a probe program came back with {answers!r:.200}"
        )


def _seen(outage: asyncio.Task[bool]) -> None:
    """Retrieve the outcome, since all callers may have left."""
    if not outage.cancelled():
        outage.exception()
