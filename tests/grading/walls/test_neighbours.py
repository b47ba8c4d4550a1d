"""What a submission does is neither seen nor felt by one that runs beside it."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from collections.abc import Sequence

import pytest

from code_rl.grading.sandbox.executor import Executor, Job, Limits, StdinInput
from tests.grading.corpus.rooms import room
from tests.grading.walls.neighbours import PAIRS, Pair
from tests.grading.walls.programs import CONFINING, SAMPLES

LIMITS = Limits(cpu_s=20.0, wall_s=60.0, memory_mb=512)


async def _printed(executor: Executor, code: str) -> str:
    job = Job(code, (StdinInput(b""),), limits=LIMITS)
    return " ".join([e.stdout.decode() + e.stderr.decode("utf-8", "replace")[-200:] async for e in executor.run(job)])


async def _seen(name: str, pairs: Sequence[Pair]) -> dict[str, str]:
    """Pairs whose reader got the sign; each runs alone with its writer, since the quotas of one would hide those of another."""
    found = {}
    async with room(name, 2) as executor:
        await asyncio.gather(*(_printed(executor, "pass") for _ in range(2)))
        for pair in pairs:
            reads, writes = await asyncio.gather(_printed(executor, pair.reader), _printed(executor, pair.writer))
            if "GOT" in reads or "reached" in writes:
                found[pair.name] = pair.tries
            elif "nothing" not in reads:
                found[pair.name] = f"the reader was hurt: {reads}"
    return found


@pytest.mark.parametrize(("name", "sample"), SAMPLES)
def test_no_submission_sees_or_feels_what_another_one_does(name: str, sample: bool) -> None:
    pairs = [pair for pair in PAIRS if name in pair.rooms and (pair.quick or not sample)]
    assert asyncio.run(_seen(name, pairs)) == {}


_ADDRESSES = """
import socket
for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
    for act in ("sendto", "sendmsg", "connect"):
        for make in (lambda: socket.socketpair(socket.AF_UNIX, kind), lambda: [socket.socket(socket.AF_UNIX, kind)]):
            try:
                ends = make()
                if act == "sendto":
                    ends[0].sendto(b"x", PATH)
                elif act == "sendmsg":
                    ends[0].sendmsg([b"x"], [], 0, PATH)
                else:
                    ends[0].connect(PATH)
                    ends[0].send(b"x")
            except OSError:
                pass
"""


@pytest.mark.parametrize("name", CONFINING)
def test_no_program_reaches_a_datagram_socket_of_this_machine(name: str) -> None:
    async def attack() -> bytes | None:
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
            listener.bind(f"{folder}/socket")
            os.chmod(folder, 0o777)
            os.chmod(f"{folder}/socket", 0o777)
            listener.setblocking(False)
            async with room(name, 1) as executor:
                await _printed(executor, f"PATH = {folder + '/socket'!r}\n{_ADDRESSES}")
            try:
                return listener.recv(10)
            except BlockingIOError:
                return None

    assert asyncio.run(attack()) is None


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_readers_are_not_blind_where_nothing_confines_them() -> None:
    pairs = [pair for pair in PAIRS if pair.open_at_none]
    assert set(asyncio.run(_seen("none", pairs))) == {pair.name for pair in pairs}
