"""Runs programs of languages other than Python: compiled once in a box, then each test in an empty
directory beside the read-only artifact."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterator
from weakref import WeakKeyDictionary

from code_rl.grading.languages import Language
from code_rl.grading.sandbox import open_box
from code_rl.grading.sandbox.executor import (
    Execution,
    Job,
    Limits,
    Status,
    StdinInput,
    default_slots,
)
from code_rl.grading.sandbox.local.box import Box, CommandResult
from code_rl.util.errors import ConfigError, DataError, SandboxError

_COMPILE = {"cpu_s": 60.0, "wall_s": 180.0, "memory_mb": 2048, "output_bytes": 1 << 18}
_VERSION = {"cpu_s": 20.0, "wall_s": 120.0, "memory_mb": 1024}
_DETAIL = 2000
_DISK_MB = 256
_STATUS = {
    "cpu": Status.TIME_LIMIT,
    "wall": Status.TIME_LIMIT,
    "memory": Status.MEMORY_LIMIT,
    "output": Status.OUTPUT_LIMIT,
}
_installed: set[Language] = set()
_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


class ProgramExecutor:
    """An `Executor` for the tests of one judgment. It compiles a program for the first job and
    keeps the artifact for the next jobs of the same program. Made by `open_programs`."""

    def __init__(self, language: Language, box: Box) -> None:
        self._language, self._box = language, box
        self._compiled: tuple[str, Execution | None] | None = None
        self._compile_s = 0.0

    slots, retries = 1, 0

    @property
    def description(self) -> str:
        """One line for users."""
        return f"boxes for {self._language.name}"

    async def run(self, job: Job) -> AsyncGenerator[Execution, None]:
        """See `Executor.run`. Raises SandboxError."""
        failure = await self._compile(job.code)
        if failure is not None:
            yield failure
            return
        for case in job.cases:
            if not isinstance(case, StdinInput):
                raise DataError(f"language={self._language.name!r} has stdin tests only")
            yield await self._run(case.stdin, job.limits)

    async def check(self) -> None:
        """Do nothing: the language was tried when the box was opened."""

    async def aclose(self) -> None:
        """Do nothing: the box closes with `open_programs`."""

    async def _compile(self, code: str) -> Execution | None:
        """Compile the program unless it is the last one. Return the failure, or None."""
        if self._compiled is None or self._compiled[0] != code:
            self._compiled = code, await self._made(code)
        return self._compiled[1]

    async def _made(self, code: str) -> Execution | None:
        language = self._language
        await self._box.run("find /box -mindepth 1 -delete")
        try:
            await self._box.write(language.file, code.encode())
        except DataError as error:
            return Execution(Status.COMPILE_ERROR, exit_code=1, detail=str(error))
        if not language.compile:
            return None
        result = await self._box.run(language.compile, **_COMPILE)  # type: ignore[arg-type]
        self._compile_s = result.cpu_s
        if result.exit_code == 0 and result.limit is None:
            return None
        over = f"the compiler exceeded its limit: {result.limit}" if result.limit else ""
        detail = over or _text(result.stderr or result.stdout)
        return Execution(
            Status.COMPILE_ERROR, exit_code=1, detail=detail, stderr=result.stderr, cpu_s=0.0
        )

    async def _run(self, stdin: bytes, limits: Limits) -> Execution:
        result = await self._box.run(
            self._language.run_command(limits.memory_mb),
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


@contextlib.asynccontextmanager
async def open_programs(language: Language) -> AsyncIterator[ProgramExecutor]:
    """Open a box for one program of `language`, when a slot is free. Raises ConfigError if the
    language is not installed, IsolationError, SandboxError."""
    async with _slots(), open_box(disk_mb=_DISK_MB) as box:
        await check_installed(language, box)
        yield ProgramExecutor(language, box)


async def check_installed(language: Language, box: Box) -> None:
    """Raise ConfigError if the version command of `language` fails in the box; a language is tried
    once in a process."""
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


def _slots() -> asyncio.Semaphore:
    """Return the semaphore of this event loop that bounds open boxes."""
    loop = asyncio.get_running_loop()
    if loop not in _turns:
        _turns[loop] = asyncio.Semaphore(default_slots(len(os.sched_getaffinity(0))))
    return _turns[loop]


def _execution(result: CommandResult, compile_s: float) -> Execution:
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
    return output[: 4 * _DETAIL].decode("utf-8", "replace")[:_DETAIL]
