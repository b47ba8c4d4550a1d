"""The host's side of one worker: it submits a job and yields its executions. It has no threads; the
running event loop reports readiness."""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import signal
import socket
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field

from code_rl.grading.sandbox.executor import Execution, LostError, Status
from code_rl.grading.sandbox.local.cgroups import WorkerGroup
from code_rl.grading.sandbox.local.execution import Streams, execution, memory_file
from code_rl.grading.sandbox.local.guest import wire
from code_rl.grading.sandbox.local.launcher import WorkerProcess
from code_rl.util.errors import SandboxError

_END_S = 60.0
"""Seconds within which a worker reports its supervisor's end after the supervisor's channel is
closed."""
SILENCE_S = 600.0
"""Seconds of silence that a worker is allowed beyond its longest test; compiling is slow on a busy
machine."""

StreamsOf = Callable[[int], Streams]


class Idle:
    """The running test is idle: its slot can be lent."""


class WorkerLink:
    """One worker, seen from the host. It serves one submission at a time, from any event loop."""

    def __init__(self, process: WorkerProcess, group: WorkerGroup | None) -> None:
        """Serve from a new worker, which runs nothing yet; `group` is its control group, or
        None."""
        self.process, self.group = process, group
        self.lost = False
        """True once the worker is unusable."""
        self._unended = 0

    async def run(
        self, job: wire.JobMessage, tests: int, files: Mapping[str, bytes], streams_of: StreamsOf
    ) -> AsyncGenerator[Execution | Idle, None]:
        """Yield the executions of `job`'s `tests` in order, up to the last test or a compile error,
        and an Idle for each report of an idle test. `files` are the job's contents by path.

        `streams_of` makes the streams of a test when it is due; they are closed here. Raises
        LostError if a result is missing, SandboxError if the worker cannot be reached. Closing the
        iterator early stops the submission. If `lost` is true afterwards, the worker must be
        killed.
        """
        if self.group is not None:
            try:
                self.group.limit(job.memory_bytes, job.processes)
            except OSError as error:
                self.lost = True
                raise SandboxError(f"the limits of a worker cannot be set: {error}") from error
            self.group.ran_out_of_memory()  # earlier events do not belong to this job
        done = 0
        while done < tests:
            submission = _Submission(self, job, tests, files, streams_of, done)
            async with contextlib.aclosing(submission.run()) as found:
                async for item in found:
                    yield item
                    if isinstance(item, Execution) and item.status is Status.COMPILE_ERROR:
                        return
            done = submission.due

    def begin(self, theirs: socket.socket) -> None:
        """Send the channel of a submission to the worker. Raises SandboxError if the worker cannot
        be reached, which is then `lost`."""
        try:
            self._hear_of_ends()
            socket.send_fds(self.process.control, [wire.START], [theirs.fileno()])
        except OSError as error:
            self.lost = True
            raise SandboxError(f"a worker cannot be reached: {error}") from error
        self._unended += 1

    async def exit_code(self) -> int:
        """Wait up to a minute for the exit code of the last submission's supervisor, negative for a
        signal. Raises LostError, and sets `lost`, if it is unknown."""
        loop = asyncio.get_running_loop()
        try:
            while (code := self._hear_of_ends()) is None:
                ready = _ready(loop.add_reader, loop.remove_reader, self.process.control.fileno())
                await asyncio.wait_for(ready, _END_S)
        except (OSError, TimeoutError) as error:
            self.lost = True
            raise LostError("the worker ended") from error
        return code

    def _hear_of_ends(self) -> int | None:
        """Read the ends that the worker has reported. Return the exit code of the last supervisor
        if all have ended by now, else None. Raises OSError if the worker has ended."""
        code = None
        while self._unended and code is None:
            try:
                datagram = self.process.control.recv(wire.ENDED.size)
            except BlockingIOError:
                break
            if not datagram:
                raise ConnectionError("it has ended")
            self._unended -= 1
            if not self._unended:
                code = wire.exit_code(datagram)
        return code

    def kill(self) -> None:
        """End the worker and all that it runs; release its descriptors. Idempotent."""
        self.process.end()
        self.lost = True


