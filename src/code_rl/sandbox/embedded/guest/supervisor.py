"""PID 1 of one submission: compiles the program once, forks one child per test, measures it, kills all that is left, reports.

Standard streams of a test are anonymous files in memory: nothing has to be fed or drained while it runs, so this process sleeps and the pages
that it shares with the test are not copied (copying them is most of what a test costs). A test has lost every other descriptor;
nothing it does can reach this process or its channel. A test that leaves files behind ends the submission's namespaces; the worker starts new
ones for the tests that remain.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import time
from typing import NoReturn, Protocol

from code_rl.sandbox import runner
from code_rl.sandbox.embedded.guest import confine, files, idleness, kernel, outcome, wire
from code_rl.sandbox.embedded.guest.stragglers import kill_all, reap_all
from code_rl.sandbox.embedded.guest.testrun import Streams, TestRun

COMPILED, RESTART = b"c", b"r"
RESTART_EXIT = 17
STACK_BYTES = 1 << 30
RESERVED_BYTES = 512 << 20
"""Address space beyond the memory limit, for stacks that threads reserve and never touch; what is touched is judged by peak memory."""
_FRAMES_BELOW = 3
"""From `Supervisor.run` down to the program: `run_one`, `TestRun.child` and the runner's own."""
_FLUSH_S = 0.005
_HOLD = 64
_LONGEST_NAP_S = 1.0
_LEAST_PROGRESS_S = 0.001
_WINDOW_S = 1.0
_SOON_S = 0.05
_SIGN_OF_LIFE_S = 10.0
_FAR = 16
"""How many times `longest_s` a test goes on before idle time is counted without leniency."""


class Test(Protocol):
    """How a test starts, and whether it started; a `TestRun`."""

    def child(self, index: int) -> NoReturn:
        """In the process just forked: become the program."""

    def check(self, exit_code: int) -> None:
        """Raise RuntimeError if the process that ended so never became the program."""


