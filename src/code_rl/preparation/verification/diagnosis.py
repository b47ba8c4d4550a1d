"""Why a reference fails its own tests: every test is run, twice, and the answers are read.

Only inputs enter the sandbox, as always; expected outputs are compared here.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from code_rl.preparation.verification.trials import accepts, elsewhere, is_unsteady
from code_rl.problems.problem import CallTest, Compare, Problem, StdinTest, TestCase
from code_rl.problems.values import TAG, ValueCodecError, dumps, loads
from code_rl.reward.plain import parse_value
from code_rl.reward.submission import program_job
from code_rl.sandbox.executor import Executor, Limits, Status

MOST_TESTS = 64
RUNS = 3
UNSTEADY_RUNS = 10
LENIENT = Compare("lcb")
"""The rule that reads every ordered collection as a list."""


async def diagnose(problem: Problem, code: str, executor: Executor, cpu_limit_s: float) -> tuple[str, str] | None:
    """(reason, detail) for a reference that does not pass, or None when the answers do not tell more than the verdict.

    Raises SandboxError when the executor fails.
    """
    if problem.compare.rule == "checker" or problem.interactor is not None:
        return None
    tests = problem.tests[:MOST_TESTS]
    runs = [await _outcomes(problem, code, tests, executor, cpu_limit_s)]
    for number in range(1, UNSTEADY_RUNS if is_unsteady(code) else RUNS):
        runs.append(await _outcomes(elsewhere(problem, code, number), code, tests, executor, cpu_limit_s))
        if runs[-1] != runs[0]:
            changed = [index for index, (one, other) in enumerate(zip(runs[0], runs[-1], strict=False)) if one != other]
            return (
                "flaky",
                f"test {changed[0] if changed else 0} gives another answer in another process or at another time",
            )
    failing = [
        (test, answer)
        for test, (answer, _) in zip(tests, runs[0], strict=False)
        if answer is None or not accepts(test, answer, problem.compare)
    ]
    if not failing:
        return None
    given = [answer for _, answer in failing if answer is not None]
    if len(given) == len(failing):
        found = _read_answers(problem, [test for test, _ in failing], given, len(tests))
        if found is not None:
            return found
    found = await _rewritten(problem, code, tests, executor, cpu_limit_s)
    if found is None and len(failing) == len(tests) >= 2 and given:
        return "mismatched_tests", f"the reference answers, but none of {len(tests)} tests expects its answer"
    return found


async def _outcomes(
    problem: Problem, code: str, tests: Sequence[TestCase], executor: Executor, cpu_limit_s: float
) -> list[tuple[bytes | None, Status]]:
    """What a program gave for each test (None: nothing) and how it ended."""
    job = program_job(problem, code, tests, Limits(cpu_s=cpu_limit_s, memory_mb=problem.memory_limit_mb))
    runs = [run async for run in executor.run(job)]
    given = [(run.value if problem.calls else run.stdout, run.status) for run in runs]
    return [(answer if status is Status.OK else None, status) for answer, status in given]


def _read_answers(
    problem: Problem, failing: Sequence[TestCase], answers: Sequence[bytes], total: int
) -> tuple[str, str] | None:
    """What wrong answers tell, all failing tests having given one."""
    for wrap, how in _EXPECTED_WRAPS:
        if _agree_when(problem, failing, answers, wrap):
            return "broken_wrapping", f"the expected output is {how}"
    if problem.calls and _agree_when(problem, failing, answers, lambda test: test.expected, LENIENT):
        kinds = " and ".join(sorted({_kind_of(answer) for answer in answers}))
        return (
            "other_type",
            f"{len(failing)} of {total} tests: the reference returns what is expected as another type ({kinds})",
        )
    if all(_equal_in_any_order(test, answer) for test, answer in zip(failing, answers, strict=True)):
        return "many_valid_answers", f"{len(failing)} of {total} tests expect the same items in another order"
    if len(failing) >= 2 and _is_permutation(problem, failing, answers):
        return "swapped_tests", f"the expected outputs of {len(failing)} of {total} tests are exchanged among them"
    return None


def _kind_of(answer: bytes) -> str:
    """The type of an encoded value: a generator is an iterator."""
    form = parse_value(answer)
    return str(form[TAG]) if isinstance(form, dict) and TAG in form else type(form).__name__


def _agree_when(
    problem: Problem,
    tests: Sequence[TestCase],
    answers: Sequence[bytes],
    wrap: Callable[[TestCase], Any],
    compare: Compare | None = None,
) -> bool:
    """Whether every answer is right where each test expects what `wrap` makes of it, under the problem's rule or `compare`."""
    for test, answer in zip(tests, answers, strict=True):
        try:
            expected = wrap(test)
        except _NotWrappedError:
            return False
        other: TestCase = dataclasses.replace(test, expected=expected)
        if not accepts(other, answer, compare or problem.compare):
            return False
    return True


class _NotWrappedError(Exception):
    """The value cannot be wrapped or unwrapped in this way."""


def _expected_unwrapped(test: TestCase) -> Any:
    match test, _from_json(test.expected) if isinstance(test, StdinTest) else test.expected:
        case (CallTest(), [value]) | (_, [str(value)]):
            return value
    raise _NotWrappedError


