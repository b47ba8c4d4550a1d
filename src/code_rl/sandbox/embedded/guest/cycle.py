"""Forking again and again without a byte of this process's memory being different the next time.

Bytecode counts its own executions: CPython adapts it in place, and frames, free lists and arenas move with it, so that a fork could tell how many there have been before
it. Between two forks of a process that tests descend from, no bytecode runs: the steps of a round are C functions with arguments made beforehand, called by iterators written
in C. What the kernel tells stands at fixed places and is wiped; what the functions give is nothing, a truth value or a number for which CPython has one object
(-5 to 256): any other would be made anew each time, somewhere else, and be there to be found until the next round. The first round is a rehearsal, whose child ends at once: it leaves what later rounds find.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import operator
import os
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

from code_rl.sandbox.embedded.guest import kernel

Step = tuple[Any, ...]
"""(whether its result lets the round go on, function, arguments...)."""

_c = ctypes.PyDLL(None)
_c.memset.restype = _c.send.restype = None
_c.memcmp.restype = ctypes.c_bool
_clone3 = ctypes.PyDLL(None)["syscall"]
_clone3.restype = None
_NEVER = object()
_NR = {
    "x86_64": {"newfstatat": 262, "utimensat": 280, "close_range": 436},
    "aarch64": {"newfstatat": 79, "utimensat": 88, "close_range": 436},
}[os.uname().machine]
_MONOTONIC = 1
_SETTID = 0x01000000
_born = ctypes.create_string_buffer(4)
"""Where the kernel writes into the memory of a child alone."""
_AT_FDCWD, _NO_FOLLOW = -100, 0x100
_MNT_DETACH = 2
_RIGHTS = struct.Struct("=qii")
_STAT_BYTES = 256
"""More than the kernel's structure has."""

_kept: list[Any] = []
"""To free in a fork what was made before it would copy the pages where it lies."""

zero = operator.not_
"""For functions that give 0, or nothing, when all is well."""


def gives(number: int) -> Callable[[Any], bool]:
    """For functions that have to give this number."""
    return number.__eq__


class Rounds:
    """Round after round of steps, until one gives what ends it."""

    def __init__(self, *steps: Step) -> None:
        self._me = os.getpid()
        self._rounds = zip(*_calls(steps), strict=False)
        _kept.append((self._rounds, steps))

    def run(self) -> bool:
        """To the end. Returns whether this is a process that `fork` made; for `clone` ask `cloned`."""
        all(self._rounds)
        return os.getpid() != self._me


class Once:
    """Steps that are made ready before a fork, and taken after it, once: each function of Python that runs then would copy the pages where it lies."""

    def __init__(self, *steps: Step) -> None:
        self._round = zip(*_calls(steps), strict=False)

    def take(self) -> bool:
        """Whether each step gave what it should; those behind one that did not are not taken."""
        return next(self._round, None) is not None


def _calls(steps: tuple[Step, ...]) -> list[Iterator[Any]]:
    return [
        itertools.takewhile(goes_on, iter(functools.partial(function, *arguments), _NEVER))
        for goes_on, function, *arguments in steps
    ]


def fork(number: int) -> Step:
    """The child's round ends here; it has to be the process of this small number."""
    return gives(number), _c.fork


def clone(namespaces: int) -> tuple[Step, ...]:
    """As `fork`, into new namespaces (0: none), whatever number the child has: it is not learned, since that would be left in memory.

    The C library of the child does not know that it is one (abort(3) would not).
    """
    flags = namespaces | _SETTID
    arguments = kernel.CloneArgs(flags=flags, child_tid=ctypes.addressof(_born), exit_signal=int(signal.SIGCHLD))
    return (
        (zero, _clone3, kernel.CLONE3, ctypes.byref(arguments), ctypes.sizeof(arguments)),
        equal(_born, bytes(len(_born)), len(_born)),
    )


def cloned() -> bool:
    """Whether this is a process that `clone` made."""
    return any(_born.raw)


def waitid(kind: int, number: int, options: int, info: Any, usage: Any, goes_on: Callable[[Any], bool] = zero) -> Step:
    """waitid(2)."""
    return goes_on, _c.syscall, kernel.WAITID, kind, number, info, options, usage


def clock(place: Any) -> Step:
    """Note the time."""
    return zero, _c.clock_gettime, _MONOTONIC, place


def equal(place: Any, other: Any, size: int, goes_on: Callable[[Any], bool] = zero) -> Step:
    """Compare two places."""
    return goes_on, _c.memcmp, place, other, size


def wipe(place: Any, size: int) -> Step:
    """Zeros."""
    return zero, _c.memset, place, 0, size


def something_to_read(channel: int) -> Step:
    """Wait for a datagram, which stays to be received; the round ends where there will be none."""
    return gives(1), _c.recv, channel, ctypes.create_string_buffer(1), 1, socket.MSG_PEEK


