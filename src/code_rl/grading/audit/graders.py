"""Graders that can be audited: our own judge, and a function that somebody else wrote.

A function `grade(code, problem)` runs in its own interpreter. Each program that is graded at once
has a process (`shim`), which answers each line of JSON with a line of JSON. It imports the function
once per class of programs, so that damage by one class does not reach the next. By default the
processes have no network, a read-only file system and an empty /tmp (`confined`), and end with the
audit.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from code_rl.grading.audit.forms import is_plain, shapes
from code_rl.grading.judging import judge_async
from code_rl.grading.problem import Problem
from code_rl.grading.sandbox.connect import check_executor
from code_rl.grading.sandbox.executor import Executor
from code_rl.util.errors import ConfigError

SAID = 300
_LONGEST = 1 << 24
_SHIM = Path(__file__).with_name("shim.py")
_START_S = 300.0


@dataclass(frozen=True, slots=True)
class GraderOutcome:
    """A grader's answer. `paid` is None if the grader itself failed; `said` is the answer,
    shortened; `silent` means that no answer came in time."""

    paid: bool | None
    said: str = ""
    silent: bool = False


def outcome_of(score: object, pays_at: float, said: str) -> GraderOutcome:
    """Return the outcome for a score: paid if it is at least `pays_at`. `paid` is None, a failure
    of the grader, for NaN and for anything but a bool, int or float. `said` is the text to
    report."""
    # Only NaN differs from itself.
    if not isinstance(score, bool | int | float) or score != score:
        return GraderOutcome(None, said)
    return GraderOutcome(score >= pays_at, said)


class AuditedGrader:
    """A target of the audit. `problems` is the form of plain tests that it accepts: `stdin`,
    `call`, or `all`."""

    name: str
    problems = "all"

    def takes(self, problem: Problem) -> bool:
        """Return True if the grader accepts this problem; the audit leaves out the programs of
        others."""
        return is_plain(problem, self.problems)

    async def check(self) -> None:
        """Raise ConfigError if the grader cannot be called at all. The audit calls it once, before
        any program. By default it does nothing."""

    async def grade(self, problem: Problem, code: str) -> GraderOutcome:
        """Have the grader judge one program; calls may run concurrently. A failure of the grader is
        an outcome (`paid` None), not an exception."""
        raise NotImplementedError

    async def renew(self) -> None:
        """Restart the grader, since earlier programs may have changed its process. The audit calls
        it before each class of programs. By default it does nothing."""

    async def aclose(self) -> None:
        """Release all resources. The grader is not used afterwards. By default it does nothing."""


class Ours(AuditedGrader):
    """`code_rl.judge`."""

    def __init__(self, executor: Executor) -> None:
        """Judge on `executor`, which `aclose` closes."""
        self.name = f"code-rl on {executor.description}"
        self._executor = executor

    def takes(self, problem: Problem) -> bool:  # noqa: ARG002 - the seam's
        """Return True: the judge accepts every problem."""
        return True

    async def check(self) -> None:
        """Raise ConfigError if the executor does not work."""
        await check_executor(self._executor)

    async def grade(self, problem: Problem, code: str) -> GraderOutcome:
        """Judge one program in the sandbox. `paid` is None for an undecided verdict
        (`sandbox_error`, `checker_error`). Raises OutageError, which ends the audit."""
        verdict = await judge_async(problem, code, self._executor)
        return GraderOutcome(None if verdict.undecided else verdict.correct, verdict.kind.value)

    async def aclose(self) -> None:
        """Close the executor."""
        await self._executor.aclose()


@dataclass
class Function(AuditedGrader):
    """The grader `name`, which is `package.module:function` or `file.py:function`, in the
    interpreter `python`. It takes `problems` of one form."""

    name: str
    python: str
    pays_at: float
    timeout_s: float
    confined: bool
    problems: str
    _idle: list[Process] = field(default_factory=list)
    _started: set[Process] = field(default_factory=set)

    @property
    def _folder(self) -> str:
        """The folder of the grader's file, or the working directory."""
        file, is_file, _ = self.name.rpartition(".py:")
        return os.path.dirname(os.path.abspath(file)) if is_file else os.getcwd()

    async def check(self) -> None:
        """Start one process, which imports the function and is kept for the first `grade`. Raises
        ConfigError if that fails."""
        self._idle.append(await self._start())

    async def grade(self, problem: Problem, code: str) -> GraderOutcome:
        """Have the function grade one program in an idle process, or in a new one, so calls may run
        concurrently. An exception, None, a dead process and a late answer are failures of the
        grader.

        A process that gave no answer within `timeout_s` or has ended is killed; the others are used
        again.
        """
        process = None
        try:
            process = self._idle.pop() if self._idle else await self._start()
            answer = await asyncio.wait_for(process.request(shapes(problem, code)), self.timeout_s)
        except (TimeoutError, EOFError, ConfigError) as error:
            if process is not None:
                await self._end(process)
            silent = isinstance(error, TimeoutError)
            said = f"no answer in {self.timeout_s:g} s" if silent else str(error)
            return GraderOutcome(None, said, silent)
        self._idle.append(process)
        score = answer.get("score")
        return outcome_of(score, self.pays_at, str(answer.get("failed", f"score {score!r}"))[:SAID])

    async def renew(self) -> None:
        """End the processes; new ones import the function again on the next `grade`. No call may be
        running."""
        self._idle.clear()
        for process in list(self._started):
            await self._end(process)

    async def aclose(self) -> None:
        """End the processes. No call may be running."""
        await self.renew()

    async def _start(self) -> Process:
        """Start a grader's process and wait up to 300 s until it has loaded the function. Raises
        ConfigError on failure, after killing the process."""
        process = await start(self.python, self.name, self.confined, self._folder)
        self._started.add(process)
        try:
            failed = (await asyncio.wait_for(process.request({}), _START_S)).get("failed")
        except (TimeoutError, EOFError) as error:
            failed = str(error) or f"it did not load in {_START_S:g} s"
        if failed is not None:
            await self._end(process)
            raise ConfigError(f"grader={self.name}: {one_line(failed)}")
        return process

    async def _end(self, process: Process) -> None:
        """Kill a process of this grader and forget it."""
        await process.end()
        self._started.discard(process)