def _expected_wrapped(test: TestCase) -> Any:
    if isinstance(test, StdinTest):
        raise _NotWrappedError
    return [test.expected]


def _expected_from_text(test: TestCase) -> Any:
    value = _from_json(test.expected)
    if isinstance(test, StdinTest) and not isinstance(value, str):
        raise _NotWrappedError
    return value


def _expected_unescaped(test: TestCase) -> Any:
    if not isinstance(test, StdinTest) or "\\n" not in test.expected:
        raise _NotWrappedError
    return _plain(test.expected)


_EXPECTED_WRAPS: tuple[tuple[Callable[[TestCase], Any], str], ...] = (
    (_expected_unwrapped, "wrapped in a list"),
    (_expected_wrapped, "missing a list around it"),
    (_expected_from_text, "the JSON text of the value"),
    (_expected_unescaped, "written with its line ends as \\n"),
)


def _from_json(text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        raise _NotWrappedError from None


async def _rewritten(
    problem: Problem, code: str, tests: Sequence[TestCase], executor: Executor, cpu_limit_s: float
) -> tuple[str, str] | None:
    """What is wrong with all tests, where the reference passes every one once it is written in another of the usual ways."""
    for variant, reason, detail in _variants(tests):
        outcomes = await _outcomes(problem, code, variant, executor, cpu_limit_s)
        given = [answer for answer, _ in outcomes if answer is not None]
        if len(given) != len(variant):
            continue
        if all(accepts(test, answer, problem.compare) for test, answer in zip(variant, given, strict=True)):
            return reason, detail
        if any(_agree_when(problem, variant, given, wrap) for wrap, _ in _EXPECTED_WRAPS):
            return reason, detail
    return None


def _variants(tests: Sequence[TestCase]) -> Iterator[tuple[list[TestCase], str, str]]:
    wrapped = "the reference passes when inputs are wrapped one level more or less"
    for rewrite, reason, detail in (
        (_arguments_unwrapped, "broken_wrapping", wrapped),
        (_arguments_wrapped, "broken_wrapping", wrapped),
        (_input_from_text, "broken_wrapping", wrapped),
        (_unescaped, "broken_wrapping", "line ends of the inputs are written as \\n"),
        (_exchanged, "swapped_tests", "inputs and expected outputs are exchanged"),
    ):
        try:
            yield [rewrite(test) for test in tests], reason, detail
        except _NotWrappedError:
            continue


def _unescaped(test: TestCase) -> TestCase:
    """Line ends that are written as two characters."""
    if not isinstance(test, StdinTest) or "\\n" not in test.input:
        raise _NotWrappedError
    return dataclasses.replace(test, input=_plain(test.input), expected=_plain(test.expected))


def _plain(text: str) -> str:
    for written, meant in (("\\r\\n", "\n"), ("\\n", "\n"), ("\\t", "\t"), ('\\"', '"')):
        text = text.replace(written, meant)
    return text


def _exchanged(test: TestCase) -> TestCase:
    if isinstance(test, StdinTest):
        return dataclasses.replace(test, input=test.expected, expected=test.input)
    if not isinstance(test, CallTest) or len(test.args) != 1 or test.kwargs or test.raises is not None:
        raise _NotWrappedError
    return dataclasses.replace(test, args=(test.expected,), expected=test.args[0])


def _arguments_unwrapped(test: TestCase) -> TestCase:
    match test:
        case CallTest(args=[list() | tuple() as only]) if not test.kwargs:
            return dataclasses.replace(test, args=tuple(only))
    raise _NotWrappedError


def _arguments_wrapped(test: TestCase) -> TestCase:
    if isinstance(test, CallTest) and not test.kwargs:
        return dataclasses.replace(test, args=(list(test.args),))
    raise _NotWrappedError


def _input_from_text(test: TestCase) -> TestCase:
    """A JSON text where its value was meant: a string of a string, a list of lines, arguments as text."""
    if isinstance(test, CallTest) and test.args:
        return dataclasses.replace(test, args=tuple(map(_from_json, test.args)))
    if isinstance(test, StdinTest):
        value = _from_json(test.input)
        if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
            value = "\n".join(value)
        if isinstance(value, str):
            return dataclasses.replace(test, input=value)
    raise _NotWrappedError


def _equal_in_any_order(test: TestCase, answer: bytes) -> bool:
    if isinstance(test, StdinTest):
        got, expected = answer.decode("utf-8", "replace").split(), test.expected.split()
        return len(expected) > 1 and sorted(got) == sorted(expected)
    try:
        return isinstance(test.expected, list | tuple) and _unordered(loads(answer)) == _unordered(test.expected)
    except ValueCodecError:
        return False


def _unordered(value: object) -> str:
    """A text that is equal for values that differ only in the order of lists' items."""
    if isinstance(value, list | tuple):
        return f"[{','.join(sorted(map(_unordered, value)))}]"
    return dumps(value)


def _is_permutation(problem: Problem, failing: Sequence[TestCase], answers: Sequence[bytes]) -> bool:
    """True when every answer is the expected output of another failing test, one each."""
    free = list(failing)
    for answer in answers:
        match = next((index for index, test in enumerate(free) if accepts(test, answer, problem.compare)), None)
        if match is None:
            return False
        free.pop(match)
    return True
