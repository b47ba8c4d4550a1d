"""What our server says of an execution."""

from __future__ import annotations

import asyncio

from code_rl.grading.sandbox.executor import Execution, Status
from code_rl.grading.sandbox.fusion.protocol import FAILED, RunRequest
from code_rl.grading.sandbox.server.runs import RunLimits, run_request


class Ends:
    """A sandbox in which every program ends in one way."""

    description = "one end"

    def __init__(self, execution):
        self.execution = execution

    async def run(self, job):
        yield self.execution

    async def aclose(self):
        return


def test_a_run_without_an_exit_code_says_why():
    sandbox = Ends(Execution(Status.RUNTIME_ERROR, detail="lost three times"))
    response = asyncio.run(run_request(sandbox, RunRequest("print(1)"), RunLimits(100, 100, 1, 60)))
    assert (response.status, response.message) == (FAILED, "lost three times")
    assert response.run_result.return_code is None
