"""A Sandbox Fusion server with the harness that its users bring, in place of our client: `script` runs and compares in the simplest way, `lcb` is the course's."""

from __future__ import annotations

import inspect
import json
import math
from typing import Literal

from code_rl.audit.graders.base import Outcome, OverHttp, shapes
from code_rl.errors import SandboxError
from code_rl.problems.problem import Problem, StdinTest
from code_rl.sandbox.fusion.protocol import PING_PATH, RUN_PATH, RunRequest, RunResponse
from code_rl.sandbox.fusion.remote import course
from code_rl.sandbox.fusion.transport import ping, post_run

Style = Literal["script", "lcb"]
_HARNESS = "testing_util.py"


class Fusion(OverHttp):
    """Asks `POST /run_code`."""

    def __init__(self, url: str, style: Style, timeout_s: float) -> None:
        self.name = f"{url} ({style})"
        self._url, self._style, self._timeout_s = url.removesuffix("/").removesuffix(RUN_PATH), style, timeout_s

    async def silence(self) -> str | None:
        """Ping it."""
        there = await ping(self.session, self._url + PING_PATH)
        return None if there else f"grader=fusion:{self._url} does not answer {PING_PATH}"

    async def grade(self, problem: Problem, code: str) -> Outcome:
        """What the server cannot run is its failure."""
        try:
            return await (self._by_harness(problem, code) if self._style == "lcb" else self._by_script(problem, code))
        except SandboxError as error:
            return Outcome(None, str(error), isinstance(error.__cause__, TimeoutError))

    async def _by_script(self, problem: Problem, code: str) -> Outcome:
        """A run a test; what is printed is compared without white space at its ends. Calls are asserts after the program."""
        if problem.calls:
            asserts = "\n".join(shapes(problem, code)["asserts"])
            answer = await self._run(
                RunRequest(f"{code}\n{asserts}\n", run_timeout=self._wall(problem, len(problem.tests)))
            )
            return Outcome(answer.status == "Success", answer.status)
        for test in problem.tests:
            assert isinstance(test, StdinTest)
            answer = await self._run(RunRequest(code, run_timeout=self._wall(problem, 1), stdin=test.input))
            printed = answer.run_result.stdout if answer.run_result else ""
            if answer.status != "Success" or printed.strip() != test.expected.strip():
                return Outcome(False, answer.status)
        return Outcome(True, "Success")

    async def _by_harness(self, problem: Problem, code: str) -> Outcome:
        """One run, in which the course's harness runs every test: the expected outputs are in the sandbox."""
        tests = {"input_output": json.dumps(shapes(problem, code)["lcb_input_output"])}
        request = RunRequest(
            course.TEST_CODE % {"timeout": math.ceil(problem.time_limit_s)},
            run_timeout=self._wall(problem, len(problem.tests)),
            files={
                "test_cases.txt": json.dumps(tests).encode(),
                "code.py": code.encode("utf-8", "surrogatepass"),
                _HARNESS: inspect.getsource(course).encode(),
            },
        )
        answer = await self._run(request)
        return Outcome(answer.status == "Success", answer.status)

    async def _run(self, request: RunRequest) -> RunResponse:
        return await post_run(self.session, self._url + RUN_PATH, request, self._timeout_s)

    def _wall(self, problem: Problem, tests: int) -> float:
        return min(self._timeout_s, 2 + tests * (problem.time_limit_s + 1))
