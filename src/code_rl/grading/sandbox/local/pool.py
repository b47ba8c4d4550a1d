"""EmbeddedSandbox: workers by kind of job, a fair queue for them, and replacement of dead
workers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import resource
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from code_rl.grading.languages import PYTHON
from code_rl.grading.sandbox.blame import EMBEDDED_OUTAGE_TIMEOUT_S, Retries
from code_rl.grading.sandbox.executor import (
    Execution,
    Job,
    RefusedError,
    case_messages,
    default_slots,
)
from code_rl.grading.sandbox.local.cgroups import Groups
from code_rl.grading.sandbox.local.execution import Streams
from code_rl.grading.sandbox.local.guest import wire
from code_rl.grading.sandbox.local.guest.confinement import confine
from code_rl.grading.sandbox.local.launcher import PRELOADED_PACKAGES, Zygote, strongest
from code_rl.grading.sandbox.local.link import WorkerLink
from code_rl.grading.sandbox.local.programs import Programs
from code_rl.grading.sandbox.local.slots import Slots
from code_rl.util.concurrency import closing
from code_rl.util.errors import ConfigError, SandboxError

LEVELS = (confine.FULL, confine.LANDLOCK, confine.NONE)
_END_TIMEOUT_S = 30.0
_DESCRIPTORS = 8192
_SCIENTIFIC = re.compile(rf"\b(?:{'|'.join(PRELOADED_PACKAGES)}|scipy|pandas)\b")
_NAMES_PROC = re.compile(r"/(?:proc|dev)\b")
"""/dev/stdin and similar names are links into /proc."""
_SEARCHED_FILE_BYTES = 1 << 20


class _Kind(NamedTuple):
    """The purpose of a worker. No worker, and no process that workers are forked from, serves two
    kinds."""

    trusted: bool
    scientific: bool

    @classmethod
    def of(cls, job: Job) -> _Kind:
        """Return the kind of a job. It is `scientific` if the program or a file of the job names a
        package that is worth preloading."""
        files = (
            data.decode("latin-1")
            for data in job.files.values()
            if len(data) <= _SEARCHED_FILE_BYTES
        )
        return cls(job.trusted, any(map(_SCIENTIFIC.search, (job.code, job.preamble, *files))))


class EmbeddedSandbox:
    """Runs programs in namespaces of this machine; an `Executor`.

    `concurrency` is the number of submissions that run at once (default: twice the processors, at
    least four); others wait in order of arrival. A submission whose test has been idle for a while
    lends its slot to another if their memory limits allow it. Trusted jobs have their own zygotes
    and workers.

    `isolation` is auto (the strongest level available, never none), full, landlock or none.
    `outage_timeout_s` is how long to wait for a machine that cannot run a probe program; setting
    `stop` ends the wait. The sandbox may be created outside an event loop and used from several in
    turn, but from one thread at a time.
    """

    def __init__(
        self,
        concurrency: int | None = None,
        isolation: str = "auto",
        outage_timeout_s: float = EMBEDDED_OUTAGE_TIMEOUT_S,
        stop: asyncio.Event | None = None,
    ) -> None:
        """Start the first zygote, which takes a fraction of a second and blocks. None for
        `concurrency` is the default above. It raises this process's soft limit of open files.

        Raises ConfigError for bad arguments and low limits, IsolationError if the level is not
        available, SandboxError if the zygote does not start.
        """
        if concurrency is not None and concurrency < 1:
            raise ConfigError(
                f"concurrency={concurrency}: use a number of at least 1, or leave it out"
            )
        if isolation not in (*LEVELS, "auto"):
            raise ConfigError(f"isolation={isolation!r}: use auto, full, landlock or none")
        processors = len(os.sched_getaffinity(0))
        self.slots = concurrency if concurrency is not None else default_slots(processors)
        self._groups = Groups()
        self._zygotes: dict[_Kind, Zygote] = {}
        self._starts: dict[_Kind, asyncio.Task[Zygote]] = {}
        self._idle: defaultdict[_Kind, list[WorkerLink]] = defaultdict(list)
        self._workers: set[WorkerLink] = set()
        memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self._slots = Slots(self.slots, lending_bytes=memory_bytes // 2)
        self._closed = False
        self._retries = Retries(self._attempt, outage_timeout_s=outage_timeout_s, stop=stop)
        _allow_descriptors()
        zygote = strongest(
            isolation,
            lambda level: Zygote(level, scientific=False, counted=self._groups.counts_processes),
            "isolation=none runs programs without protection, if that is really wanted",
        )
        self.isolation = zygote.level
        self._zygotes[_Kind(trusted=False, scientific=False)] = zygote
        self._programs = Programs(self.slots, self.isolation)

    @property
    def description(self) -> str:
        """One line about the sandbox for users: its isolation level and its workers."""
        return f"embedded sandbox, isolation {self.isolation}, {self.slots} workers"

    @property
    def retries(self) -> int:
        """The number of failed attempts so far."""
        return self._retries.count

    async def check(self) -> None:
        """Do nothing: the isolation was tried when the sandbox was made."""

    def run(self, job: Job) -> AsyncIterator[Execution]:
        """Yield one Execution per case, in order, as `Executor.run` says. Raises SandboxError,
        ConfigError for a language that is not installed, and RefusedError after `close`."""
        return self._retries.run(job)

    async def _attempt(self, job: Job, alone: bool) -> AsyncIterator[Execution]:
        """Run `job` once and yield its executions, as a `blame.Attempt`; with `alone`, in a worker
        made for it. It waits for a slot first. Raises LostError, SandboxError."""
        if job.language != PYTHON:
            async with self._slots.slot(), closing(self._programs.attempt(job)) as executions:
                async for execution in executions:
                    yield execution
            return
        cases = case_messages(job)
        message = _message(job)

        def streams(index: int) -> Streams:
            return Streams(cases[index], job.fn_name is not None, bool(job.fetch))

        async with (
            self._slots.slot() as slot,
            self._worker(_Kind.of(job), alone) as link,
            contextlib.aclosing(link.run(message, len(cases), job.files, streams)) as found,
        ):
            async for item in found:
                if isinstance(item, Execution):
                    yield item
                else:
                    self._slots.offer(slot, message.memory_bytes)

    @contextlib.asynccontextmanager
    async def _worker(self, kind: _Kind, alone: bool) -> AsyncIterator[WorkerLink]:
        """Lend a worker; afterwards it is kept for the next job of its kind, or discarded if it was
        lost or alone, or enough are idle. Raises SandboxError, RefusedError after `close`."""
        link = await self._take_worker(kind, alone)
        try:
            yield link
        finally:
            if (
                link.lost
                or self._closed
                or alone
                or sum(map(len, self._idle.values())) >= self.slots
            ):
                self._discard(link)
            else:
                self._idle[kind].append(link)

    async def aclose(self) -> None:
        """Stop all workers and release everything, waiting for their end (a zygote that does not
        end in two seconds is killed). Idempotent; the sandbox cannot be used again."""
        self.close()
        await self._retries.aclose()
        await _soon(lambda: not any(zygote.alive() for zygote in self._zygotes.values()))
        for zygote in self._zygotes.values():
            if zygote.alive():
                zygote.process.kill()
            zygote.wait(_END_TIMEOUT_S)
        self._zygotes.clear()
        await _soon(self._groups.gone)

    def close(self) -> None:
        """Tell everything to end, without waiting; `aclose` also waits. Running submissions fail
        with SandboxError. Idempotent."""
        self._closed = True
        for link in list(self._workers):
            self._discard(link)
        for idle in self._idle.values():
            idle.clear()
        for zygote in self._zygotes.values():
            zygote.close()
        self._programs.close()

    async def __aenter__(self) -> EmbeddedSandbox:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _take_worker(self, kind: _Kind, fresh: bool) -> WorkerLink:
        """Return an idle worker of this kind, or fork a new one (always if `fresh`), for which an
        idle one of another kind is ended if all slots have workers. Raises SandboxError,
        RefusedError after `close`."""
        zygote = await self._zygote(kind)
        if self._closed:
            raise RefusedError("the sandbox is closed")
        while self._idle[kind] and not fresh:
            link = self._idle[kind].pop()
            if not link.lost:
                return link
        for others in self._idle.values():
            if len(self._workers) >= self.slots and others:
                self._discard(others.pop(0))
        try:
            process = zygote.spawn_worker()
        except OSError as error:
            raise SandboxError(f"no worker could be started: {error.strerror or error}") from error
        try:
            link = WorkerLink(process, self._groups.enclose(process.pid))
        except OSError as error:
            process.end()
            raise SandboxError(f"the worker's control group could not be made: {error}") from error
        self._workers.add(link)
        return link

    def _discard(self, link: WorkerLink) -> None:
        """End a worker and its processes, and remove its control group, now or later.
        Idempotent."""
        link.kill()
        self._workers.discard(link)
        self._groups.release(link.group)

    async def _zygote(self, kind: _Kind) -> Zygote:
        """Return the zygote of `kind`, a new one if it has ended. It is started in a thread, which
        takes a fraction of a second; all callers wait for the same start. Raises RefusedError after
        `close`, and as `Zygote` does."""
        if self._closed:
            raise RefusedError("the sandbox is closed")
        zygote = self._zygotes.get(kind)
        if zygote is not None and zygote.alive():
            return zygote
        start = self._starts.get(kind)
        if start is None or start.done() or start.get_loop() is not asyncio.get_running_loop():
            start = self._starts[kind] = asyncio.create_task(self._start_zygote(kind))
        return await asyncio.shield(start)

    async def _start_zygote(self, kind: _Kind) -> Zygote:
        """Start a zygote of this kind at the sandbox's level, and let it replace the earlier one,
        whose workers end with it."""
        zygote = await asyncio.to_thread(
            Zygote, self.isolation, kind.scientific, self._groups.counts_processes
        )
        before = self._zygotes.get(kind)
        if before is not None:
            before.close()
        self._zygotes[kind] = zygote
        if self._closed:
            zygote.close()
        return zygote


async def _soon(done: Callable[[], bool]) -> None:
    """Wait for an imminent event, at most two seconds, and return in either case."""
    for _ in range(400):
        if done():
            return
        await asyncio.sleep(0.005)


def _message(job: Job) -> wire.JobMessage:
    """Return the job as the guest reads it, with sizes in bytes. The cases and the contents of
    files are sent apart."""
    limits = job.limits
    return wire.JobMessage(
        code=job.code,
        preamble=job.preamble,
        setup=job.setup,
        fn_name=job.fn_name,
        cpu_s=limits.cpu_s,
        wall_s=limits.wall_cap_s,
        strict=limits.strict,
        memory_bytes=limits.memory_mb << 20,
        output_bytes=limits.output_bytes,
        processes=limits.processes,
        open_files=limits.open_files,
        file_bytes=limits.file_mb << 20,
        files=len(job.files),
        laid_out_bytes=sum(map(len, job.files.values())),
        fetch=job.fetch,
        shows_proc=bool(job.files)
        or any(_NAMES_PROC.search(text) for text in (job.code, job.preamble, job.setup)),
    )


def _allow_descriptors() -> None:
    """Raise this process's soft limit of descriptors to 8,192, or to the hard limit if that is
    lower: each running test needs several. A refusal is ignored."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
