"""One reference solution on its problem's tests, with the judge that gives the reward: passes, fails, or cannot be told."""

from __future__ import annotations

import ast
import dataclasses
import re
import sys
import warnings
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from code_rl.problems.problem import Compare, Problem, StdinTest, TestCase
from code_rl.problems.values import dumps
from code_rl.reward.compare import compare_printed, compare_returned
from code_rl.reward.judge import judge
from code_rl.reward.verdict import Verdict
from code_rl.sandbox.executor import Execution, Executor, Job, OnDemand, closing

_UNSTEADY = re.compile(
    r"\b(?:random|randint|randrange|shuffle|choice|secrets|uuid|urandom|time|datetime|perf_counter|monotonic|threading|multiprocessing"
    r"|asyncio|concurrent|getpid)\b|\b(?:id|hash)\("
)


@dataclass(frozen=True, slots=True)
class Trial:
    """A program's verdict and the CPU seconds of each test that ran, in order."""

    verdict: Verdict
    seconds: tuple[float, ...] = ()

    @property
    def slowest_s(self) -> float:
        """CPU seconds of the slowest test."""
        return max(self.seconds, default=0.0)


class _Listener(OnDemand):
    """Writes down the CPU time of one program's tests."""

    def __init__(self, executor: Executor, code: str) -> None:
        super().__init__(lambda: executor)
        self.code, self.seconds = code, list[float]()

    async def run(self, job: Job) -> AsyncIterator[Execution]:
        async with closing(super().run(job)) as executions:
            async for execution in executions:
                if job.code == self.code:
                    self.seconds.append(execution.cpu_s)
                yield execution


async def attempt(problem: Problem, code: str, executor: Executor, cpu_limit_s: float | None = None) -> Trial:
    """Judge `code`, keeping the time of each test. `cpu_limit_s` stands in place of the problem's own limit: it may be higher."""
    if cpu_limit_s is not None:
        problem = dataclasses.replace(problem, time_limit_s=cpu_limit_s)
    if problem.interactor is not None:
        verdict = await judge(problem, code, executor)
        return Trial(verdict, (verdict.cpu_s,))
    listener = _Listener(executor, code)
    verdict = await judge(problem, code, listener)
    return Trial(verdict, tuple(listener.seconds))


def reseeded(problem: Problem, seed: int) -> Problem:
    """The problem with another seed of `random` before each run: the sandbox starts every program from the same one."""
    before = str(problem.meta.get("preamble") or "")
    lines = f"import random as _random\n_random.seed({seed})\ndel _random\n"
    return dataclasses.replace(problem, meta={**problem.meta, "preamble": f"{before}\n{lines}"})


def is_unsteady(code: str) -> bool:
    """True when a program uses randomness, the clock or threads: it may answer differently another time."""
    return _UNSTEADY.search(code) is not None


def outside_imports(code: str) -> list[str]:
    """Top-level packages that a program imports and Python does not bring."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return sorted(found - sys.stdlib_module_names)


def trivial_pass(problem: Problem) -> tuple[str, str] | None:
    """(reason, detail) of a trivial program that passes every test of `problem`, or None. Checkers and interactors are not asked."""
    if problem.compare.rule == "checker" or problem.interactor is not None:
        return None
    if _all_accept(problem, lambda _: _nothing(problem)):
        return "passes_empty", "a program that does nothing passes"
    first = problem.tests[0].expected
    if _all_accept(problem, lambda _: _encoded(problem, first)):
        return "passes_constant", f"one answer passes all {len(problem.tests)} tests"
    if _all_accept(problem, _echo):
        return "passes_echo", "a program that gives back its input passes"
    return _sample_table(problem)


def _sample_table(problem: Problem) -> tuple[str, str] | None:
    known = {_input_key(test) for test in problem.tests if test.public}
    if known and all(test.public or _input_key(test) in known for test in problem.tests):
        return "passes_samples", f"all {len(problem.tests)} tests are public: a program that knows the samples passes"
    return None


def accepts(test: TestCase, answer: bytes, compare: Compare) -> bool:
    """True when the judge would call `answer` (printed bytes, or an encoded value) right for `test`."""
    if isinstance(test, StdinTest):
        return compare_printed(answer, test, compare) is None
    return compare_returned(answer, test, compare) is None


def _all_accept(problem: Problem, answer: Callable[[TestCase], bytes]) -> bool:
    return all(accepts(test, answer(test), problem.compare) for test in problem.tests)


def _nothing(problem: Problem) -> bytes:
    return dumps(None).encode() if problem.calls else b""


def _encoded(problem: Problem, value: object) -> bytes:
    if not problem.calls:
        return str(value).encode("utf-8", "surrogatepass")
    return dumps(value).encode()


def _echo(test: TestCase) -> bytes:
    if isinstance(test, StdinTest):
        return test.input.encode("utf-8", "surrogatepass")
    given = [*test.args, *test.kwargs.values()]
    return dumps(given[0] if given else None).encode()


def _input_key(test: TestCase) -> str:
    if isinstance(test, StdinTest):
        return test.input
    return dumps([list(test.args), dict(test.kwargs)])
