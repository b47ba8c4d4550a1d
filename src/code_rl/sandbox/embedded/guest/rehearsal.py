"""Before the first fork: go once through what every test does, so that the processes forked from here find it done.

A first use writes: CPython fills its method cache, interns names, prepares argument parsers and rewrites bytecode. After a fork each of these writes copies
a page, in every test anew; before it they cost nothing. Nothing of the rehearsal stays visible to a program.
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
from typing import NoReturn

from code_rl.sandbox import runner
from code_rl.sandbox.embedded.guest import cycle, kernel, testrun, wire
from code_rl.sandbox.embedded.guest.confinement import confine
from code_rl.sandbox.embedded.guest.supervisor import Supervisor

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
    sys.stdout.write(str(max(a, b)) + "\\n")

if __name__ == "__main__":
    main()
"""
_INPUT = b"3 4\none two\nthree\nfour\n"
_TIMES = 20
"""CPython settles a function's bytecode within this many calls."""


class _Exit(testrun.TestRun):
    """A test that ends at once."""

    def __init__(self) -> None:
        pass

    def child(self) -> NoReturn:
        os._exit(0)

    def close(self, _account: kernel.Account) -> None:
        return


def rehearse() -> None:
    """Run a small program in this very process, with streams of its own, and a supervisor around tests that end at once; put everything back."""
    kept = {name: sys.modules.get(name) for name in ("__main__", runner.CALL_MODULE)}
    standard, argv, recursion = (sys.stdin, sys.stdout, sys.stderr), sys.argv, sys.getrecursionlimit()
    interrupt = signal.getsignal(signal.SIGINT)
    streams = [os.memfd_create(name) for name in ("stdin", "stdout")]
    os.pwrite(streams[0], _INPUT, 0)
    ours, theirs = wire.pair()
    try:
        for _ in range(_TIMES):
            socket.send_fds(theirs, [wire.CASE_DATAGRAM], [*streams, streams[1]])
            _act(streams[0], streams[1], ours.fileno())
        _supervise()
    finally:
        sys.stdin, sys.stdout, sys.stderr = standard
        sys.argv = argv
        sys.setrecursionlimit(recursion)
        signal.signal(signal.SIGINT, interrupt)
        gc.disable()
        for name, module in kept.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module
        linecache.cache.pop(runner.FILENAME, None)
        for fd in streams:
            os.close(fd)
        ours.close()
        theirs.close()


def _act(stdin: int, stdout: int, channel: int) -> None:
    """A test, as its own process goes through it."""
    os.lseek(stdin, 0, os.SEEK_SET)
    os.ftruncate(stdout, 0)
    os.close(os.dup(stdin))
    first = testrun.First(False, (cycle.drop_capabilities(kernel.NOBODYS_HEADER),), kernel.Account())
    given = first.expect(channel, resource.getrlimit(resource.RLIMIT_CPU))
    first.steps.take()
    for fd in given:
        os.close(fd)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(stdin, "r", closefd=False)), "utf-8")
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(stdout, "w", closefd=False)), "utf-8")
    program = runner.Program(_PROGRAM)
    module = runner.prepare(program, runner.depth())
    if runner.end(program, module, runner.run(program, module)) != 0:
        raise RuntimeError("the rehearsal failed")


def _supervise() -> None:
    """Tests, as their supervisor goes through them."""
    ours, theirs = wire.pair()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD,))
    job = wire.JobMessage(False, _PROGRAM, "", "", None, 6.0, 26.0, False, 1 << 30, 1 << 26, 64, 256, 1 << 26, 1, 0)
    nothing = confine.Confinement(confine.NONE, (), "", False, -1)
    supervisor = Supervisor(nothing, 0, sees_tests=True)
    for _ in range(_TIMES):
        for datagram in wire.job_datagrams(job):
            theirs.send(datagram)
        theirs.send(wire.CASE_DATAGRAM)
        supervisor.rehearse(ours, _Exit())
        ours.recv(1)
        theirs.recv(1 << 16)
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        with contextlib.suppress(kernel.KernelError):
            kernel.mount("proc", "/nowhere", "proc", 0, "")
        for kind in (resource.RLIMIT_CORE, resource.RLIMIT_NOFILE):
            resource.setrlimit(kind, resource.getrlimit(kind))
    signal.sigtimedwait((signal.SIGCHLD,), 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    ours.close()
    theirs.close()
