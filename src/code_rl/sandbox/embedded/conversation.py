"""A program and an interactor, each in a worker of its own, with the host in between: what one prints, the other reads.

Neither holds a descriptor of the other's, so neither can reach the other but by what it says.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from io import FileIO
from typing import NamedTuple

from code_rl.errors import SandboxError
from code_rl.sandbox.embedded.guest import wire
from code_rl.sandbox.embedded.link import Idle, WorkerLink
from code_rl.sandbox.embedded.outcome import Streams
from code_rl.sandbox.executor import Conversation, Execution, Status
from code_rl.sandbox.retries import LostError

TRANSCRIPT_BYTES = 64 << 10
LAST_WORDS_S = 10.0
"""So long, by the clock, may an interactor think about a program that has ended."""
_READ_BYTES = 1 << 16
_UNDECIDED = Execution(Status.TIME_LIMIT, detail=f"no decision {LAST_WORDS_S:g} s after the program's end")


class Side(NamedTuple):
    """One of the two: where it runs, its job of one test, that test's input (for a call: its arguments)."""

    link: WorkerLink
    job: wire.JobMessage
    case: bytes


class _Transcript:
    def __init__(self) -> None:
        self.entries: list[tuple[str, bytes]] = []
        self._room = TRANSCRIPT_BYTES

    def add(self, speaker: str, data: bytes) -> None:
        data = data[: self._room]
        self._room -= len(data)
        if data and self.entries and self.entries[-1][0] == speaker:
            self.entries[-1] = (speaker, self.entries[-1][1] + data)
        elif data:
            self.entries.append((speaker, data))


async def converse(program: Side, interactor: Side, *, idle: Callable[[Idle], None] | None = None) -> Conversation:
    """Run both to their ends; the interactor at most LAST_WORDS_S beyond the program's. `idle` hears when the program does nothing.

    Raises LostError for a program, SandboxError for an interactor whose result stays out.
    """
    transcript = _Transcript()
    with contextlib.ExitStack() as held:
        ends, others = _Ends(held), _Ends(held)
        ended = asyncio.create_task(_run(program, ends, idle))
        decided = asyncio.create_task(_run(interactor, others, None))
        forward = _relay(ends.source, others.target, lambda data: transcript.add("program", data), program.job)
        back = _relay(others.source, ends.target, lambda data: transcript.add("interactor", data), interactor.job)
        tasks = (ended, decided, asyncio.create_task(forward), asyncio.create_task(back))
        try:
            await asyncio.wait((ended, decided), return_when=asyncio.FIRST_COMPLETED)
            if not _failed(decided):
                await asyncio.wait((ended,))
            if not _failed(ended):
                await asyncio.wait((decided,), timeout=LAST_WORDS_S)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    if _failed(decided):
        raise SandboxError(f"the interactor was lost: {decided.exception()}") from decided.exception()
    said = _UNDECIDED if decided.cancelled() and not _failed(ended) else None
    return Conversation(ended.result(), said or decided.result(), tuple(transcript.entries))


def _failed(task: asyncio.Task[Execution]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is not None


class _Ends:
    """Pipes to one side's stdin and from its stdout, closed by `held` at the latest. `theirs` are the test's ends, until they are handed on to be sent."""

    def __init__(self, held: contextlib.ExitStack) -> None:
        self.theirs: list[int] = []
        held.callback(self.close)
        reader, writer = os.pipe()
        self.target = held.enter_context(FileIO(writer, "wb"))
        self.theirs.append(reader)
        reader, writer = os.pipe()
        self.source = held.enter_context(FileIO(reader, "rb"))
        self.theirs.append(writer)

    def streams(self, side: Side) -> Streams:
        if not self.theirs:
            raise LostError("the worker wanted the conversation's streams twice")
        stdin, stdout = self.theirs
        made = Streams(side.case, side.job.fn_name is not None, fetch=False, talk=(stdin, stdout))
        self.theirs = []
        return made

    def close(self) -> None:
        while self.theirs:
            os.close(self.theirs.pop())


async def _run(side: Side, ends: _Ends, idle: Callable[[Idle], None] | None) -> Execution:
    async with contextlib.aclosing(side.link.run(side.job, 1, {}, lambda _: ends.streams(side))) as found:
        async for item in found:
            if isinstance(item, Execution):
                return item
            if idle is not None:
                idle(item)
    raise LostError("no result came")


async def _relay(source: FileIO, target: FileIO, heard: Callable[[bytes], None], job: wire.JobMessage) -> None:
    """Carry what comes out of `source` to `target`, up to the job's output limit, and close `target` then."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    left = job.output_bytes
    with contextlib.ExitStack() as transports:
        incoming, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), source)
        transports.callback(incoming.close)
        outgoing, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, target)
        transports.callback(_abort, outgoing)
        outgoing.set_write_buffer_limits(0)  # nothing is left to be written when it ends
        writer = asyncio.StreamWriter(outgoing, protocol, None, loop)
        while left > 0 and (data := await reader.read(min(_READ_BYTES, left))):
            left -= len(data)
            heard(data)
            if outgoing.is_closing():  # who does not listen any more may still talk
                continue
            writer.write(data)
            with contextlib.suppress(ConnectionError):
                await writer.drain()


def _abort(pipe: asyncio.WriteTransport) -> None:
    """End it, unless it has ended by itself: asyncio would say goodbye twice, the second time to nobody."""
    if not pipe.is_closing():
        pipe.abort()
