"""PID 1 of one submission: it compiles the program once, forks a process for each test, and ends
all processes that a test started.

It does not know the number, inputs or outputs of tests. These are descriptors, which only the test
takes from the channel. After a test that leaves files, the remaining tests get a new supervisor.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import time
from typing import NoReturn

import code_rl.grading.sandbox.runner as runner
from code_rl.grading.sandbox.local.guest import files, kernel, wire
from code_rl.grading.sandbox.local.guest.confinement import confine
from code_rl.grading.sandbox.local.guest.testrun import BROKEN_EXIT, TestRun
from code_rl.grading.sandbox.local.guest.watch import Tree

SOURCE = "solution.py"
COMPILE_CPU_S = 20.0
FIRST_LOOK_S = 0.25
"""Seconds that a test runs before its CPU time is first read."""
LONGEST_LOOK_S, SHORTEST_LOOK_S = 0.25, 0.01
IDLE_PART = 1 / 16
"""A test that sleeps, and used less than this share of a processor since the last look, is idle and
lends its slot."""
_FRAMES_BELOW = 3
"""Frames between `Supervisor.supervise` and the program (`_run_one`, `TestRun.child` and two of the
runner), less the frame of `_test_run`, which counts them."""
_FILE_CLOCK = 5
"""CLOCK_REALTIME_COARSE, by which the kernel dates files."""
_COMPILE_RESERVE = 64 << 20
_DETAIL = 300
_P_PID, _P_ALL = int(os.P_PID), int(os.P_ALL)
_ENDED = os.WEXITED | os.WNOHANG
_LOOK = _ENDED | os.WNOWAIT
_CHILD = (int(signal.SIGCHLD),)


class Supervisor:
    """Runs the tests of one job. The worker makes it once; each job uses it in its own process."""

    def __init__(self, wanted: confine.Confinement, base_bytes: int, tree: Tree) -> None:
        """Make the buffers and calls that all jobs share, once before the forks. `base_bytes` is
        the address space that an interpreter uses before its program."""
        self._wanted, self._base, self._tree = wanted, base_bytes, tree
        self._account, self._others = kernel.ExitRecord(), kernel.ExitRecord()
        self._first_look, self._files = kernel.ChildSignal(FIRST_LOOK_S), kernel.FileState(SOURCE)

    def supervise(self, channel: socket.socket, directory: str) -> NoReturn:
        """In a new process: take the job from `channel`, compile, run each test, report, and exit.
        Never returns. It ends without running the remaining tests after one that changes files.
        Raises ConnectionError if the host is gone, OSError.

        `directory`: the working directory if /tmp is not private. The process is confined before it
        compiles the program.
        """
        job = self._receive_job(channel)
        room = job.file_bytes + job.laid_out_bytes
        confinement = confine.confine_submission(self._wanted, room, directory, job.shows_proc)
        program = self._compile()
        for _ in range(job.files):
            files.lay_out(*wire.receive_file(channel))
        if not job.files:
            self._lay_out_source()
        run = self._test_run(confinement, program, f"{os.getcwd()}/{SOURCE}")
        self._once = bool(job.files or job.fetch)
        for path in (".", SOURCE)[: 1 if self._once else 2]:
            os.utime(path, (0, 0))  # the same for every submission
        self._note_files()
        while not self._tainted and channel.recv(1, socket.MSG_PEEK):
            self._run_one(run)
        os._exit(0)

    def rehearse(self, channel: socket.socket, confinement: confine.TestConfinement) -> TestRun:
        """Do the same for one test, but for what would change this process for good. Return the
        test's start. `warmup` calls it before the first fork."""
        self._receive_job(channel)
        run = self._test_run(confinement, self._compile(), f"/{SOURCE}")
        self._once, self._source = False, b""
        self._note_files()
        self._run_one(run)
        return run

    def _receive_job(self, channel: socket.socket) -> wire.JobMessage:
        """Block SIGCHLD, for which `_watch` waits, and return the job. Raises ConnectionError."""
        self._channel = channel
        signal.pthread_sigmask(signal.SIG_BLOCK, _CHILD)
        self._job = wire.receive_job(channel)
        return self._job

    def _test_run(
        self, confinement: confine.TestConfinement, program: runner.Program, path: str
    ) -> TestRun:
        """Return the start of each test, ready to be forked. It sets the tests' limits on this
        process and closes its descriptors 0 to 2 (or 3), so it is the last step before the
        tests."""
        run = TestRun(self._job, self._channel, confinement, program, self._base)
        runner.prepare(program, runner.depth() + _FRAMES_BELOW, path)
        if self._job.fetch:
            run.take_fetched()
        run.make_ready()
        return run

    def _note_files(self) -> None:
        """Remember the files that tests find, to see which test changes them. The last step before
        the first test."""
        self._tainted, self._young = False, True
        self._files.note()
        self._laid_out_ns = os.stat(".").st_ctime_ns

    def _run_one(self, run: TestRun) -> None:
        """Run one test to its end, kill and reap all that it started, and send its report. Objects
        made here are freed, so that every test begins with the same memory. `_tainted` is True if
        the next test needs another supervisor.

        Raises RuntimeError if the test's process never became the program.
        """
        account, others = self._account, self._others
        # In the tick of the kernel's clock in which files were laid out, a change has their ctime.
        if self._young:
            self._young = time.clock_gettime_ns(_FILE_CLOCK) <= self._laid_out_ns
        account.begin()
        pid = kernel.fork()
        if pid == 0:
            run.child()
        self._first_look.wait()
        cause = wire.RAN if account.wait(_P_PID, pid, _ENDED) else self._watch(pid)
        account.end()
        if others.wait(_P_ALL, 0, _LOOK) is not None:
            reap_all(pid, self._wanted.level, others, self._channel)
        if self._once or account.exit_code() == BROKEN_EXIT:
            run.close()
        self._tainted = (
            self._once or self._files.changed() or (self._young and self._reads_otherwise())
        )
        account.send(self._channel, wire.RESULT, cause, self._tainted)

    def _reads_otherwise(self) -> bool:
        """Return True if the working directory holds anything but the program's unchanged file."""
        try:
            return not files.holds_only(SOURCE, self._source)
        except OSError:
            return True

    def _watch(self, pid: int) -> int:
        """Wait for the end of a longer test, and reap it. Return how it ended: RAN, or killed as
        OVER_CPU or OVER_WALL. The host is told once if it is idle.

        Wall time does not count while the test waits for a processor: between two looks, at the
        second of which a thread could run, only the CPU time counts.
        """
        job, looked = self._job, self._account.began_s
        wall_s, used, told = 0.0, 0.0, False
        while True:
            now, (cpu_s, runnable) = time.monotonic(), self._tree.look(pid)
            counted = passed = now - looked
            if runnable:
                counted = min(cpu_s - used, passed)
                self._account.leave_out(passed - counted)
            elif not told and passed >= FIRST_LOOK_S and cpu_s - used < IDLE_PART * passed:
                told = True
                with contextlib.suppress(BrokenPipeError):  # the host has all its results
                    self._channel.send(wire.record(wire.IDLE))
            wall_s, used, looked = wall_s + counted, cpu_s, now
            if cpu_s > job.cpu_s or wall_s >= job.wall_s:
                kill_all(pid, self._wanted.level)
                self._account.wait(_P_PID, pid, os.WEXITED)
                return wire.OVER_CPU if cpu_s > job.cpu_s else wire.OVER_WALL
            # A program that knew the time of a look could be awake for it only.
            longest_s = LONGEST_LOOK_S * (1 + os.urandom(1)[0] / 256)
            look_s = max(min(job.cpu_s - cpu_s, job.wall_s - wall_s, longest_s), SHORTEST_LOOK_S)
            end = time.monotonic() + look_s
            while (left_s := end - time.monotonic()) > 0:
                signal.sigtimedwait(_CHILD, left_s)
                if self._account.wait(_P_PID, pid, _ENDED):
                    return wire.RAN

    def _compile(self) -> runner.Program:
        """Compile the program, within 20 CPU seconds and the job's memory. If that fails, report it
        and end this process with 0; at the CPU limit it ends with SIGPROF's number."""
        job = self._job
        kind = resource.RLIMIT_AS
        _, hard = resource.getrlimit(kind)
        room = self._base + job.memory_bytes + _COMPILE_RESERVE
        resource.setrlimit(
            kind, (room if hard == resource.RLIM_INFINITY else min(room, hard), hard)
        )
        kernel.end_after_cpu(COMPILE_CPU_S)
        try:
            program = runner.Program(job.code, job.fn_name, job.preamble, job.setup)
            self._account.note_compiled()
            return program
        except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
            detail = f"{type(error).__name__}: {error}"
        finally:
            kernel.end_after_cpu(0)
            resource.setrlimit(kind, (hard, hard))
        text = detail[:_DETAIL].encode("utf-8", "replace")
        self._channel.send(wire.record(wire.COMPILE_ERROR, text))
        os._exit(0)

    def _lay_out_source(self) -> None:
        """Write the program to a read-only file of the working directory, for `open(__file__)`.
        Raises OSError."""
        self._source = self._job.code.encode("utf-8", "surrogatepass")
        fd = os.open(SOURCE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
        with open(fd, "wb") as file:
            file.write(self._source)


def reap_all(pid: int, level: str, other: kernel.ExitRecord, channel: socket.socket) -> None:
    """Kill and reap all processes that the ended test `pid` left. Each is reported to the host with
    `other`, so that its CPU time counts."""
    options = os.WEXITED | os.WNOHANG
    while (ended := other.wait(os.P_ALL, 0, options)) is not None:
        if ended:
            other.send(channel, wire.REAPED, wire.RAN, tainted=False)
        else:
            kill_all(pid, level)
            options = os.WEXITED


def kill_all(pid: int, level: str) -> None:
    """Kill all processes of the submission except this one, without waiting. `pid` is the running
    test, or 0. A process that has just ended is not an error.

    At `full` these are all processes of the PID namespace. Without a namespace these are the test's
    process group, which at `landlock` they cannot leave, and orphans that became children of this
    process.
    """
    targets = [-1] if level == confine.FULL else [-pid] * (pid > 0) + _children()
    for target in targets:
        with contextlib.suppress(ProcessLookupError):
            os.kill(target, signal.SIGKILL)


def _children() -> list[int]:
    """Return the process ids of this process's children; none if /proc cannot be read."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def end_orphans() -> None:
    """Kill and reap every child of this process, with those that it inherits meanwhile from an
    ended submission."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                kill_all(0, "")
                os.waitpid(-1, 0)
        except ChildProcessError:
            return