async def start(python: str, target: str, confined: bool, folder: str) -> Process:
    """Start the interpreter `python` with `shim` on `target` and return its process, in a session
    of its own. If `confined`, it has no network and a read-only file system.

    It can read `folder`, the working directory, the interpreter's import path and the folder of
    this file. Raises ConfigError if an interpreter cannot be executed; a target that does not load
    shows only in the first answer.
    """
    command = [python, str(_SHIM), target, os.getcwd()]
    pipe = asyncio.subprocess.PIPE
    try:
        if confined:
            seen = json.dumps(
                sorted({folder, os.getcwd(), str(_SHIM.parent), *_import_path(python)})
            )
            command = [
                sys.executable,
                "-m",
                "code_rl.grading.audit.confined",
                seen,
                *command,
            ]
        started = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, limit=_LONGEST
        )
    except OSError as error:
        raise ConfigError(
            f"python={python} cannot be started: {error.strerror}; name an interpreter"
        ) from None
    return Process(started)


_IMPORT_PATH = """
import json, os, sys
print(json.dumps([os.path.dirname(sys.executable), sys.prefix, *map(os.path.abspath, sys.path)]))
"""


def _import_path(python: str) -> list[str]:
    """Return the folder and prefix of an interpreter, and those where it looks for modules, as
    absolute paths. It runs the interpreter and waits for it; the list is empty if that fails.
    Raises OSError if it cannot be executed."""
    asked = subprocess.run([python, "-c", _IMPORT_PATH], stdout=subprocess.PIPE, check=False)
    return list(json.loads(asked.stdout or "[]"))


class Process:
    """One shim: a line of JSON in, a line out."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        """Use a started process, whose stderr is read from now on. Needs a running event loop."""
        self._process = process
        self._last = b""
        self._draining = asyncio.create_task(self._drain())

    async def request(self, question: dict[str, Any]) -> dict[str, Any]:
        """Send one question and return the answer with its nonce, skipping all other output, which
        programs may forge. The first answer comes once the process has loaded its code. Calls must
        not overlap.

        Raises EOFError with the last line of stderr if the process has ended, and for a line of
        more than 16 MiB.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        nonce = secrets.token_hex(8)
        with contextlib.suppress(OSError):  # it has ended, as the next line shows
            self._process.stdin.write(json.dumps({**question, "nonce": nonce}).encode() + b"\n")
            await self._process.stdin.drain()
        while True:
            try:
                line = await self._process.stdout.readline()
            except ValueError:
                raise EOFError(f"a line of more than {_LONGEST >> 20} MiB came back") from None
            if not line:
                break
            with contextlib.suppress(ValueError, RecursionError):
                answer = json.loads(line)
                if isinstance(answer, dict) and answer.get("nonce") == nonce:
                    return answer
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._draining), 1)
        words = self._last.decode("utf-8", "replace").strip().splitlines()
        raise EOFError("the process has ended" + (f": {words[-1][:SAID]}" if words else ""))

    async def end(self) -> None:
        """Kill the process and all of its process group, and wait for its end. Idempotent."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, 9)
        await self._process.wait()
        # A process that it started may keep its stderr open
        await asyncio.wait([self._draining], timeout=1)
        self._draining.cancel()

    async def _drain(self) -> None:
        """Read stderr until its end, so that the process never blocks on it; keep the last 4,096
        bytes."""
        assert self._process.stderr is not None
        while part := await self._process.stderr.read(1 << 16):
            self._last = (self._last + part)[-4096:]


def one_line(text: str) -> str:
    """Return foreign text on one line for a terminal or a page, with control characters and lone
    surrogates escaped."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode()
        for char in " ".join(text.split())
    )
