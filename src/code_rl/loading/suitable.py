"""Which problems a run can train on, and how long an answer may be: measured difficulty, prompts against the model's context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, overload

from code_rl.config import parse_difficulty
from code_rl.environments import Environment
from code_rl.errors import ConfigError, DataError
from code_rl.loading.load import Say
from code_rl.loading.pack import PackedProblems
from code_rl.problems.order import Selected
from code_rl.problems.problem import Problem, StdinTest, TestCase
from code_rl.renderers import Renderer


def within_difficulty(problems: Sequence[Problem], difficulty: str) -> Sequence[Problem]:
    """Those problems whose known pass rate lies within `LOW..HIGH`, ends included.

    Raises:
        ConfigError: a problem has no pass rate, or none is left.
    """
    low, high = parse_difficulty(difficulty)
    rates = {i: rate for i, problem in enumerate(problems) if (rate := _pass_rate(problem)) is not None}
    if len(rates) < len(problems):
        raise ConfigError(
            f"difficulty={difficulty} needs a measured pass rate, which {len(problems) - len(rates)} of {len(problems)} problems lack; "
            "`code-rl prepare` measures it"
        )
    kept = Selected(problems, [i for i, rate in rates.items() if low <= rate <= high])
    if not kept:
        raise ConfigError(f"difficulty={difficulty} leaves none of {len(problems)} problems; widen it")
    return kept


def with_tests(problems: Sequence[Problem], least: int, most: int | None) -> Sequence[Problem]:
    """Problems that have `least` tests, each with `most` of them: the public ones, then those with the longest inputs, in their order.

    Raises ConfigError where none is left.
    """
    kept: Sequence[Problem] = problems
    if least > 1:
        known = problems.test_counts if isinstance(problems, PackedProblems) else (len(each.tests) for each in problems)
        kept = Selected(problems, [i for i, count in enumerate(known) if count >= least])
    if not kept:
        raise ConfigError(f"min_tests={least} leaves none of {len(problems)} problems; lower it")
    return kept if most is None else _Capped(kept, most)


class _Capped(Sequence[Problem]):
    """Problems that lose what tests they have beyond `most` when they are fetched."""

    def __init__(self, problems: Sequence[Problem], most: int) -> None:
        self._problems, self._most = problems, most

    @overload
    def __getitem__(self, index: int) -> Problem: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Problem]: ...
    def __getitem__(self, index: int | slice) -> Problem | Sequence[Problem]:
        if isinstance(index, slice):
            return _Capped(self._problems[index], self._most)
        problem = self._problems[index]
        tests = problem.tests
        hardest = sorted(range(len(tests)), key=lambda i: (not tests[i].public, -_input_size(tests[i]), i))
        return replace(problem, tests=tuple(tests[i] for i in sorted(hardest[: self._most])))

    def __len__(self) -> int:
        return len(self._problems)


def _input_size(test: TestCase) -> int:
    return len(test.input) if isinstance(test, StdinTest) else len(repr((test.args, test.kwargs)))


def _pass_rate(problem: Problem) -> float | None:
    """What `code-rl prepare` measured (its card in `meta`), or a plain `meta.pass_rate`."""
    meta: Any = problem.meta
    measured = meta.get("prepare", {}).get("difficulty", {}).get("pass_rate", meta.get("pass_rate"))
    return float(measured) if isinstance(measured, int | float) else None


def cap_max_tokens(max_tokens: int, context: int, say: Say) -> int:
    """`max_tokens`, or what the model's context can hold beside a prompt, said aloud. Each prompt leaves its own share of it."""
    room = context - 1
    if max_tokens > room:
        say(
            f"max_tokens={max_tokens} capped to {room}: the model's context is {context} tokens, each prompt's own included"
        )
    return min(max_tokens, room)


def prompt_length(problem: Problem, environment: Environment, renderer: Renderer) -> int:
    """Tokens of a problem's first prompt."""
    return len(renderer.prompt_tokens(environment.begin(problem.view())))


def refuse_prompts(lengths: Sequence[tuple[str, int]], context: int, which: str, room: int = 0) -> None:
    """Raise DataError, saying how many and which is the first, when prompts (ids with lengths) leave no more than `room` tokens for an
    answer in the model's context."""
    overlong = [(name, length) for name, length in lengths if length >= context - room]
    if overlong:
        beside = f", {room} of them for overlong_buffer" if room else ""
        raise DataError(
            f"{len(overlong)} of {len(lengths)} {which} problems have prompts that do not fit into the model's context of {context} "
            f"tokens{beside}; the first is {overlong[0][0]!r} with {overlong[0][1]}"
        )
