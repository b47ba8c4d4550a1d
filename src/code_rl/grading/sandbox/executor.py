"""The executor contract: programs and inputs go in, outputs come out. Expected outputs never enter.

The types enforce this: a `Job` has no field for an expected output.
"""

from __future__ import annotations

import enum
import math
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from code_rl.grading import values
from code_rl.grading.languages import PYTHON
from code_rl.util.errors import ConfigError, SandboxError


class Status(enum.StrEnum):
    """The status with which one test's execution ended; it says nothing about the output."""

    OK = "ok"
    RUNTIME_ERROR = "runtime_error"
    COMPILE_ERROR = "compile_error"
    TIME_LIMIT = "time_limit"
    MEMORY_LIMIT = "memory_limit"
    OUTPUT_LIMIT = "output_limit"


def check_seconds(name: str, seconds: float | None) -> None:
    """Raise ConfigError for a time, called `name`, that is negative, infinite or NaN. None is
    accepted."""
    if seconds is not None and not 0 <= seconds < math.inf:
        raise ConfigError(f"{name}={seconds}: use a number of seconds that is 0 or more")


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one test. `cpu_s` decides about time; `wall_s` (None: `8 * cpu_s + 5`) only stops
    tests that sleep: time that a test waits for a processor does not count.

    With `strict` a test that ends by `wall_s` does not run again, and `memory_mb` limits the
    address space, so that a program gets MemoryError. `total_s` limits all tests of a submission
    together; see `submission_s`.
    """

    cpu_s: float = 6.0
    wall_s: float | None = None
    memory_mb: int = 1024
    output_bytes: int = 16 << 20
    processes: int = 256
    open_files: int = 256
    file_mb: int = 64
    strict: bool = False
    total_s: float | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError for a time that `check_seconds` refuses."""
        for name in ("cpu_s", "wall_s", "total_s"):
            check_seconds(name, getattr(self, name))

    @property
    def wall_cap_s(self) -> float:
        """Wall seconds after which a test is stopped, whatever its CPU time: `wall_s`, or by
        default 8 · `cpu_s` + 5."""
        return self.wall_s if self.wall_s is not None else 8 * self.cpu_s + 5

    def submission_s(self, tests: int) -> float:
        """Return the seconds for all tests of one submission: processor time, including the
        compiler's, and idle time, but not time spent waiting for a processor.

        By default this is the CPU limit and one second for every test, plus the wall cap of two
        tests.
        """
        return (
            self.total_s
            if self.total_s is not None
            else 2 * self.wall_cap_s + tests * (self.cpu_s + 1)
        )


@dataclass(frozen=True, slots=True)
class StdinInput:
    """The bytes on stdin."""

    stdin: bytes


@dataclass(frozen=True, slots=True)
class CallInput:
    """The arguments of a function call.

    `fn_name` overrides the job's. With `calls`, the call returns an object whose methods are then
    called, as (name, arguments) in order; the value is the list of all results, None for the
    object. With `catch`, an exception of the call is its value (`runner.RAISED`).
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    fn_name: str | None = None
    calls: tuple[tuple[str, tuple[Any, ...]], ...] | None = None
    catch: bool = False
    message: bytes | None = field(default=None, compare=False)
    """The bytes of `case_bytes`, if already encoded."""


CaseInput = StdinInput | CallInput


def encodable(text: str) -> bool:
    """Return False for text with lone surrogates, which cannot be encoded as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


ELSEWHERE = (
    "set SANDBOX_URL=http://HOST:8080 to a machine or container that runs: code-rl sandbox "
    "host=0.0.0.0 (docs/sandbox-fusion.md)"
)


def require_linux(what: str, remedy: str = ELSEWHERE) -> None:
    """Raise ConfigError, with a remedy, if this machine is not Linux and so has no embedded sandbox
    for `what`."""
    if sys.platform != "linux":
        raise ConfigError(f"{what} needs Linux; {remedy}")


def case_bytes(case: CaseInput) -> bytes:
    """Return one test encoded for the sandbox: the bytes on stdin, or JSON of `[args, kwargs]` with
    the other fields of `case` that are set as a third item. `runner` reads this form.

    Raises ValueCodecError for an argument that cannot be encoded.
    """
    if isinstance(case, StdinInput):
        return case.stdin
    if case.message is not None:
        return case.message
    more: dict[str, Any] = {}
    if case.fn_name is not None:
        more["fn_name"] = case.fn_name
    if case.calls is not None:
        more["calls"] = [[name, list(args)] for name, args in case.calls]
    if case.catch:
        more["catch"] = True
    message = [list(case.args), dict(case.kwargs), *([more] if more else [])]
    return values.dumps(message, -values.ENVELOPE).encode()


