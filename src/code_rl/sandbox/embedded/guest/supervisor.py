"""PID 1 of one submission: compiles the program once, forks one child per test, kills all that is left, passes on how it ended.

All tests are forks of this process, so it knows nothing that a test may not know: not how many tests there are, not which it is, not what an earlier one was given,
wrote, used or did. Inputs and outputs are descriptors, which only the test takes from the channel. Between two tests no bytecode runs (`cycle`). A test that takes longer is watched
(`watch`); it, and one that leaves anything behind (processes, files, other times or modes of the working directory), is the last one here: the rest get a new supervisor.

While a test runs this process sleeps: every page that it touches would be copied, which is most of what a test costs. It handles no signal; those that it waits for
are believed only from outside the namespace, where no test is.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
from typing import NoReturn

from code_rl.sandbox import runner
from code_rl.sandbox.embedded.guest import cycle, files, kernel, wire
from code_rl.sandbox.embedded.guest.confinement import confine, rootfs
from code_rl.sandbox.embedded.guest.testrun import BROKEN_EXIT, First, TestRun
from code_rl.sandbox.embedded.guest.watch import LIMITS, WATCH_AFTER_S

STACK_BYTES = 1 << 30
SOURCE = "solution.py"
COMPILE_CPU_S = 20.0
_FRAMES_BELOW = 3
"""From `Supervisor.supervise` down to the program: `TestRun.child` and the runner's two."""
_REHEARSAL_S = 60.0
_COMPILE_RESERVE = 64 << 20
_DETAIL = 300
_FIRST_PID = 2
"""The number of each test's process where numbers are counted anew."""
_CAUSES: dict[int, int] = {signal.SIGUSR1: wire.OVER_CPU, signal.SIGUSR2: wire.OVER_WALL}
"""By which signal the watch says that a test is over its time."""

_AWAITED = frozenset((signal.SIGCHLD, *_CAUSES))
_LOOK = os.WEXITED | os.WNOHANG | os.WNOWAIT