def send(channel: int, place: Any, size: int) -> Step:
    """A datagram. Where nobody hears it, there will be nothing to read either."""
    return zero, _c.send, channel, place, size, socket.MSG_NOSIGNAL


class _Message(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_void_p),
        ("name_bytes", ctypes.c_uint32),
        ("parts", ctypes.c_void_p),
        ("number_of_parts", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_bytes", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    ]


class Descriptors:
    """Those that come with a datagram: made ready once, for numbers that are known later."""

    def __init__(self, datagram: bytes, count: int) -> None:
        self._channel = ctypes.c_int()
        rights, room = _RIGHTS.size + 4 * count, socket.CMSG_SPACE(4 * count)
        self._wanted = ctypes.create_string_buffer(room + len(datagram))
        _RIGHTS.pack_into(self._wanted, 0, rights, socket.SOL_SOCKET, socket.SCM_RIGHTS)
        ctypes.memmove(ctypes.addressof(self._wanted) + room, datagram, len(datagram))
        found = ctypes.create_string_buffer(len(self._wanted))
        part = (ctypes.c_size_t * 2)(ctypes.addressof(found) + room, len(datagram))
        message = _Message(
            parts=ctypes.addressof(part),
            number_of_parts=1,
            control=ctypes.addressof(found),
            control_bytes=room,
        )
        self._kept = (part, message)
        self.taking: tuple[Step, ...] = (
            (gives(len(datagram)), _c.recvmsg, self._channel, ctypes.byref(message), 0),
            equal(found, self._wanted, len(self._wanted)),
        )

    def expect(self, channel: int, numbers: list[int]) -> None:
        """They will come on this channel, and have these numbers."""
        self._channel.value = channel
        struct.pack_into(f"={len(numbers)}i", self._wanted, _RIGHTS.size, *numbers)


def close_from(first: int) -> Step:
    """Close this descriptor and all above it."""
    return zero, _c.syscall, _NR["close_range"], first, ctypes.c_uint(-1), 0


def block_no_signal() -> Step:
    """Let every signal come."""
    return zero, _c.sigprocmask, int(signal.SIG_SETMASK), ctypes.create_string_buffer(128), None


def drop_capabilities(header: Any = kernel.CAP_HEADER) -> Step:
    """As `kernel.drop_capabilities`."""
    return zero, _c.capset, header, kernel.NO_CAPABILITIES


def limit(kind: int, soft_and_hard: Any) -> Step:
    """setrlimit(2), to what stands at this place then."""
    return zero, _c.setrlimit, kind, soft_and_hard


def two_numbers() -> Any:
    """A place for the limits of `limit`."""
    return (ctypes.c_uint64 * 2)()


def write(fd: int, data: bytes) -> Step:
    """At the beginning of a file."""
    return gives(len(data)), _c.pwrite, fd, data, len(data), ctypes.c_long(0)


def next_signal(numbers: tuple[int, ...], seconds: float, goes_on: Callable[[Any], bool]) -> Step:
    """Take a blocked signal, wait at most so long; -1 if none comes."""
    wanted = ctypes.create_string_buffer(128)
    _c.sigemptyset(wanted)
    for number in numbers:
        _c.sigaddset(wanted, int(number))
    whole = int(seconds)
    return goes_on, _c.sigtimedwait, wanted, None, (ctypes.c_long * 2)(whole, int((seconds - whole) * 1e9))


class Looks:
    """What stat(2) tells of some paths, links not followed: as it is made, and whether it is so still."""

    def __init__(self, *paths: str) -> None:
        self._paths = [path.encode() for path in paths]
        size = _STAT_BYTES * len(paths)
        self._before, self._after = ctypes.create_string_buffer(size), ctypes.create_string_buffer(size)

    def begin(self) -> tuple[Step, ...]:
        """Let the files be as old as this moment; look at them."""
        touch = [(zero, _c.syscall, _NR["utimensat"], _AT_FDCWD, path, None, 0) for path in self._paths]
        return (*touch, *self._look(self._before))

    def same(self) -> tuple[Step, ...]:
        """The round ends here if anything has changed."""
        size = len(self._before)
        return (*self._look(self._after), equal(self._before, self._after, size), wipe(self._after, size))

    def _look(self, place: Any) -> list[Step]:
        return [
            (zero, _c.syscall, _NR["newfstatat"], _AT_FDCWD, path, ctypes.byref(place, at * _STAT_BYTES), _NO_FOLLOW)
            for at, path in enumerate(self._paths)
        ]


def renew(target: str, kind: str, flags: int, options: str) -> tuple[Step, ...]:
    """Replace what is mounted at `target` by a new one."""
    name, place = kind.encode(), target.encode()
    return (
        (zero, _c.umount2, place, _MNT_DETACH),
        (zero, _c.mount, name, place, name, ctypes.c_ulong(flags), options.encode()),
    )
