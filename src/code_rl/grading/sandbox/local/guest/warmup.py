"""Runs a small program several times before the first fork, so that forked processes find its code
path warm.

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

import code_rl.grading.sandbox.runner as runner
from code_rl.grading.sandbox.local.guest import kernel, wire

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
_TIMES = 20
"""CPython stops adapting a function's bytecode within this many calls."""


def warm_up() -> None:
    """Run the program in this process, with streams of its own, and restore everything
    afterwards."""
    kept = {name: sys.modules.get(name) for name in ("__main__", runner.CALL_MODULE)}
    streams, argv, path, recursion = (
        (sys.stdin, sys.stdout, sys.stderr),
        sys.argv,
        sys.path[:],
        sys.getrecursionlimit(),
    )
    for _ in range(_TIMES):
        _run()
        _supervise()
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


def _run() -> None:
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.BytesIO(_INPUT)), "utf-8")
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.BytesIO()), "utf-8")
    program = runner.Program(_PROGRAM)
    module = runner.prepare(program, runner.depth())
    if runner.end(program, module, runner.run(program, module)) != 0:
        raise RuntimeError("the program that warms the interpreter failed")


def _supervise() -> None:
    """Exercise the steps around a test and its first steps, as far as this process can."""
    ours, theirs = wire.pair()
    null = os.open("/dev/null", os.O_RDONLY)
    job = wire.JobMessage(
        _PROGRAM, "", "", None, 6.0, 26.0, False, 1 << 30, 1 << 26, 64, 256, 1 << 26, 1, 0
    )
    with ours, theirs:
        for datagram in wire.job_datagrams(job):
            theirs.send(datagram)
        wire.receive_job(ours)
        socket.send_fds(theirs, [wire.CASE_DATAGRAM], [null] * 3)
        ours.recv(1, socket.MSG_PEEK)
        for fd in socket.recv_fds(ours, 1, 3)[1]:
            os.close(fd)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    with contextlib.suppress(kernel.KernelError):
        kernel.mount("proc", "/nowhere", "proc", 0, "")
    for kind in (resource.RLIMIT_CORE, resource.RLIMIT_NOFILE):
        resource.setrlimit(kind, resource.getrlimit(kind))
    account = kernel.ExitRecord()
    account.begin()
    pid, pidfd = kernel.clone3(0)
    if pid == 0:
        os._exit(0)
    if not account.wait(os.P_PID, pid, os.WEXITED) or account.exit_code():
        raise RuntimeError("a process was lost")
    account.end()
    signal.sigtimedwait((signal.SIGCHLD,), 0)
    os.close(pidfd)
    os.close(null)
