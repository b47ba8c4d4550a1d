"""From a fork of the harness to the process of a test: descriptors, limits, account, streams."""

from __future__ import annotations

import ctypes
import io
import os
import resource
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

COMPILE_CPU_S = 10
STACK_BYTES = 256 << 20
DATA_RESERVE, THREAD_STACK = 1 << 30, 8 << 20
"""Beyond the memory limit, what may be writable: stacks of threads, buffers never touched. What is touched is judged by peak memory."""
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36
PARKED_FD = 100

libc = ctypes.CDLL(None, use_errno=True)


def become_program(
    child: Callable[[], None], directory: str, descriptors: list[int], limits: dict[str, Any], uid: int | None
) -> NoReturn:
    """In the fork: move `descriptors` to 0, 1, 2, ..., confine, run `child`, end."""
    code = 1
    try:
        with suppress(OSError):  # a server of ours refuses new sessions
            os.setsid()
        os.chdir(directory)
        for target, fd in enumerate(descriptors):
            os.dup2(fd, PARKED_FD + target)
        for target in range(len(descriptors)):
            os.dup2(PARKED_FD + target, target)
        os.closerange(len(descriptors), 1 << 12)
        confine(limits, uid)
        fresh_streams()
        here = os.getcwd()
        sys.path[0] = here
        os.environ.update(HOME=here, TMPDIR=here)
        child()
        code = 0
    except BaseException as error:  # noqa: BLE001 - reported to the parent through standard error
        os.write(2, f"{type(error).__name__}: {error}\n".encode("utf-8", "backslashreplace"))
    finally:
        os._exit(code)


def confine(limits: dict[str, Any], uid: int | None) -> None:
    """Set the limits, then take the account, which may no longer raise them."""
    lower(resource.RLIMIT_DATA, (limits["memory_mb"] << 20) + max(DATA_RESERVE, limits["processes"] * THREAD_STACK))
    lower(resource.RLIMIT_NOFILE, limits["open_files"])
    lower(resource.RLIMIT_CPU, max(int(limits["cpu_s"]), COMPILE_CPU_S) + 2)
    lower(resource.RLIMIT_FSIZE, limits["file_mb"] << 20)
    lower(resource.RLIMIT_CORE, 0)
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    if soft != resource.RLIM_INFINITY and soft < STACK_BYTES:
        wanted = STACK_BYTES if hard == resource.RLIM_INFINITY else min(hard, STACK_BYTES)
        resource.setrlimit(resource.RLIMIT_STACK, (wanted, hard))
    if uid is not None:
        # Only here: under a shared account the limit would count everybody's processes.
        lower(resource.RLIMIT_NPROC, limits["processes"])
        take_account(uid)
    # Changing the account turned it off, and /proc/self with /dev/stdin would stay root's.
    libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)


def take_account(uid: int) -> None:
    """Become `uid` for good. Raises OSError where that is not possible."""
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)


def lower(which: int, value: int) -> None:
    """Set both limits, or keep the hard one if it is lower already."""
    hard = resource.getrlimit(which)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(which, (value, value))


def fresh_streams() -> None:
    """The three standard streams as the interpreter makes them at its start, in UTF-8."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        raw = io.FileIO(fd, "rb" if fd == 0 else "wb", closefd=False)
        raw.name = f"<{name}>"
        buffer = io.BufferedReader(raw) if fd == 0 else io.BufferedWriter(raw)
        errors = "backslashreplace" if fd == 2 else "strict"
        stream = io.TextIOWrapper(buffer, "utf-8", errors, newline="\n", line_buffering=fd == 2)
        setattr(stream, "mode", "r" if fd == 0 else "w")  # noqa: B010 - declared read-only, set by the interpreter as well
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def anonymous_file() -> int:
    """A descriptor of an empty file without a name.

    Where no file can be in memory (our own server refuses memfd_create), tests write to the same file system, and can leave no room on it.
    """
    try:
        return os.memfd_create("results")
    except OSError:
        name = f"results-{os.getpid()}"
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.unlink(name)
        return fd


def take_file(name: str) -> int:
    """A descriptor to read a file by, which loses its name."""
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    with suppress(OSError):  # a test with an account of its own may open /dev/stdin
        os.fchmod(fd, 0o444)
    os.unlink(name)
    return fd


def read_all(fd: int) -> bytes:
    """Read from the start to the end."""
    os.lseek(fd, 0, os.SEEK_SET)
    parts: list[bytes] = []
    while True:
        part = os.read(fd, 1 << 20)
        if not part:
            return b"".join(parts)
        parts.append(part)


def accounts() -> bool:
    """Whether tests can have accounts of their own: this process is root, and the interpreter is readable for everyone."""
    if os.geteuid() != 0:
        return False
    if not all(open_to_all(path) for path in (os.getcwd(), sys.prefix, os.path.dirname(os.__file__))):
        return False
    pid = os.fork()
    if pid == 0:
        try:
            take_account(fresh_uid())
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


def fresh_uid() -> int:
    """A user id that nothing else has."""
    return (1 << 20) + int.from_bytes(os.urandom(4), "big") % (1 << 30)


def open_to_all(path: str) -> bool:
    """Whether every directory above `path` lets others through."""
    directory = os.path.dirname(os.path.realpath(path))
    while True:
        if not os.stat(directory).st_mode & stat.S_IXOTH:
            return False
        if directory == "/":
            return True
        directory = os.path.dirname(directory)
