"""Runs programs of languages other than Python: compiled once in a box, then each test in an empty
directory beside the read-only artifact."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import AsyncGenerator

from code_rl.grading.languages import Language, language
from code_rl.grading.sandbox.commands import Box, BoxResult
from code_rl.grading.sandbox.executor import (
    Execution,
    Job,
    LostError,
    RefusedError,
    Status,
    StdinInput,
)
from code_rl.grading.sandbox.local.box import LocalBox, opened
from code_rl.util.errors import ConfigError, DataError, SandboxError

_COMPILE = {"cpu_s": 60.0, "wall_s": 180.0, "memory_mb": 2048, "output_bytes": 1 << 18}
_VERSION = {"cpu_s": 20.0, "wall_s": 120.0, "memory_mb": 1024}
_DETAIL = 2000
# testlib's convention: a line of three lengths on stdin, then the files that the checker reads.
_THREE_FILES = (
    "read -r i o a && head -c $i >input && head -c $o >output && head -c $a >answer || exit 3; "
)
_THREE_NAMES = " input output answer"
_DISK_MB = 256
_STATUS = {
    "cpu": Status.TIME_LIMIT,
    "wall": Status.TIME_LIMIT,
    "memory": Status.MEMORY_LIMIT,
    "output": Status.OUTPUT_LIMIT,
}
_installed: set[Language] = set()


class Programs:
    """Runs jobs of other languages than Python. Usable from several event loops in turn."""

    def __init__(self, most_kept: int, isolation: str) -> None:
        """`most_kept` programs stay compiled, for further jobs with the same language and code;
        each has a box at the level `isolation`. No box is opened yet."""
        self._most_kept, self._isolation = most_kept, isolation
        self._kept: OrderedDict[tuple[str, str], _Program] = OrderedDict()

    async def attempt(self, job: Job) -> AsyncGenerator[Execution, None]:
        """Try `job` once, as a `blame.Attempt`. The program is compiled unless its box is kept from
        an earlier job.

        Raises ConfigError if the language is not installed or unknown, IsolationError without
        boxes, RefusedError for a job that needs Python, LostError if its box is lost, SandboxError.
        """
        if job.fn_name is not None or job.files or job.fetch or job.setup or job.preamble:
            raise RefusedError(
                f"language={job.language}: calls, files and code around the program are Python's"
            )
        key = job.language, job.code
        program = self._kept.pop(key, None) or await self._open(language(job.language))
        try:
            async with contextlib.aclosing(program.run(job)) as executions:
                async for execution in executions:
                    yield execution
        except SandboxError as error:
            program.box.close()
            raise LostError(str(error)) from error
        except BaseException:
            program.box.close()
            raise
        # Of the same program, run twice at once, one box is kept.
        if (other := self._kept.pop(key, None)) is not None:
            other.box.close()
        if not program.box.closed:
            self._kept[key] = program
        while len(self._kept) > self._most_kept:
            self._kept.popitem(last=False)[1].box.close()

    async def _open(self, language: Language) -> _Program:
        """Open a box for one program of `language`; nothing is compiled yet. Raises ConfigError if
        the language is not installed, IsolationError, SandboxError."""
        box = await opened(self._isolation, _DISK_MB, {})
        try:
            await check_installed(language, box)
        except BaseException:
            box.close()
            raise
        return _Program(language, box)

    def close(self) -> None:
        """End all boxes that are kept, waiting for their processes. Those of running jobs end with
        their jobs. Idempotent."""
        self._most_kept = 0
        while self._kept:
            self._kept.popitem()[1].box.close()


class _Program:
    """A box in which one program of `language` is, or will be, compiled."""

    def __init__(self, language: Language, box: LocalBox) -> None:
        """Use an open box, which the caller closes. `run` compiles on its first call."""
        self._language, self.box = language, box
        self._failure: Execution | None = None
        self._made_here = False
        self._compile_s = 0.0

    async def run(self, job: Job) -> AsyncGenerator[Execution, None]:
        """Yield an execution for each case, or the compile error alone. If a test ends its box, its
        result stands for the rest too. Raises SandboxError."""
        if not self._made_here:
            self._failure, self._made_here = await self._compile(job.code), True
        if self._failure is not None:
            yield self._failure
            return
        execution = None
        for case in job.cases:
            assert isinstance(case, StdinInput)
            if execution is None or not self.box.closed:  # a program may end its box
                execution = await self._run(case.stdin, job)
            yield execution

    async def _compile(self, code: str) -> Execution | None:
        """Write the program to the box and compile it there, within 60 CPU seconds. Return its
        COMPILE_ERROR, or None if it can run. Raises SandboxError."""
        language = self._language
        try:
            await self.box.write(language.file, code.encode())
        except DataError as error:
            return Execution(Status.COMPILE_ERROR, exit_code=1, detail=str(error))
        if not language.compile:
            return None
        result = await self.box.run(language.compile, **_COMPILE)  # type: ignore[arg-type]
        self._compile_s = result.cpu_s
        if result.exit_code == 0 and result.limit is None:
            return None
        over = f"the compiler exceeded its limit: {result.limit}" if result.limit else ""
        detail = over or _text(result.stderr or result.stdout)
        return Execution(
            Status.COMPILE_ERROR, exit_code=1, detail=detail, stderr=result.stderr, cpu_s=0.0
        )

    async def _run(self, stdin: bytes, job: Job) -> Execution:
        """Run the artifact on one input, in its box. The compile time is in the first execution
        only. Raises SandboxError. A trusted job's input holds testlib's three files."""
        limits = job.limits
        command = self._language.run_command(limits.memory_mb)
        result = await self.box.run(
            f"{_THREE_FILES}{command}{_THREE_NAMES}" if job.trusted else command,
            stdin,
            cpu_s=limits.cpu_s,
            wall_s=limits.wall_cap_s,
            memory_mb=limits.memory_mb + self._language.spare_mb,
            output_bytes=limits.output_bytes,
            processes=limits.processes,
            home_read_only=True,
        )
        compile_s, self._compile_s = self._compile_s, 0.0
        return _execution(result, compile_s)


async def check_installed(language: Language, box: Box) -> None:
    """Raise ConfigError if the version command of `language` fails in the box, SandboxError if it
    exceeds a limit. A language that passed is not tried again in this process."""
    if language in _installed:
        return
    result = await box.run(language.version, **_VERSION)  # type: ignore[arg-type]
    if result.limit is not None:
        raise SandboxError(f"`{language.version}` exceeded its limit: {result.limit}")
    if result.exit_code:
        raise ConfigError(
            f"language={language.name!r}: `{language.version}` failed: "
            f"{_text(result.stderr or result.stdout)[:200]}; install it below /usr"
        )
    _installed.add(language)


def _execution(result: BoxResult, compile_s: float) -> Execution:
    """Convert a box's result. The reason of a failure is the limit, or the last line of stderr, or
    the exit code."""
    if result.limit is not None:
        status, code, detail = _STATUS[result.limit], None, f"limit of {result.limit}"
    else:
        status = Status.RUNTIME_ERROR if result.exit_code else Status.OK
        code, detail = result.exit_code, ""
        if code:
            last = _text(result.stderr).strip().splitlines()[-1:]
            detail = last[0] if last else f"exit code {code}"
    return Execution(
        status,
        stdout=result.stdout,
        stderr=result.stderr,
        exit_code=code,
        cpu_s=result.cpu_s,
        wall_s=result.wall_s,
        peak_memory_bytes=result.peak_memory_bytes,
        detail=detail,
        compile_s=compile_s,
    )


def _text(output: bytes) -> str:
    """Return the beginning of an output as text, at most 2,000 characters."""
    return output[: 4 * _DETAIL].decode("utf-8", "replace")[:_DETAIL]
