"""Messages between the host and one submission: SEQPACKET datagrams on a channel for that
submission only.

The host sends the job (marshalled: the host is trusted), one datagram with a descriptor for each
file, and one datagram for each test with its descriptors: input, stdout, stderr, and the value's.
The guest sends exit reports of fixed size, and records: a byte and a short text. Its messages are
never unpickled or unmarshalled.
"""

from __future__ import annotations

import marshal
import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

START = b"s"
"""Host to worker, with the channel of a submission. The worker answers ENDED when its supervisor
has ended."""
ENDED = struct.Struct("=i")

CHUNK = 96 * 1024
_MORE, _LAST, _FILE, _CASE = 1, 2, 3, 4

RESULT, REAPED, COMPILE_ERROR, IDLE = 1, 2, 3, 4
"""Kinds of messages from the guest. RESULT (a test has ended) and REAPED (a process that it left
has ended) are exit reports. The others are records: the program does not compile, or the running
test is idle."""

RAN, OVER_CPU, OVER_WALL = 0, 1, 2
"""How a test ended: by itself, or stopped at a limit."""

KILLED = 128
"""Added to a signal's number in a supervisor's exit code, if another process is between the
supervisor and its worker."""

# An exit report: kind, cause, whether the remaining tests need another supervisor; then siginfo,
# rusage and two times in the kernel's own layout. The first of a supervisor also has the beginning
# of its own rusage after compiling.
INFO_AT, USAGE_AT, BEGAN_AT, ENDED_AT, COMPILE_AT, ACCOUNT_BYTES = 8, 136, 280, 296, 312, 344
_ACCOUNT = struct.Struct("=BB?5x 8xi12xi100x qqqqq104x qq qq qqqq")
"""In siginfo: how the process ended, and its status."""
_EXITED = 1


class JobMessage(NamedTuple):
    """One submission on its way to a worker."""

    code: str
    preamble: str
    setup: str
    fn_name: str | None
    cpu_s: float
    wall_s: float
    strict: bool
    memory_bytes: int
    output_bytes: int
    processes: int
    open_files: int
    file_bytes: int
    files: int
    laid_out_bytes: int
    fetch: tuple[str, ...] = ()
    shows_proc: bool = False
    """True if /proc exists."""


class Record(NamedTuple):
    """A short message from a supervisor or its worker."""

    kind: int
    text: bytes


class ExitReport(NamedTuple):
    """A process's end: exit code (negative for a signal), CPU and wall seconds, peak memory in
    bytes, and the compiler's CPU seconds before it. `tainted` means that the remaining tests need
    another supervisor."""

    kind: int
    cause: int
    tainted: bool
    exit_code: int
    cpu_s: float
    wall_s: float
    peak: int
    compile_s: float


def record(kind: int, text: bytes = b"") -> bytes:
    """Return a record, of a `kind` that is no exit report, as a datagram."""
    return bytes([kind]) + text


def unpack(datagram: bytes) -> Record | ExitReport:
    """Decode one datagram of the guest, which is not trusted. Raises ValueError for an unknown
    one."""
    if datagram[:1] in (b"\1", b"\2") and len(datagram) == ACCOUNT_BYTES:
        kind, cause, tainted, how, status, *numbers = _ACCOUNT.unpack(datagram)
        user_s, user_us, system_s, system_us, peak_kb, *times = numbers
        began, began_ns, ended, ended_ns, whole, us, more, more_us = times
        cpu_s = user_s + system_s + (user_us + system_us) / 1e6
        wall_s = ended - began + (ended_ns - began_ns) / 1e9
        compile_s = whole + more + (us + more_us) / 1e6
        exit_code = status if how == _EXITED else -status
        return ExitReport(kind, cause, tainted, exit_code, cpu_s, wall_s, peak_kb << 10, compile_s)
    if not datagram or datagram[0] not in (COMPILE_ERROR, IDLE):
        raise ValueError("neither an account nor a record")
    return Record(datagram[0], datagram[1:])


def exit_code(datagram: bytes) -> int:
    """Return the exit code of a supervisor, negative for a signal, as its worker reports it. Raises
    struct.error for a datagram of another length."""
    (code,) = ENDED.unpack(datagram)
    return KILLED - code if code > KILLED else int(code)


def job_datagrams(job: JobMessage) -> Iterator[bytes]:
    """Yield the datagrams of a job, in order, of at most CHUNK bytes and a mark; `receive_job`
    reads them."""
    message = marshal.dumps(tuple(job))
    for at in range(0, len(message), CHUNK):
        last = at + CHUNK >= len(message)
        yield bytes([_LAST if last else _MORE]) + message[at : at + CHUNK]


def file_datagram(path: str) -> bytes:
    """Return the datagram that is sent with the descriptor of a file's content; `path` is relative
    to the test's directory. `receive_file` reads it."""
    return bytes([_FILE]) + path.encode("utf-8", "surrogateescape")


CASE_DATAGRAM = bytes([_CASE])
"""The datagram that is sent with the descriptors of a test."""


def receive_job(channel: socket.socket) -> JobMessage:
    """Return the job, in the supervisor. Raises ConnectionError if the host is gone. It unmarshals,
    so `channel` must be the host's."""
    parts = []
    while True:
        datagram = channel.recv(CHUNK + 1)
        if not datagram:
            raise ConnectionError
        parts.append(datagram[1:])
        if datagram[0] == _LAST:
            # Written by our own host process
            return JobMessage(*marshal.loads(b"".join(parts)))  # noqa: S302


def receive_file(channel: socket.socket) -> tuple[str, int]:
    """Return the path and the descriptor of the next file; the caller closes it. Raises
    ConnectionError if the host is gone."""
    datagram, descriptors, _, _ = socket.recv_fds(channel, 4096, 1)
    if not datagram:
        raise ConnectionError
    return datagram[1:].decode("utf-8", "surrogateescape"), descriptors[0]


def pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected ends that carry whole datagrams; the caller closes both. One of CHUNK
    bytes fits the kernel's default buffer."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
