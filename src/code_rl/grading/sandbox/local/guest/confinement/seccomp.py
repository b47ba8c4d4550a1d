"""The seccomp filters, as classic BPF built here: an allow list, decided by a search tree over
ranges of system call numbers.

A tree is faster than a chain: at each installation the kernel evaluates the filter for every system
call number, and every submission installs it.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable
from itertools import chain

from code_rl.grading.sandbox.local.guest.confinement.syscalls import (
    ALLOWED,
    BOX_ALLOWED,
    CONDITIONAL,
    REFUSED,
    UNSUPPORTED,
    numbers,
)

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS = _ERRNO | errno.EPERM, _ERRNO | errno.ENOSYS
# The call returns 0 without being made.
_NOTHING = _ERRNO
_LOAD, _RETURN, _AND, _JUMP_EQ, _JUMP_GE, _JUMP_SET = 0x20, 0x06, 0x54, 0x15, 0x35, 0x45
_X32_BIT = 0x40000000
_NR_AT, _ARCH_AT = 0, 4
_NAMESPACE_FLAGS = 0x7E020080 | 0x2000
"""Every CLONE_NEW* flag, and CLONE_PTRACE."""
_CLONE_THREAD = 0x10000
_PR_SET_PDEATHSIG = 1
_SIGCHLD = 17
"""A process that ignores it hides the CPU time of its children."""
_AF_UNIX = 1
_CONNECTED = (1, 5)
"""SOCK_STREAM and SOCK_SEQPACKET. A datagram socket could send each message to another address."""
_SOCKET_FLAGS = 0o2004000
"""SOCK_CLOEXEC and SOCK_NONBLOCK."""
_NO_LOCKS, _BAD_CLOCK, _UNSUPPORTED, _NO_TTY = (
    _ERRNO | number for number in (errno.ENOLCK, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTTY)
)
_TMPFILE = 0o20000000
_OWN_CLOCKS = (0xFFFFFFFA, 0xFFFFFFFE)
"""The CPU clocks of the calling process and thread as dynamic clock ids. Other ids from 2**31 on
name another process's clock, or a device."""
_DYNAMIC_CLOCK = 1 << 31
_FCNTL = (0, 1, 2, 3, 4, 6, 7, 9, 11, 1030, 1032)
"""F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, record locks, F_GETOWN, F_GETSIG, F_DUPFD_CLOEXEC,
F_GETPIPE_SZ. Leases, pipe sizes, write hints, seals, signals and locks without a file open for
writing are left out: they affect shared files or the state of all processes of a user."""
_SHOWN_LOCKS = (5, 36, 37, 38)
"""F_GETLK, which reveals other processes' locks, and locks of open file descriptions."""

_NEW_PROCESS = ("fork", "vfork")
_UNSCOPED = (
    "statfs",
    "fstatfs",
    "chmod",
    "fchmod",
    "fchmodat",
    "chown",
    "fchown",
    "lchown",
    "fchownat",
    "utime",
    "utimes",
    "futimesat",
    "utimensat",
    "truncate",
)
_SIGNALLING = ("pidfd_open", "pidfd_send_signal", "tkill", "timer_create")

_DESCRIPTOR_REQUESTS = (0x5421, 0x541B, 0x5450, 0x5451)
"""FIONBIO, FIONREAD, FIONCLEX, FIOCLEX: they affect a descriptor, not the file behind it."""

Instruction = tuple[int, int, int, int]


def program_filter(machine: str) -> bytes:
    """Return the filter of a submission, installed in its supervisor and inherited by its tests, as
    BPF for `machine` (x86_64 or aarch64). Raises KeyError for another machine. Refused calls fail
    with an errno; only a call of another architecture kills."""
    special = numbers(CONDITIONAL, machine)
    code = _prologue(machine)
    code += _block(special["rt_sigaction"], _when(0, _JUMP_EQ, _SIGCHLD, _EPERM, _ALLOW))
    code += _block(special["clone3"], [(_RETURN, 0, 0, _ENOSYS)])
    code += _block(special["clone"], _when(0, _JUMP_SET, _NAMESPACE_FLAGS, _EPERM, _ALLOW))
    code += _block(special["prlimit64"], _allow_only(0, (0,), _EPERM))
    code += _block(special["socketpair"], _pair_of_connected())
    code += _block(special["setsid"], [(_RETURN, 0, 0, _EPERM)])
    code += _block(special["preadv2"], _when(5, _JUMP_EQ, 0, _ALLOW, _EPERM))
    code += _block(special["flock"], [(_RETURN, 0, 0, _NO_LOCKS)])
    fcntl = [
        _argument(1),
        *_one_of(_FCNTL, _ALLOW),
        *_one_of(_SHOWN_LOCKS, _NO_LOCKS),
        (_RETURN, 0, 0, _EPERM),
    ]
    code += _block(special["fcntl"], fcntl)
    code += _block(special["ioctl"], _allow_only(1, _DESCRIPTOR_REQUESTS, _NO_TTY))
    code += _block(special["openat"], _when(2, _JUMP_SET, _TMPFILE, _UNSUPPORTED, _ALLOW))
    if "open" in special:
        code += _block(special["open"], _when(1, _JUMP_SET, _TMPFILE, _UNSUPPORTED, _ALLOW))
    return _assemble(code + _tree(_ranges(machine)))


