"""Why a reference fails its own tests: every test is run, twice, and the answers are read.

Only inputs enter the sandbox, as always; expected outputs are compared here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from code_rl.judging.plain import parse_value
from code_rl.judging.submission import program_job
from code_rl.preparation.verification.trials import accepts, answer_to, elsewhere, is_unsteady
from code_rl.problems.problem import CallTest, Compare, Problem, SequenceTest, StdinTest, TestCase
from code_rl.problems.sources.testcases import DoesNotFitError, only_item, parsed, typed
from code_rl.problems.values import TAG, ValueCodecError, dumps, loads
from code_rl.sandbox.executor import Executor, Limits, Status

MOST_TESTS = 64
RUNS = 3
UNSTEADY_RUNS = 10
LENIENT = Compare("lcb")
"""The rule that reads every ordered collection as a list."""
SETS = frozenset({"set", "frozenset"})


async def diagnose(problem: Problem, code: str, executor: Executor, cpu_limit_s: float) -> tuple[str, str] | None:
    """(reason, detail) for a reference that does not pass, or None when the answers do not tell more than the verdict.

    Raises SandboxError when the executor fails.
    """
    if problem.compare.rule == "checker":
        return None
    tests = problem.tests[:MOST_TESTS]
    runs = [await _outcomes(problem, code, tests, executor, cpu_limit_s)]
    for number in range(1, UNSTEADY_RUNS if is_unsteady(code) else RUNS):
        runs.append(await _outcomes(elsewhere(problem, code, number), code, tests, executor, cpu_limit_s))
        if runs[-1] != runs[0]:
            pairs = enumerate(zip(runs[0], runs[-1], strict=False))
            changed = next((index for index, (one, other) in pairs if one != other), 0)
            return "flaky", f"test {changed} gives another answer in another process or at another time"
    answers = [(test, answer) for test, (answer, _) in zip(tests, runs[0], strict=False)]
    failing = [(test, got) for test, got in answers if got is None or not accepts(test, got, problem.compare)]
    if not failing:
        return None
    given, found = [answer for _, answer in failing if answer is not None], None
    if len(given) == len(failing):
        found = _read_answers(problem, [test for test, _ in failing], given, len(tests))
    found = found or await _passes_rewritten(problem, code, tests, executor, cpu_limit_s)
    if found is None and len(failing) == len(tests) >= 2 and given:
        return "mismatched_tests", f"the reference answers, but none of {len(tests)} tests expects its answer"
    return found


async def _outcomes(
    problem: Problem, code: str, tests: Sequence[TestCase], executor: Executor, cpu_limit_s: float
) -> list[tuple[bytes | None, Status]]:
    """What a program gave for each test (None: nothing) and how it ended."""
    job = program_job(problem, code, tests, Limits(cpu_s=cpu_limit_s, memory_mb=problem.memory_limit_mb))
    runs = [run async for run in executor.run(job)]
    return [(answer_to(test, run), run.status) for test, run in zip(tests, runs, strict=False)]


def _read_answers(
    problem: Problem, failing: Sequence[TestCase], answers: Sequence[bytes], total: int
) -> tuple[str, str] | None:
    """What wrong answers tell, all failing tests having given one."""
    for rewrite, how in _OTHER_EXPECTED:
        if _all_right(_rewritten(failing, rewrite), answers, problem.compare):
            return "broken_wrapping", f"the expected output is {how}"
    some = f"{len(failing)} of {total} tests"
    same_items = all(_equal_in_any_order(test, answer) for test, answer in zip(failing, answers, strict=True))
    kinds = sorted({_kind_of(answer) for answer in answers}) if problem.calls else []
    if kinds and (_all_right(failing, answers, LENIENT) or (same_items and SETS.issuperset(kinds))):
        named = " and ".join(kinds)
        return "other_type", f"{some}: the reference returns what is expected as another type ({named})"
    if same_items:
        return "many_valid_answers", f"{some} expect the same items in another order"
    if len(failing) >= 2 and _is_permutation(problem, failing, answers):
        return "swapped_tests", f"the expected outputs of {some} are exchanged among them"
    return None


def _kind_of(answer: bytes) -> str:
    """The type of an encoded value: a generator is an iterator."""
    form = parse_value(answer)
    return str(form[TAG]) if isinstance(form, dict) and TAG in form else type(form).__name__


Rewrite = Callable[[TestCase], TestCase]
"""A test as it was perhaps meant. Raises DoesNotFitError for one that cannot be read so."""


def _rewritten(tests: Sequence[TestCase], rewrite: Rewrite) -> list[TestCase]:
    """All of the tests as they were perhaps meant; none where one cannot be read so."""
    try:
        return [rewrite(test) for test in tests]
    except DoesNotFitError:
        return []


def _all_right(tests: Sequence[TestCase], answers: Sequence[bytes], compare: Compare) -> bool:
    pairs = zip(tests, answers, strict=False)
    return len(tests) == len(answers) > 0 and all(accepts(test, answer, compare) for test, answer in pairs)


async def _passes_rewritten(
    problem: Problem, code: str, tests: Sequence[TestCase], executor: Executor, cpu_limit_s: float
) -> tuple[str, str] | None:
    """What is wrong with all tests, where the reference passes every one once it is written in another of the usual ways."""
    for rewrite, reason, detail in _OTHER_INPUTS:
        if not (meant := _rewritten(tests, rewrite)):
            continue
        outcomes = await _outcomes(problem, code, meant, executor, cpu_limit_s)
        given = [answer for answer, _ in outcomes if answer is not None]
        if any(_all_right(each, given, problem.compare) for each in (meant, *(_rewritten(meant, r) for r, _ in _OTHER_EXPECTED))):  # fmt: skip
            return reason, detail
    return None


def _expected_unwrapped(test: TestCase) -> TestCase:
    value = only_item(parsed(test.expected) if isinstance(test, StdinTest) else [*typed(test.expected, list | tuple)])
    return dataclasses.replace(test, expected=value if isinstance(test, CallTest) else typed(value, str))


def _expected_wrapped(test: TestCase) -> TestCase:
    call: CallTest | SequenceTest = typed(test, CallTest | SequenceTest)
    wrapped: Any = [call.expected]
    return dataclasses.replace(call, expected=wrapped)


def _expected_from_text(test: TestCase) -> TestCase:
    value = parsed(test.expected)
    return dataclasses.replace(test, expected=typed(value, str) if isinstance(test, StdinTest) else value)


def _expected_unescaped(test: TestCase) -> TestCase:
    given: StdinTest = typed(test, StdinTest)
    return dataclasses.replace(given, expected=_unescaped(given.expected))


def _input_unescaped(test: TestCase) -> TestCase:
    given: StdinTest = typed(test, StdinTest)
    return dataclasses.replace(given, input=_unescaped(given.input), expected=_plain(given.expected))


def _exchanged(test: TestCase) -> TestCase:
    if isinstance(test, StdinTest):
        return dataclasses.replace(test, input=test.expected, expected=test.input)
    if not isinstance(test, CallTest) or len(test.args) != 1 or test.kwargs or test.raises is not None:
        raise DoesNotFitError
    return dataclasses.replace(test, args=(test.expected,), expected=test.args[0])


def _arguments_unwrapped(test: TestCase) -> TestCase:
    call = _by_position(test)
    return dataclasses.replace(call, args=tuple(typed(only_item([*call.args]), list | tuple)))


def _arguments_wrapped(test: TestCase) -> TestCase:
    call = _by_position(test)
    return dataclasses.replace(call, args=([*call.args],))


def _by_position(test: TestCase) -> CallTest:
    if isinstance(test, CallTest) and not test.kwargs:
        return test
    raise DoesNotFitError


def _input_from_text(test: TestCase) -> TestCase:
    """A JSON text where its value was meant: a string of a string, a list of lines, arguments as text."""
    if isinstance(test, CallTest) and test.args:
        return dataclasses.replace(test, args=tuple(map(parsed, test.args)))
    value = parsed(typed(test, StdinTest).input)
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        value = "\n".join(value)
    return dataclasses.replace(test, input=typed(value, str))


def _unescaped(text: str) -> str:
    if "\\n" not in text:
        raise DoesNotFitError
    return _plain(text)


def _plain(text: str) -> str:
    """With line ends that are written as two characters as such."""
    for written, meant in (("\\r\\n", "\n"), ("\\n", "\n"), ("\\t", "\t"), ('\\"', '"')):
        text = text.replace(written, meant)
    return text


_OTHER_EXPECTED: tuple[tuple[Rewrite, str], ...] = (
    (_expected_unwrapped, "wrapped in a list"),
    (_expected_wrapped, "missing a list around it"),
    (_expected_from_text, "the JSON text of the value"),
    (_expected_unescaped, "written with its line ends as \\n"),
)
_WRAPPED = "the reference passes when inputs are wrapped one level more or less"
_OTHER_INPUTS: tuple[tuple[Rewrite, str, str], ...] = (
    (_arguments_unwrapped, "broken_wrapping", _WRAPPED),
    (_arguments_wrapped, "broken_wrapping", _WRAPPED),
    (_input_from_text, "broken_wrapping", _WRAPPED),
    (_input_unescaped, "broken_wrapping", "line ends of the inputs are written as \\n"),
    (_exchanged, "swapped_tests", "inputs and expected outputs are exchanged"),
)


def _equal_in_any_order(test: TestCase, answer: bytes) -> bool:
    if isinstance(test, StdinTest):
        got, expected = answer.decode("utf-8", "replace").split(), test.expected.split()
        return len(expected) > 1 and sorted(got) == sorted(expected)
    try:
        got = loads(answer)
        got = list(got) if isinstance(got, set | frozenset) else got
        return isinstance(test.expected, list | tuple) and _unordered(got) == _unordered(test.expected)
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