@dataclass(eq=False)
class _Submission:
    """A job in one supervisor: from its first test, or from the test where an earlier supervisor
    stopped, to the supervisor's end."""

    _link: WorkerLink
    _job: wire.JobMessage
    _tests: int
    _files: Mapping[str, bytes]
    _streams_of: StreamsOf
    due: int
    """The index of the next result's test."""
    _streams: Streams | None = None
    _records: deque[wire.Record | wire.ExitReport] = field(default_factory=deque)
    _reaped: list[wire.ExitReport] = field(default_factory=list)
    _closed: str | None = None
    _starved: bool = False
    _wake: asyncio.Future[None] | None = None
    _waits_since: float = 0.0
    _timer: asyncio.TimerHandle | None = None

    async def run(self) -> AsyncGenerator[Execution | Idle, None]:
        """Do the same as `WorkerLink.run`, but end early if the tests from `due` on need another
        supervisor. Used once."""
        loop = asyncio.get_running_loop()
        self._channel, theirs = wire.pair()
        self._channel.setblocking(False)
        # asyncio would format a socket in full when it looks for it
        self._number = self._channel.fileno()
        ended = False
        try:
            with theirs:
                self._link.begin(theirs)
            loop.add_reader(self._number, self._readable)
            await self._submit()
            await self._feed()
            while True:
                record = await self._next()
                if isinstance(record, int):
                    ended = True
                    yield self._missing(record)
                elif isinstance(record, wire.ExitReport):
                    if record.kind == wire.REAPED:
                        self._reaped.append(record)
                        continue
                    result = self._result(record)
                    ended = record.tainted or self.due == self._tests
                    yield result
                    if not ended:  # only here: a result may be the last one that is wanted
                        await self._feed()
                elif record.kind == wire.IDLE:
                    yield Idle()
                elif record.kind == wire.COMPILE_ERROR:
                    ended = True
                    detail = record.text.decode("utf-8", "replace")
                    yield Execution(Status.COMPILE_ERROR, exit_code=1, detail=detail)
                if ended:
                    return
        finally:
            if not loop.is_closed():
                loop.remove_reader(self._number)
            if self._timer is not None:
                self._timer.cancel()
            self._channel.close()
            if self._streams is not None:
                self._streams.close()
                # A test is running. If it does not end with its worker, the worker ends it.
                self._link.lost = self._link.lost or (not ended and self._link.process.contained)

    async def _submit(self) -> None:
        """Send the job and its files, before any test. Raises OSError without descriptors."""
        for datagram in wire.job_datagrams(self._job):
            await self._send(datagram)
        for path, content in self._files.items():
            fd = memory_file("file", content)
            try:
                await self._send(wire.file_datagram(path), fd)
            finally:
                os.close(fd)

    async def _feed(self) -> None:
        """Send the supervisor the test that is due, with new streams. Raises SandboxError if they
        cannot be made."""
        try:
            self._streams = self._streams_of(self.due)
        except OSError as error:
            raise SandboxError(
                f"the streams of a test cannot be made: {error.strerror or error}"
            ) from error
        if self._streams.fetched >= 0:
            await self._send(wire.file_datagram(""), self._streams.fetched)
        await self._send(wire.CASE_DATAGRAM, *self._streams.descriptors)

    async def _send(self, datagram: bytes, *descriptors: int) -> None:
        """Send a datagram with descriptors, which stay open here, waiting while the socket is full.
        A supervisor that has ended is no error here: `_next` finds out."""
        loop = asyncio.get_running_loop()
        ancillary = (
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
            if descriptors
            else []
        )
        while True:
            try:
                self._channel.sendmsg([datagram], ancillary)
                return
            except BlockingIOError:
                await _ready(loop.add_writer, loop.remove_writer, self._number)
            except (BrokenPipeError, ConnectionError):
                return  # the supervisor's end is known once its records are read

    async def _next(self) -> wire.Record | wire.ExitReport | int:
        """Return the next record, or the supervisor's exit code if none follows; SIGKILL's,
        negative, if the kernel ended it for memory. Raises LostError if the worker is silent for
        too long, breaks the protocol, or has ended."""
        while not self._records:
            if self._closed is not None:
                try:
                    if not self._closed:
                        return await self._link.exit_code()
                    self._link.lost = True
                    raise LostError(self._closed)
                except LostError:
                    self._starved = self._ran_out_of_memory()
                    if not self._starved:
                        raise
                    return -signal.SIGKILL
            loop = asyncio.get_running_loop()
            self._wake, self._waits_since = loop.create_future(), loop.time()
            if self._timer is None:
                self._end_silence()
            try:
                await self._wake
            finally:
                self._wake = None
        return self._records.popleft()

    def _result(self, account: wire.ExitReport) -> Execution:
        """Return the execution of the test that is due from its report and the processes that it
        left behind, whose CPU time and memory count; close its streams. Raises SandboxError for a
        report without a test."""
        if self._streams is None:
            self._link.lost = True
            raise SandboxError("a worker gave the result of a test that it had not been given")
        self.due += 1
        if self._reaped:
            cpu_s = account.cpu_s + sum(each.cpu_s for each in self._reaped)
            account = account._replace(
                cpu_s=cpu_s, peak=max(account.peak, *(each.peak for each in self._reaped))
            )
            self._reaped.clear()
        killed = (
            account.exit_code == -signal.SIGKILL
            and account.cause == wire.RAN
            and self._ran_out_of_memory()
        )
        streams, self._streams = self._streams, None
        try:
            return execution(self._job, account, streams, killed)
        finally:
            streams.close()

    def _missing(self, exit_code: int) -> Execution:
        """Return the execution of the test that is due when the supervisor ended without its
        result: COMPILE_ERROR at the compiler's limit, MEMORY_LIMIT if the kernel ended it for
        memory. Raises LostError for any other end, whose cause is not certain."""
        if exit_code == signal.SIGPROF:  # only the compiler's CPU limit ends it like this
            return Execution(
                Status.COMPILE_ERROR, exit_code=1, detail="the program overwhelms the compiler"
            )
        # In a group that contains only this submission
        if self._starved or self._ran_out_of_memory():
            self.due += 1
            return Execution(
                Status.MEMORY_LIMIT, detail=f"more than {self._job.memory_bytes >> 20} MB in all"
            )
        raise LostError(f"the supervisor ended with {exit_code}")

    def _ran_out_of_memory(self) -> bool:
        """Return True if the kernel has killed a process of the worker for memory since the last
        call; False without a control group."""
        return self._link.group is not None and self._link.group.ran_out_of_memory()

    def _end_silence(self) -> None:
        """Give up a worker that has been silent for too long, or check again when that could be so.
        There is one timer per submission, not one per result."""
        loop = asyncio.get_running_loop()
        silence = self._job.wall_s + SILENCE_S
        left = silence if self._wake is None else self._waits_since + silence - loop.time()
        if left > 0:
            self._timer = loop.call_later(left, self._end_silence)
        else:
            self._close(f"silent for {silence:.0f} s")

    def _readable(self) -> None:
        """Take one datagram into `_records`, or note that the channel has ended; wake `_next`.
        There is seldom another, and the loop would call again. After a reset take all, because
        uvloop then does not call again."""
        reset = False
        while True:
            try:
                datagram = self._channel.recv(wire.CHUNK)
                if datagram:
                    self._records.append(wire.unpack(datagram))
            except BlockingIOError:
                return
            # Tests that were sent ahead are dropped; earlier messages are still unread
            except ConnectionResetError:
                reset = True
                continue
            except (OSError, ValueError) as error:
                self._close(f"the channel broke: {error}")
                return
            if not datagram:
                self._close("")
                return
            if self._wake is not None:
                _resolve(self._wake)
            if not reset:
                return

    def _close(self, reason: str) -> None:
        """Note the end of the channel, "" if the supervisor closed it, else the reason; the first
        one counts. Wake `_next`."""
        self._closed = reason if self._closed is None else self._closed
        asyncio.get_running_loop().remove_reader(self._number)
        if self._wake is not None:
            _resolve(self._wake)


async def _ready(add: Callable[..., object], remove: Callable[[int], object], fd: int) -> None:
    """Wait once for a descriptor, with the event loop's methods for reading or for writing."""
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    add(fd, _resolve, ready)
    try:
        await ready
    finally:
        remove(fd)


def _resolve(future: asyncio.Future[None]) -> None:
    """Wake the waiter of a future, once."""
    if not future.done():
        future.set_result(None)
