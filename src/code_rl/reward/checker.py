"""The rule `checker`: a trusted program decides among many valid answers.

It runs in processes that no policy program shares or descends from (`Job.trusted`), since it sees expected outputs. Its source defines
`check(input, output, expected)`, which returns True when the output is right, False or a string that says why when it is wrong. For call tests `input` is
`(args, kwargs)`, for a sequence of calls the pairs of name and arguments; all three are the values themselves.

The older protocol: a source that defines no such function is run as a script for each test, reads one JSON object, `{"input", "expected", "output"}`
(strings) or `{"args", "kwargs", "expected", "value"}` in the encoding of `problems.values`, and prints one line: `ok`, or `wrong: why`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass

from code_rl.problems.problem import CallTest, Compare, SequenceTest, StdinTest, TestCase
from code_rl.problems.rules import CHECK, defines
from code_rl.problems.values import ENVELOPE, Encoded, ValueCodecError, encode, text_of
from code_rl.reward.plain import UnreadableError, parse_value
from code_rl.reward.reasons import clip, last_lines
from code_rl.sandbox.executor import CallInput, CaseInput, Execution, Job, Limits, Status, StdinInput, case_bytes

OUTPUT_BYTES = 1 << 20


class UndecidedError(Exception):
    """A checker or interactor did not decide: it failed, went beyond a limit, or answered in no known way. Says how, for the problem's author."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a program gave for one test, as the checker is asked about it."""

    test: TestCase
    case: CaseInput


def checker_job(compare: Compare, answers: Sequence[Answer]) -> Job:
    """One submission that asks the checker about each answer."""
    source = compare.checker or ""
    return Job(
        code=source,
        cases=tuple(answer.case for answer in answers),
        fn_name=CHECK if defines(source, CHECK) else None,
        limits=Limits(
            cpu_s=compare.checker_time_limit_s, memory_mb=compare.checker_memory_limit_mb, output_bytes=OUTPUT_BYTES
        ),
        trusted=True,
    )


def read_answer(test: TestCase, given: bytes, compare: Compare) -> Answer:
    """What a program printed, or its encoded value, made ready for the checker, which takes time in proportion. Raises UnreadableError."""
    if not defines(compare.checker or "", CHECK):
        return Answer(test, _line(test, given))
    case = _call(test, given)
    with contextlib.suppress(ValueCodecError):  # the executor says so
        case = dataclasses.replace(case, message=case_bytes(case))
    return Answer(test, case)


def read_decision(execution: Execution) -> str | None:
    """None for a right answer, else the checker's reason. Raises UndecidedError."""
    if execution.status is not Status.OK:
        said = last_lines(execution)
        raise UndecidedError(f"it ended with {execution.status.value}" + (f": {said}" if said else ""))
    if execution.value is not None:
        return read_value(execution.value)
    line = execution.stdout.decode("utf-8", "replace").strip()
    if line == "ok":
        return None
    if line == "wrong" or line.startswith("wrong:"):
        return clip(line[len("wrong:") :]) or "the checker says wrong"
    raise UndecidedError(f"it printed {clip(line)[:80]!r}, not 'ok' or 'wrong: why'")


def read_value(value: bytes) -> str | None:
    """What `check` or `interact` returned: None for True, a reason for False or a string. Raises UndecidedError."""
    try:
        decision = parse_value(value)
    except UnreadableError as error:
        raise UndecidedError(str(error)) from error
    if decision is True:
        return None
    if decision is False:
        return "it says wrong"
    if isinstance(decision, str):
        return clip(decision) or "it says wrong"
    raise UndecidedError(f"it returned {clip(repr(decision))[:80]}, not True, False or a reason")


def _call(test: TestCase, given: bytes) -> CallInput:
    if isinstance(test, StdinTest):
        return CallInput((test.input, _text(given, "the output is not UTF-8 text"), test.expected))
    value = Encoded(_text(given, "the returned value cannot be read"))
    if isinstance(test, SequenceTest):
        return CallInput((test.calls, value, list(test.expected)))
    return CallInput(((test.args, dict(test.kwargs)), value, test.expected))


def _line(test: TestCase, given: bytes) -> StdinInput:
    if isinstance(test, StdinTest):
        output = _text(given, "the output is not UTF-8 text")
        return StdinInput(json.dumps({"input": test.input, "expected": test.expected, "output": output}).encode())
    parse_value(given)  # a text that is one whole JSON value cannot reach beyond its place in the object below
    head = {"args": [], "kwargs": {}, "expected": encode(test.expected, -ENVELOPE)}
    if isinstance(test, CallTest):
        head["args"] = [encode(item) for item in test.args]
        head["kwargs"] = {name: encode(item) for name, item in test.kwargs.items()}
    else:
        head["args"] = [encode(call, -ENVELOPE) for call in test.calls]
    return StdinInput(text_of(head).encode()[:-1] + b',"value":' + given + b"}")


def _text(data: bytes, trouble: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise UnreadableError(trouble) from None