class Supervisor:
    """Runs the tests of one job. Made in the worker; used in a process of its own for each job."""

    def __init__(self, wanted: confine.Confinement, base_bytes: int, sees_tests: bool) -> None:
        """`sees_tests`: the watch can tell what tests use without their CPU clocks."""
        self._wanted, self._base, self._sees_tests = wanted, base_bytes, sees_tests
        self._account, self._others = kernel.Account(), kernel.Account()
        self._dropping = (cycle.drop_capabilities(),) if wanted.level == confine.FULL else ()
        self._script, self._call = (First(call, self._dropping, self._account) for call in (False, True))

    def supervise(self, channel: socket.socket, directory: str, keeper: socket.socket) -> NoReturn:
        """In a process just forked: take the job that arrives on `channel`, compile, run every test that comes, report, exit.

        `directory`: where to work, where /tmp is not private. `keeper`: whom to tell of a test that is to be watched.
        """
        self._channel, self._keeper, self._myself = channel, keeper, os.pidfd_open(os.getpid())
        signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
        job = self._job = wire.receive_job(channel)
        counter = open_counter(self._wanted)
        room = job.file_bytes + job.laid_out_bytes
        clocks = not self._sees_tests
        confinement = confine.confine_submission(self._wanted, room, directory, job.shows_proc, clocks)
        program = self._compile()
        self._account.note_compiled()
        for _ in range(job.files):
            files.lay_out(*wire.receive_file(channel))
        if not job.files:
            self._lay_out_source()
        repeats = counter >= 0 and job.several and not job.files and not job.fetch
        run = TestRun(job, channel, confinement, program, self._base)
        if job.tells and not repeats:
            channel.send(wire.record(wire.COMPILED))
        if job.fetch:
            run.take_fetched()
        run.make_ready(self._call if job.fn_name is not None else self._script)
        rounds = self._rounds(counter, confinement.renews_proc) if repeats else None
        runner.prepare(program, runner.depth() + _FRAMES_BELOW, f"{os.getcwd()}/{SOURCE}")
        pid = self._repeat(rounds, counter) if rounds else self._fork(counter)
        if pid == 0:
            run.child()
        self._end(run, pid, 0 if repeats else WATCH_AFTER_S)
        os._exit(0)

    def rehearse(self, channel: socket.socket, run: TestRun) -> None:
        """What is done for a job and a test, done in a process that has no namespaces."""
        self._channel = channel
        self._job = wire.receive_job(channel)
        channel.recv(1, socket.MSG_PEEK)
        self._account.begin()
        pid = kernel.fork()
        if pid == 0:
            run.child()
        self._end(run, pid, _REHEARSAL_S)

    def _fork(self, counter: int) -> int:
        """Begin the only test of this supervisor. Returns its process id, 0 in the test."""
        if not self._channel.recv(1, socket.MSG_PEEK):
            raise ConnectionError
        if counter >= 0:
            os.pwrite(counter, b"1", 0)
        self._account.begin()
        return kernel.fork()

    def _repeat(self, rounds: cycle.Rounds, counter: int) -> int:
        """Run test after test. Returns 0 in a test; or the number of a test's process that needs to be looked after."""
        if rounds.run():
            return 0
        begun = any(self._account.view[wire.BEGAN_AT : wire.ENDED_AT])
        return _FIRST_PID if begun else self._fork(counter)

    def _rounds(self, counter: int, renews_proc: bool) -> cycle.Rounds:
        """A test each."""
        account, others, channel = self._account, self._others, self._channel.fileno()
        looks = cycle.Looks(".", SOURCE)
        account.view[wire.CAUSE_AT] = wire.REHEARSED
        pid, broken = _FIRST_PID.to_bytes(4, "little"), BROKEN_EXIT.to_bytes(4, "little")
        return cycle.Rounds(
            cycle.something_to_read(channel),
            *(rootfs.renewing_private_proc() if renews_proc else ()),
            *looks.begin(),
            cycle.write(counter, b"1"),
            cycle.clock(account.began),
            cycle.fork(_FIRST_PID),
            cycle.next_signal((signal.SIGCHLD,), WATCH_AFTER_S, cycle.gives(signal.SIGCHLD)),
            cycle.waitid(os.P_PID, _FIRST_PID, os.WEXITED | os.WNOHANG, account.info, account.usage),
            cycle.equal(account.pid, pid, len(pid)),
            cycle.clock(account.ended),
            cycle.waitid(os.P_ALL, 0, _LOOK, others.info, None, cycle.gives(-1)),
            cycle.next_signal(tuple(_CAUSES), 0, cycle.gives(-1)),
            cycle.equal(account.status, broken, len(broken), bool),
            *looks.same(),
            cycle.send(channel, account.place, wire.ACCOUNT_BYTES),
            cycle.wipe(account.cause, wire.ACCOUNT_BYTES - wire.CAUSE_AT),
        )

    def _end(self, run: TestRun, pid: int, at_first_s: float) -> None:
        """See a test to its end, and report; watch it when it has taken so long. What began in `_repeat` may have ended there."""
        account = self._account
        cause = account.view[wire.CAUSE_AT]
        if not account.found():
            if not signal.sigtimedwait(_AWAITED, at_first_s) or not account.wait(os.P_PID, pid, _LOOK):
                cause = self._wait(pid) or cause
            if not account.wait(os.P_PID, pid, os.WEXITED):
                raise RuntimeError("no test could be forked")
            account.end()
        reap_all(pid, self._wanted.level, self._others, self._channel)
        run.close(account)
        account.send(self._channel, wire.RESULT, cause, spoilt=True)

    def _wait(self, pid: int) -> int:
        """Wait for the end of a test that takes longer, while it is watched. Returns how it ended."""
        job, account = self._job, self._account
        limits = LIMITS.pack(job.cpu_s, job.wall_s, job.strict)
        given = (limits, account.view[wire.BEGAN_AT : wire.ENDED_AT])
        socket.send_fds(self._keeper, given, [self._channel.fileno(), self._myself])
        cause, contained = wire.RAN, self._wanted.level == confine.FULL
        while not (ended := account.wait(os.P_PID, pid, _LOOK)):
            if ended is None:
                raise RuntimeError("no test could be forked")
            said = signal.sigwaitinfo(_AWAITED)
            if said.si_signo in _CAUSES and (said.si_pid == said.si_code == 0 or not contained):
                # From outside, where no test is: a sender in the namespace writes any si_pid, but then not SI_USER (0) for si_code.
                cause = _CAUSES[said.si_signo]
                kill_all(pid, self._wanted.level)
        return cause

    def _compile(self) -> runner.Program:
        """The program; one that cannot be compiled ends this process, after word of it."""
        job = self._job
        kind = resource.RLIMIT_AS
        _, hard = resource.getrlimit(kind)
        room = self._base + job.memory_bytes + _COMPILE_RESERVE
        resource.setrlimit(kind, (room if hard == resource.RLIM_INFINITY else min(room, hard), hard))
        kernel.end_after_cpu(COMPILE_CPU_S)
        try:
            return runner.Program(job.code, job.fn_name, job.preamble, job.setup)
        except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
            detail = f"{type(error).__name__}: {error}"
        finally:
            kernel.end_after_cpu(0)
            resource.setrlimit(kind, (hard, hard))
        text = detail[:_DETAIL].encode("utf-8", "replace")
        self._channel.send(wire.record(wire.COMPILE_ERROR, text))
        os._exit(0)

    def _lay_out_source(self) -> None:
        """The program as a file, for `open(__file__)`."""
        fd = os.open(SOURCE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
        with open(fd, "wb") as file:
            file.write(self._job.code.encode("utf-8", "surrogatepass"))


def open_counter(wanted: confine.Confinement) -> int:
    """A descriptor where the number of the last process of a PID namespace is set, by a process in it; -1: there is none."""
    if wanted.level != confine.FULL:
        return -1
    try:
        return os.open("sys/kernel/ns_last_pid", os.O_WRONLY | os.O_CLOEXEC, dir_fd=wanted.proc)
    except OSError:
        return -1


def reap_all(pid: int, level: str, other: kernel.Account, channel: socket.socket) -> None:
    """Kill all that the test `pid`, which has ended, left behind, and reap it; each account goes up from `other`.

    Children of the test are handed to this process when their parents end, and none can be reaped unseen (ignoring SIGCHLD is refused), so that
    nothing is missing.
    """
    options = os.WEXITED | os.WNOHANG
    while (ended := other.wait(os.P_ALL, 0, options)) is not None:
        if ended:
            other.send(channel, wire.REAPED, wire.RAN, spoilt=False)
        else:
            kill_all(pid, level)
            options = os.WEXITED


def kill_all(pid: int, level: str) -> None:
    """Kill all processes of the submission but this one; `pid` is the running test, or 0. Those that have just ended are no error.

    Where no namespace holds them, they are the test's process group, which at `landlock` they cannot leave, and children that came to us.
    """
    targets = [-1] if level == confine.FULL else [-pid] * (pid > 0) + _children()
    for target in targets:
        with contextlib.suppress(ProcessLookupError):
            os.kill(target, signal.SIGKILL)


def _children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def end_orphans() -> None:
    """Kill and reap every process that an ended submission handed up to this one."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                kill_all(0, "")
                os.waitpid(-1, 0)
        except ChildProcessError:
            return