class Supervisor:
    """Runs the cases of one job from `job.start` on."""

    def __init__(
        self,
        job: wire.JobMessage,
        wanted: confine.Confinement,
        base_bytes: int,
        channel: socket.socket,
        progress: int,
        directory: str = "",
        processes: idleness.View = idleness.NO_VIEW,
    ) -> None:
        """`processes`: the view of this submission's processes, from `idleness.open_view`."""
        self._job, self._wanted, self._level, self._channel = job, wanted, wanted.level, channel
        self._progress, self._directory = progress, directory
        self._address_space = base_bytes + job.memory_bytes + RESERVED_BYTES
        self._held: list[bytes] = []
        self._held_since = 0.0
        self._release = 1
        self._test = 0
        self._deadline = 0.0
        self._began = 0.0
        self._sample = (0.0, 0.0)
        """Wall and CPU seconds of the running test when last looked at."""
        self._idle = idleness.IdleTime(processes)
        self._strict = job.longest_s <= job.wall_s
        self._spoke = 0.0
        self._stopped = False

    def run(self) -> NoReturn:
        """Compile, run every remaining case, report, exit."""
        signal.signal(signal.SIGALRM, self.on_alarm)
        job = self._job
        streams = Streams(job.fn_name is not None)
        laid_out = sum(len(data) for _, data in job.files)
        confine.confine_submission(self._wanted, job.file_bytes + laid_out, self._directory)
        program = self._compile()
        os.write(self._progress, COMPILED)
        runner.prepare(program, runner.depth() + _FRAMES_BELOW)
        files.lay_out(job.files)
        last = len(job.cases) - 1
        run = TestRun(job, self._level, program, self._address_space)
        for index in range(job.start, last + 1):
            self.report(self.run_one(run, streams, index))
            if index < last:
                if os.listdir("."):
                    self._restart_at(index + 1)
                streams.clear()
        self.flush()
        os._exit(0)

    def run_one(self, run: Test, streams: Streams, index: int) -> wire.Record:
        """Run one test to its end."""
        if self._job.fn_name is None:
            streams.set_stdin(self._job.cases[index])
        self._stopped = False
        self._test = 0
        self._began = time.monotonic()
        self._spoke = self._began
        self._sample = (0.0, 0.0)
        self._idle.begin()
        self._look_again(self._began, _WINDOW_S)
        signal.setitimer(signal.ITIMER_REAL, self._nap())
        pid = os.fork()
        if pid == 0:
            run.child(index)
        self._test = pid
        exit_code, cpu, peak = reap_all(pid, self._level)
        wall = time.monotonic() - self._began
        self._test, self._began = 0, 0.0  # an alarm on its way now finds nothing to do, and starts no further one
        signal.setitimer(signal.ITIMER_REAL, 0)
        run.check(exit_code)
        record = outcome.judge(self._job, index, streams, exit_code, self._stopped, cpu, wall, peak)
        return outcome.with_files(self._job, record) if self._job.fetch else record

    def _nap(self) -> float:
        """Seconds until the next look at the clocks."""
        now = time.monotonic()
        used = _cpu_used(self._test) if self._test else 0.0
        due = min(self._deadline - now, self._job.cpu_s - used)
        if self._held:
            due = min(due, _FLUSH_S)
        return max(min(due, _LONGEST_NAP_S), 0.002)

    def on_alarm(self, _number: int, _frame: object) -> None:
        """Send results that have waited long enough; stop a test that is over its time."""
        if not self._began:
            return
        if self._held and time.monotonic() - self._held_since >= _FLUSH_S:
            self.flush()
        if self._test and self._is_over(self._test):
            self._stopped = True
            kill_all(self._test, self._level)
        else:
            signal.setitimer(signal.ITIMER_REAL, self._nap())

    def _is_over(self, pid: int) -> bool:
        """Whether the running test has had its CPU time, or has been idle for its wall time.

        Time spent waiting for a processor is not idle time: a busy machine stops no test. Far past `longest_s` the count is less lenient with
        programs of many threads, which could otherwise get in their own way for long.
        """
        job, now = self._job, time.monotonic()
        used, elapsed = _cpu_used(pid), now - self._began
        if used > job.cpu_s or (self._strict and elapsed >= job.wall_s):
            return True
        if now < self._deadline:
            return False
        if not self._idle.look(elapsed, lenient=elapsed < _FAR * job.longest_s):
            return self._gains_little(used, elapsed)
        idle = self._idle.seconds
        if idle >= job.wall_s or self._idle.cpu_s > job.cpu_s:
            return True
        soon = _SOON_S if self._idle.open else max(job.wall_s - idle, _SOON_S)
        # At no time that a program could foresee, to be awake just then.
        self._look_again(now, min(soon, _WINDOW_S * (256 + os.urandom(1)[0]) / 512))
        self._give_sign_of_life(now)
        return False

    def _gains_little(self, used: float, elapsed: float) -> bool:
        """Where idle time cannot be told from waiting: a test that waits for a processor gets some of it in every second, one that sleeps none."""
        if elapsed >= self._job.longest_s:
            return True
        gained, window = used - self._sample[1], elapsed - self._sample[0]
        if window < _WINDOW_S:
            self._deadline = self._began + self._sample[0] + _WINDOW_S
            return False
        self._sample = (elapsed, used)
        self._deadline = time.monotonic() + _WINDOW_S
        return elapsed >= self._job.wall_s and gained < max(_LEAST_PROGRESS_S, window * self._job.idle_share)

    def _look_again(self, now: float, after_s: float) -> None:
        """Set the time of the next look; none lets the wall cap go by."""
        cap = self._began + self._job.wall_s
        self._deadline = min(now + after_s, cap) if now < cap else now + after_s

    def _give_sign_of_life(self, now: float) -> None:
        """The host takes a worker that is silent for long for a broken one; a starved test may take longer."""
        if now - self._spoke >= _SIGN_OF_LIFE_S:
            self._spoke = now
            wire.send_blocking(self._channel, wire.pack_record(wire.Record(self._job.seq, wire.HELLO)))

    def _compile(self) -> runner.Program:
        job = self._job
        _soft_limit(resource.RLIMIT_AS, self._address_space)
        try:
            return runner.Program(job.code, job.fn_name, job.preamble, job.setup)
        except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
            detail = f"{type(error).__name__}: {error}"
        finally:
            _soft_limit(resource.RLIMIT_AS, resource.RLIM_INFINITY)
        self.report(outcome.compile_error(job, detail))
        self.flush()
        os._exit(0)

    def _restart_at(self, index: int) -> NoReturn:
        self.flush()
        os.write(self._progress, RESTART + index.to_bytes(4, "big"))
        os._exit(RESTART_EXIT)

    def report(self, record: wire.Record) -> None:
        """Hold a result back a moment, so that quick tests travel together; the first ones of a submission are not held."""
        if not self._held:
            self._held_since = time.monotonic()
        self._held.append(wire.pack_record(record))
        if len(self._held) >= self._release or time.monotonic() - self._held_since >= _FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Send the results held back."""
        held, self._held = self._held, []
        if held:
            wire.send_blocking(self._channel, b"".join(held))
            self._release = min(self._release * 2, _HOLD)


def _cpu_used(pid: int) -> float:
    try:
        return time.clock_gettime(kernel.process_cpu_clock(pid))
    except OSError:  # it has just ended
        return 0.0


def _soft_limit(kind: int, soft: int) -> None:
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        soft = hard if soft == resource.RLIM_INFINITY else min(soft, hard)
    resource.setrlimit(kind, (soft, hard))
