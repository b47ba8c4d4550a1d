"""A grader that is a Python function `grade(code, problem)` in its own interpreter.

Each slot is a process (`shim`) of the interpreter `python`. It imports the function once per class
of programs, so that damage by one class does not reach the next. By default the processes have no
network, a read-only file system and an empty /tmp, and end with the audit.
"""

from __future__ import annotations

import asyncio
import os

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


class Function(AuditedGrader):
    """The grader `package.module:function`."""

    def __init__(
        self,
        target: str,
        python: str,
        pays_at: float,
        timeout_s: float,
        places: int,
        confined: bool,
        takes: str,
    ) -> None:
        target = os.path.expanduser(target)
        self.name = self._target = target
        self.problems = takes
        self._folder = (
            os.path.dirname(os.path.abspath(target.rpartition(":")[0]))
            if ".py:" in target
            else os.getcwd()
        )
        self._python, self._pays_at, self._timeout_s, self._confined = (
            python,
            pays_at,
            timeout_s,
            confined,
        )
        self._free: asyncio.LifoQueue[Process | None] = asyncio.LifoQueue()
        self._all: set[Process] = set()
        for _ in range(places):
            self._free.put_nowait(None)

    async def check(self) -> None:
        """Start one process, which imports the function. Raises ConfigError if that fails."""
        self._free.get_nowait()
        self._free.put_nowait(await self._start())

    async def grade(self, problem: Problem, code: str) -> GraderOutcome:
        """Have the function grade one program. An exception, None, a dead process and a late answer
        are failures of the grader."""
        process = await self._free.get()
        try:
            try:
                process = process or await self._start()
                answer = await asyncio.wait_for(
                    process.request(shapes(problem, code)), self._timeout_s
                )
            except (TimeoutError, EOFError, ConfigError) as error:
                await self._end(process)
                process = None
                silent = isinstance(error, TimeoutError)
                return GraderOutcome(
                    None, f"no answer in {self._timeout_s:g} s" if silent else str(error), silent
                )
        finally:
            self._free.put_nowait(process)
        score = answer.get("score")
        return outcome_of(
            score, self._pays_at, str(answer.get("failed", f"score {score!r}"))[:SAID]
        )

    async def renew(self) -> None:
        """End the processes; new ones import the function again."""
        for process in list(self._all):
            await self._end(process)
        places = [self._free.get_nowait() for _ in range(self._free.qsize())]
        for _ in places:
            self._free.put_nowait(None)

    async def aclose(self) -> None:
        """End the processes."""
        await self.renew()

    async def _start(self) -> Process:
        process = await start(self._python, self._target, self._confined, self._folder)
        self._all.add(process)
        try:
            failed = (await asyncio.wait_for(process.request({}), _START_S)).get("failed")
        except (TimeoutError, EOFError) as error:
            failed = str(error) or f"it did not load in {_START_S:g} s"
        if failed is not None:
            await self._end(process)
            raise ConfigError(f"grader={self._target}: {one_line(failed)}")
        return process

    async def _end(self, process: Process | None) -> None:
        if process is not None:
            self._all.discard(process)
            await process.end()