@dataclass(frozen=True, slots=True)
class Job:
    """One submission: the program, the function to call (None: run as a script), and the inputs in
    order.

    `cases` are all StdinInput if `fn_name` is None, else all CallInput. `setup` is source that runs
    after the program in the same module, before the call (MBPP's test_setup_code); `preamble` runs
    before the program (LeetCode's imports and node classes).

    `language` is one of `grading.languages`; only Python's programs have calls, `setup`, `preamble`
    and files. `files` are put into the working directory of each test, which may import from it;
    the files at the paths `fetch` are read back after the test. Paths are relative, without `..`.

    A `trusted` job is a problem author's program (a checker), which may see expected outputs. It
    runs in processes that no other job shares or descends from, and never on a remote server.
    """

    code: str
    cases: tuple[CaseInput, ...]
    fn_name: str | None = None
    preamble: str = ""
    setup: str = ""
    limits: Limits = Limits()
    files: Mapping[str, bytes] = field(default_factory=dict)
    fetch: tuple[str, ...] = ()
    trusted: bool = False
    language: str = PYTHON

    def since(self, test: int) -> Job:
        """Return the job with its cases from index `test` on."""
        return replace(self, cases=self.cases[test:]) if test else self


@dataclass(frozen=True, slots=True)
class Execution:
    """The result of one test. `value` is the returned value in `grading.values` JSON text (for call
    tests that returned), else None.

    `exit_code` is negative for death by signal, and None if a limit stopped the process. `wall_s`
    leaves out the time that the test waited for a processor, if that is known. `detail` is a short
    message (exception line, limit); it comes from the program and is not trusted. `files` are the
    regular files among `Job.fetch`.
    """

    status: Status
    stdout: bytes = b""
    value: bytes | None = None
    stderr: bytes = b""
    exit_code: int | None = None
    cpu_s: float = 0.0
    wall_s: float = 0.0
    peak_memory_bytes: int = 0
    detail: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)
    compile_s: float = 0.0
    """CPU seconds spent on compiling the program; 0 if it was compiled for an earlier test."""


class LostError(SandboxError):
    """A submission ended without the result of its next test. `blame` is that test's status if the
    program turns out to be the cause; `unanswered` means that nothing came from its machine."""

    def __init__(
        self, message: str, blame: Status = Status.RUNTIME_ERROR, unanswered: bool = False
    ) -> None:
        """`blame` is the status if a probe program passes; `unanswered` True if nothing came from
        the machine, which then counts as failed."""
        super().__init__(message)
        self.blame, self.unanswered = blame, unanswered


class RefusedError(SandboxError):
    """This request would fail every time."""


def case_messages(job: Job) -> list[bytes]:
    """Encode each case, in order. Raises RefusedError for cases of the wrong kind, and for values
    that cannot be encoded."""
    wanted = StdinInput if job.fn_name is None else CallInput
    if not all(isinstance(case, wanted) for case in job.cases):
        raise RefusedError(
            "a job with fn_name takes CallInput cases, one without takes StdinInput cases"
        )
    try:
        return [case_bytes(case) for case in job.cases]
    except values.ValueCodecError as error:
        raise RefusedError(f"the input of a test cannot be sent: {error}") from error


class Executor(Protocol):
    """Runs hostile programs. `connect.connect_executor` makes the executor that `executor=`
    names."""

    @property
    def description(self) -> str:
        """One line for users: the sandbox, its isolation level, its number of workers."""
        ...

    @property
    def slots(self) -> int:
        """The number of submissions that run at once; those beyond it wait. It may grow or shrink
        with servers and nodes."""
        ...

    @property
    def retries(self) -> int:
        """The number of failed attempts so far, of all submissions; it never decreases."""
        ...

    def run(self, job: Job) -> AsyncIterator[Execution]:
        """Yield one Execution per case, in order.

        Closing the iterator early (after a first failure) stops the submission. A COMPILE_ERROR is
        the last. Raises SandboxError for infrastructure failures, after the retries of
        `sandbox.blame`, and OutageError if the sandbox stays unreachable; executions already
        yielded remain valid. Calls may run concurrently.
        """
        ...

    async def check(self) -> None:
        """Raise SandboxError or IsolationError if no program can be run at all. It may start the
        sandbox and run a program of its own."""
        ...

    async def aclose(self) -> None:
        """Stop all workers and release everything. Idempotent."""
        ...


def default_slots(processors: float) -> int:
    """Return the default number of submissions at once for a number of processors: two for each, at
    least four."""
    return max(4, round(2 * processors))


class OnDemand:
    """An executor that `start` makes on first use. It stays open; whoever made it closes it."""

    def __init__(self, start: Callable[[], Executor]) -> None:
        self._start = start

    @property
    def description(self) -> str:
        """The description of the executor, which this starts."""
        return self._start().description

    @property
    def slots(self) -> int:
        """The slots of the executor, which this starts."""
        return self._start().slots

    @property
    def retries(self) -> int:
        """The failed attempts of the executor, which this starts."""
        return self._start().retries

    def run(self, job: Job) -> AsyncIterator[Execution]:
        """Run the job on the executor, as `Executor.run` does; the call starts the executor."""
        return self._start().run(job)

    async def check(self) -> None:
        """Check the executor, as `Executor.check` does; the call starts it."""
        await self._start().check()

    async def aclose(self) -> None:
        """Do nothing: whoever made the executor closes it."""