def box_filter(machine: str, timed: bool, frozen: bool) -> bytes:
    """Return the filter of a command in a box, as BPF: exec, sessions and signal handlers are
    allowed; sockets, namespaces, mounts, tracing, keys and the like stay refused. Raises KeyError
    for another machine than x86_64 and aarch64.

    If the command is `timed`, it cannot ignore the end of its children, which would hide their CPU
    time: the action of SIGCHLD stays as it is, and the call succeeds, as runtimes expect. If it is
    `frozen`, it can neither change files without opening them for writing nor look at file systems.
    """
    special = numbers(CONDITIONAL, machine)
    code = _prologue(machine)
    if frozen:
        code += _refused(_UNSCOPED, machine)
    if timed:
        code += _block(special["rt_sigaction"], _when(0, _JUMP_EQ, _SIGCHLD, _NOTHING, _ALLOW))
    code += _block(special["clone3"], [(_RETURN, 0, 0, _ENOSYS)])
    code += _block(special["clone"], _when(0, _JUMP_SET, _NAMESPACE_FLAGS, _EPERM, _ALLOW))
    code += _block(special["prlimit64"], _allow_only(0, (0,), _EPERM))
    code += _block(special["socketpair"], _pair_of_connected())
    code += _block(special["flock"], [(_RETURN, 0, 0, _NO_LOCKS)])
    fcntl = [_argument(1), *_one_of(_FCNTL, _ALLOW), *_one_of(_SHOWN_LOCKS, _NO_LOCKS)]
    code += _block(special["fcntl"], [*fcntl, (_RETURN, 0, 0, _EPERM)])
    code += _block(special["ioctl"], _allow_only(1, _DESCRIPTOR_REQUESTS, _NO_TTY))
    return _assemble(code + _tree(_ranges(machine, numbers(BOX_ALLOWED, machine))))


def test_filter(machine: str, pid: int | None, may_fork: bool) -> bytes:
    """Return a second filter for one test without namespaces, as BPF, in addition to
    `program_filter`.

    It denies other process groups, other processes' CPU clocks, and calls that change files without
    opening them for writing. Landlock does not cover these calls, and the program may own files
    outside. With `pid`, signals reach only this process or its group; without it (None) Landlock
    restricts them. Without `may_fork` the test has one process, which may have threads.
    """
    allowed, special = numbers(ALLOWED, machine), numbers(CONDITIONAL, machine)
    refused = [
        "setpgid",
        *_UNSCOPED,
        *(_SIGNALLING if pid is not None else ()),
        *(() if may_fork else _NEW_PROCESS),
    ]
    code = _prologue(machine)
    if not may_fork:
        code += _block(special["clone"], _when(0, _JUMP_SET, _CLONE_THREAD, _ALLOW, _EPERM))
    code += _block(special["prctl"], _when(0, _JUMP_EQ, _PR_SET_PDEATHSIG, _EPERM, _ALLOW))
    code += _refused(refused, machine)
    for name in ("clock_gettime", "clock_getres", "clock_nanosleep", "timer_create"):
        if name not in refused:
            code += _block(allowed[name], _own_clock())
    if pid is not None:
        for name in ("kill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"):
            code += _block(allowed[name], _allow_only(0, (pid, 0), _EPERM))
    return _assemble([*code, (_RETURN, 0, 0, _ALLOW)])


def _prologue(machine: str) -> list[Instruction]:
    """Return the instructions that kill a call of another architecture (x32 included) and load the
    call's number, which the following blocks compare."""
    code = [(_LOAD, 0, 0, _ARCH_AT), (_JUMP_EQ, 1, 0, _AUDIT_ARCH[machine]), (_RETURN, 0, 0, _KILL)]
    code.append((_LOAD, 0, 0, _NR_AT))
    if machine == "x86_64":
        code += [(_JUMP_GE, 0, 1, _X32_BIT), (_RETURN, 0, 0, _KILL)]
    return code


def _argument(index: int) -> Instruction:
    """Return the instruction that loads the low half of an argument. Every argument tested here is
    an int or a flag word below 2**32."""
    return (_LOAD, 0, 0, 16 + 8 * index)


