"""A grader that is a Python function `grade(code, problem)` in its own interpreter.

Each program that is graded at once has a process (`shim`). It imports the function once per class
of programs, so that damage by one class does not reach the next. By default the processes have no
network, a read-only file system and an empty /tmp, and end with the audit.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field

from code_rl.grading.audit.graders.base import (
    AuditedGrader,
    GraderOutcome,
    one_line,
    outcome_of,
    shapes,
)
from code_rl.grading.audit.process import SAID, Process, start
from code_rl.grading.problem import Problem
from code_rl.util.errors import ConfigError

_START_S = 300.0


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
        """Start one process, which imports the function. Raises ConfigError if that fails."""
        self._idle.append(await self._start())

    async def grade(self, problem: Problem, code: str) -> GraderOutcome:
        """Have the function grade one program. An exception, None, a dead process and a late answer
        are failures of the grader."""
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
        """End the processes; new ones import the function again."""
        self._idle.clear()
        for process in list(self._started):
            await self._end(process)

    async def aclose(self) -> None:
        """End the processes."""
        await self.renew()

    async def _start(self) -> Process:
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
        await process.end()
        self._started.discard(process)
