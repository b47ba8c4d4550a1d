"""One sandbox and one event loop for a whole file: most tests here only run a program or two."""

from __future__ import annotations

import asyncio

import pytest

from code_rl.data.resolve import resolve
from code_rl.grading import Problem, judge_async
from tests.boxes import shared_box


class Court:
    """Settles items and judges programs."""

    def __init__(self):
        self._runner = asyncio.Runner()
        self.executor = shared_box(concurrency=2)

    def run(self, coroutine):
        return self._runner.run(coroutine)

    def resolve(self, item):
        return self.run(resolve(item, self.executor))

    def verdicts(self, item, *programs):
        problem = self.resolve(item)
        assert isinstance(problem, Problem), problem
        return [self.run(judge_async(problem, program, self.executor)).kind.value for program in programs]

    def close(self):
        self._runner.close()


@pytest.fixture(scope="module")
def court():
    made = Court()
    yield made
    made.close()