def _block(number: int, body: list[Instruction]) -> list[Instruction]:
    """Return `body`, run only for the call of this number. It must end in a verdict, since it may
    load another word."""
    return [(_JUMP_EQ, 0, len(body), number), *body]


def _refused(names: Iterable[str], machine: str) -> list[Instruction]:
    """Return the filter that refuses these calls with EPERM; names that `machine` does not have are
    left out."""
    known = numbers(ALLOWED, machine) | numbers(CONDITIONAL, machine)
    refusals = (_block(known[name], [(_RETURN, 0, 0, _EPERM)]) for name in names if name in known)
    return list(chain.from_iterable(refusals))


def _when(index: int, jump: int, constant: int, then: int, otherwise: int) -> list[Instruction]:
    """Return the filter that continues with `then` if an argument equals a constant (_JUMP_EQ) or
    has any of its bits (_JUMP_SET), else with `otherwise`."""
    return [
        _argument(index),
        (jump, 0, 1, constant),
        (_RETURN, 0, 0, then),
        (_RETURN, 0, 0, otherwise),
    ]


def _one_of(values: tuple[int, ...], verdict: int) -> list[Instruction]:
    """Return the filter that answers `verdict` if the loaded word is one of `values`, else
    continues with the next instruction."""
    tests = [(_JUMP_EQ, len(values) - 1 - at, 0, value) for at, value in enumerate(values[:-1])]
    return [*tests, (_JUMP_EQ, 0, 1, values[-1]), (_RETURN, 0, 0, verdict)]


def _allow_only(index: int, values: tuple[int, ...], otherwise: int) -> list[Instruction]:
    """Return the filter that allows the call if its argument number `index` is one of `values`,
    else answers `otherwise`."""
    return [_argument(index), *_one_of(values, _ALLOW), (_RETURN, 0, 0, otherwise)]


def _pair_of_connected() -> list[Instruction]:
    """Return the filter of `socketpair` that allows only permanently connected Unix sockets; others
    could address sockets in the file system."""
    kinds = [
        (_AND, 0, 0, ~_SOCKET_FLAGS & 0xFFFFFFFF),
        *_one_of(_CONNECTED, _ALLOW),
        (_RETURN, 0, 0, _EPERM),
    ]
    return [_argument(0), (_JUMP_EQ, 1, 0, _AF_UNIX), (_RETURN, 0, 0, _EPERM), _argument(1), *kinds]


def _own_clock() -> list[Instruction]:
    """Return the filter that allows the system's clocks and the caller's own CPU clocks, and
    answers EINVAL for another process's."""
    own = [*_one_of(_OWN_CLOCKS, _ALLOW), (_RETURN, 0, 0, _BAD_CLOCK)]
    return [_argument(0), (_JUMP_GE, 0, len(own), _DYNAMIC_CLOCK), *own, (_RETURN, 0, 0, _ALLOW)]


def _ranges(machine: str, more: dict[str, int] | None = None) -> list[tuple[int, int]]:
    """Return (first number, verdict) of each run of equal verdicts, ascending from 0. `more` are
    further allowed calls (None: none). Unlisted calls have ENOSYS; if a call is in several tables,
    allowing wins."""
    verdicts = dict.fromkeys(numbers(REFUSED, machine).values(), _EPERM)
    verdicts.update(dict.fromkeys(numbers(UNSUPPORTED, machine).values(), _UNSUPPORTED))
    verdicts.update(dict.fromkeys(numbers(ALLOWED, machine).values(), _ALLOW))
    verdicts.update(dict.fromkeys((more or {}).values(), _ALLOW))
    runs: list[tuple[int, int]] = []
    for number in range(max(verdicts) + 2):
        verdict = verdicts.get(number, _ENOSYS)
        if not runs or runs[-1][1] != verdict:
            runs.append((number, verdict))
    return runs


def _tree(runs: list[tuple[int, int]]) -> list[Instruction]:
    """Return a binary search over runs of equal verdicts for the loaded number. Raises ValueError
    if a branch has more instructions than one jump can skip."""
    if len(runs) == 1:
        return [(_RETURN, 0, 0, runs[0][1])]
    middle = len(runs) // 2
    low, high = _tree(runs[:middle]), _tree(runs[middle:])
    if len(low) > 255:
        raise ValueError("a branch of the filter is too long for one jump")
    return [(_JUMP_GE, len(low), 0, runs[middle][0]), *low, *high]


def _assemble(code: list[Instruction]) -> bytes:
    """Return the instructions in the kernel's form, `struct sock_filter`."""
    return b"".join(
        struct.pack("HBBI", operation, yes, no, constant) for operation, yes, no, constant in code
    )
