"""Runs a test of a small program several times before the first fork, as the supervisor and as the
test's process, so that forked processes find their code paths warm.

A first use writes to memory: CPython fills its method caches, interns names and adapts bytecode.
After a fork each such write would copy a page, again in every test.
"""

from __future__ import annotations

import contextlib
import gc
import io
import linecache
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from typing import NoReturn

import code_rl.grading.sandbox.runner as runner
from code_rl.grading.sandbox.local.guest import kernel, supervisor, testrun, watch, wire
from code_rl.grading.sandbox.local.guest.confinement import confine

_PROGRAM = """
import sys
from collections import defaultdict

def solve(n):
    counts = defaultdict(int)
    for i in range(n):
        counts[i % 3] += 1
    return sorted(counts.items(), key=lambda pair: -pair[1])

def main():
    a, b = map(int, input().split())
    words = sys.stdin.readline().strip().split()
    rest = [line.rstrip() for line in sys.stdin]
    print(a + b, len(words), *rest)
    print(f"{solve(a)[0][0]} {a / b:.3f}", end=" ")
    print(" ".join(map(str, [a, b])))

if __name__ == "__main__":
    main()
"""
_INPUT = b"3 4\none two\nthree\nfour\n"
_JOB = wire.JobMessage(
    _PROGRAM, "", "", None, 6.0, 26.0, False, 1 << 30, 1 << 26, 64, 256, 1 << 26, 0, 0
)
_TIMES = 20
"""CPython stops adapting a function's bytecode within this many calls."""


class _EndedError(BaseException):
    """Ends a test that ran in this process."""


def warm_up(wanted: confine.Confinement) -> None:
    """Run the program's test in this process, with streams of its own, and restore everything
    afterwards, except that the garbage collector is off. Raises RuntimeError if the test fails, and
    anything that it raises."""
    kept = {name: sys.modules.get(name) for name in ("__main__", runner.CALL_MODULE)}
    streams, argv, path, recursion = (
        (sys.stdin, sys.stdout, sys.stderr),
        sys.argv,
        sys.path[:],
        sys.getrecursionlimit(),
    )
    open_here = {fd: os.dup(fd) for fd in (0, 1, 2, *testrun.RESERVED)}
    try:
        with _harmless():
            tools = supervisor.Supervisor(wanted, 0, watch.Tree(-1, wanted.level))
            for _ in range(_TIMES):
                _rehearse(tools, wanted)
                _supervise()
    finally:  # also for the traceback of an error
        for fd, own in open_here.items():
            os.dup2(own, fd, inheritable=fd <= 2)
            os.close(own)
        sys.stdin, sys.stdout, sys.stderr = streams
    sys.argv, sys.path[:] = argv, path
    sys.setrecursionlimit(recursion)
    gc.disable()
    for name, module in kept.items():
        if module is None:
            sys.modules.pop(name, None)
        else:
            sys.modules[name] = module
    linecache.cache.pop(runner.FILENAME, None)


@contextlib.contextmanager
def _harmless() -> Iterator[None]:
    """Replace, during the block, what gives up rights or descriptors for good by functions that do
    nothing, and the file that a supervisor looks at. The block has one thread."""
    replaced = (
        (resource, "setrlimit", lambda *_: None),
        (os, "closerange", lambda *_: None),
        (supervisor, "SOURCE", "."),
    )
    kept = [(module, name, getattr(module, name)) for module, name, _ in replaced]
    for module, name, value in replaced:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in kept:
            setattr(module, name, value)


def _rehearse(tools: supervisor.Supervisor, wanted: confine.Confinement) -> None:
    """Run the test twice: in a process of its own, and in this one. It replaces `sys.stdin` and
    `sys.stdout`, which the caller restores. Raises RuntimeError if the program fails."""
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.BytesIO(_INPUT)), "utf-8")
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.BytesIO()), "utf-8")
    ours, theirs = wire.pair()
    null = os.open("/dev/null", os.O_RDWR)
    ending = runner._exit
    with ours, theirs:
        for datagram in wire.job_datagrams(_JOB):
            theirs.send(datagram)
        for _ in range(2):
            socket.send_fds(theirs, [wire.CASE_DATAGRAM], [null] * 3)
        # At `full` a test has nothing left to give up.
        confinement = confine.TestConfinement(wanted._replace(level=confine.FULL))
        run = tools.rehearse(ours, confinement)
        # On a busy machine the supervisor first reports that the test waits.
        while not isinstance(report := wire.unpack(theirs.recv(wire.CHUNK)), wire.ExitReport):
            pass
        if report.exit_code:
            raise RuntimeError("the program that warms the interpreter failed")
        runner._exit = _end
        try:
            run.child()
        except _EndedError:
            pass
        finally:
            runner._exit = ending
            run.forget()
            os.close(null)


def _end(status: int) -> NoReturn:
    """Raise _EndedError in place of ending this process."""
    raise _EndedError(status)


def _supervise() -> None:
    """Exercise those steps around a submission that would change this process for good, as far as
    that can be done."""
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    with contextlib.suppress(kernel.KernelError):
        kernel.mount("proc", "/nowhere", "proc", 0, "")
    pid, pidfd = kernel.clone3(0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    signal.sigtimedwait((signal.SIGCHLD,), 0)
    os.close(pidfd)
