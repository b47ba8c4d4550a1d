"""A submission neither sees nor feels another that runs beside it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from code_rl.grading.sandbox import Executor, Job, Limits, StdinInput
from tests.grading.corpus.rooms import CONFINING, SAMPLES, room

LIMITS = Limits(cpu_s=20.0, wall_s=60.0, memory_mb=512)
PAIRS = {
    row["name"]: row for row in map(json.loads, Path(__file__).with_name("neighbours.jsonl").read_text().splitlines())
}
"""A writer that changes something, and a reader that prints GOT when it has seen or felt it."""
QUICK = ("flock", "pipe_quota", "write_hints")
HEAD = """
import ctypes, fcntl, glob, mmap, os, resource, signal, socket, struct, sys, tempfile, time
libc = ctypes.CDLL(None, use_errno=True)
def quietly(action, *arguments):
    try:
        return action(*arguments)
    except (OSError, ValueError, AttributeError, KeyError, IndexError):
        return None
def shared():
    # Files that two submissions both can open: the library, the interpreter, devices, directories.
    named = [os.__file__, ctypes.__file__, sys.executable, os.path.dirname(os.__file__), "/etc/passwd", "/etc/ld.so.cache", "/dev/null", "/dev/zero", "/dev/urandom", "/", "/usr", "/usr/lib", "/tmp", "/dev/shm", "/proc/version"]
    return named + [name.split()[-1] for name in (quietly(lambda: open("/proc/self/maps").read()) or "").splitlines() if ".so" in name][::8]
def opened(flags=os.O_RDONLY):
    return [fd for fd in (quietly(os.open, path, flags) for path in shared()) if fd is not None]
class Lock(ctypes.Structure):
    _fields_ = [("type", ctypes.c_short), ("whence", ctypes.c_short), ("start", ctypes.c_long), ("length", ctypes.c_long), ("pid", ctypes.c_int)]
MARK = 0x3FF7700
"""
WRITER = HEAD + "STAY = 1.5\n{}\ntime.sleep(STAY)\nprint('stayed')\n"
READER = (
    HEAD
    + """STAY = 1.0
{}
end = time.time() + STAY
while time.time() < end:
    if quietly(look):
        print("GOT")
        break
    time.sleep(.05)
else:
    print("nothing")
"""
)


async def _printed(executor: Executor, code: str) -> str:
    job = Job(code, (StdinInput(b""),), limits=LIMITS)
    return " ".join([e.stdout.decode() + e.stderr.decode("utf-8", "replace")[-200:] async for e in executor.run(job)])


async def _seen(name: str, pairs: Iterable[dict[str, str]]) -> dict[str, str]:
    """Pairs whose reader got the sign; each runs alone, since the quotas of one would hide those of another."""
    found = {}
    async with room(name, 2) as executor:
        await asyncio.gather(*(_printed(executor, "pass") for _ in range(2)))
        for pair in pairs:
            programs = READER.replace("{}", pair["reader"]), WRITER.replace("{}", pair["writer"])
            reads, writes = await asyncio.gather(*(_printed(executor, program) for program in programs))
            if "GOT" in reads or "reached" in writes:
                found[pair["name"]] = pair["why"]
            elif "nothing" not in reads:
                found[pair["name"]] = f"the reader was hurt: {reads}"
    return found


@pytest.mark.long
@pytest.mark.parametrize(("name", "sample"), SAMPLES)
def test_no_submission_sees_or_feels_what_another_one_does(name: str, sample: bool) -> None:
    pairs = [PAIRS[each] for each in (QUICK if sample else PAIRS)]
    assert asyncio.run(_seen(name, [p for p in pairs if name != "landlock" or not p["needs_own_host"]])) == {}


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


@pytest.mark.long
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
    pairs = {name: pair for name, pair in PAIRS.items() if pair["seen_at_none"]}
    assert asyncio.run(_seen("none", pairs.values())).keys() == pairs.keys()
