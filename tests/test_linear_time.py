"""Whatever reads text of a policy takes time linear in it: a completion of 100 KB must not hold up the event loop."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import re
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import code_rl.grading
import code_rl.training.report
from code_rl.grading import Compare, StdinTest, extract_code
from code_rl.grading.comparison import compare_printed
from code_rl.grading.sandbox.ending import exception_line
from code_rl.policy import Trajectory, Turn
from code_rl.policy.renderers import Renderer
from code_rl.policy.rewards import think_answer
from code_rl.training.report.groups import flags

LENGTH, TIMES = 1 << 12, 4
MOST = 10.0
"""Four times the text may take so many times the CPU time: four if linear, sixteen if quadratic."""
NOISE_S = 0.02

READERS = (
    "code_rl.util.thinking",
    "code_rl.policy.rewards",
    "code_rl.policy.trajectory",
    "code_rl.policy.sample",
    "code_rl.grading.sandbox.ending",
)
PIECES = (
    " ", "\n", " \n", "a", "1", "1.", "e1", "_", "(", "[", '=="', "== 1", "in [", "print ( ", 'print("', "open( ", "builtins.a =", "setattr( ",
    "def __eq__(self, a", "`", "```a\n", "a```\n", "~~~ ", "> ```\n", "\'\'\'\n```\n", "<a>", "<a>```a\n", "\u200b", "#", "</think>", " <think>", "<answer></answer>",
)  # fmt: skip
"""What a text is made of, over and over: pieces of what patterns look for."""


def texts(length: int) -> Iterator[tuple[str, str]]:
    yield "quote marks before a fence, then lines", ">" * (length // 2) + "```a\n" + "a\n" * (length // 4)
    yield "a line of quote marks", ">" * (length // 2) + "```a\n" + ">" * (length // 2)
    for one, other in zip(PIECES, PIECES[1:] + PIECES[:1], strict=True):
        yield f"{one!r} then {other!r}", one * (length // 2 // len(one)) + other * (length // 2 // len(other))
    for piece in PIECES:
        for before in ("", "```python\n", "<think>"):
            for end in ("", "x```"):
                yield f"{before!r} {piece!r} {end!r}", before + piece * (length // len(piece)) + end


def seconds(read: Callable[[str], object], text: str) -> float:
    began = time.process_time()
    read(text)
    return time.process_time() - began


def least(read: Callable[[str], object], text: str) -> float:
    return min(seconds(read, text) for _ in range(3))


def slower_than_linear(read: Callable[[str], object]) -> list[str]:
    found = []
    for (name, short), (_, long) in zip(texts(LENGTH), texts(TIMES * LENGTH), strict=True):
        if seconds(read, long) > NOISE_S and least(read, long) > MOST * least(read, short) + NOISE_S:
            found.append(name)
    return found


def patterns() -> dict[str, Callable[[str], object]]:
    """All compiled patterns of the modules that read text of a policy, each in the ways in which its module uses it."""
    rooms = [
        f"{room.__name__}.{each.name}"
        for room in (code_rl.grading, code_rl.training.report)
        for each in pkgutil.iter_modules(room.__path__)
    ]
    found: dict[str, Callable[[str], object]] = {}
    for name in (*rooms, *READERS):
        module = importlib.import_module(name)
        for constant, value in vars(module).items():
            if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
                for how in sorted(set(re.findall(rf"\b{constant}\.(\w+)\(", inspect.getsource(module)))):
                    found[f"{name}.{constant}.{how}"] = functools.partial(CALLS[how], value)
    return found


CALLS: dict[str, Callable[[re.Pattern[str], str], object]] = {
    "match": re.Pattern.match,
    "fullmatch": re.Pattern.fullmatch,
    "search": re.Pattern.search,
    "sub": lambda pattern, text: pattern.sub("", text, count=1),
    "findall": re.Pattern.findall,
    "finditer": lambda pattern, text: list(pattern.finditer(text)),
}


def message(text: str, *, opens_thinking: bool) -> object:
    return Renderer.read_message(SimpleNamespace(opens_thinking=opens_thinking), text)  # type: ignore[arg-type]


def rewarded(text: str) -> object:
    verdict: Any = SimpleNamespace(correct=True)
    return think_answer(Trajectory((Turn((), (), (), text, False, "1", verdict, reasoning="so"),)), None)


RULES = ("lcb", "lcb-official", "contest", "python")


def compared(got: str, expected: str, rule: Any) -> object:
    return compare_printed(got.encode(), StdinTest("", expected), Compare(rule))


FUNCTIONS: dict[str, Callable[[str], object]] = {
    "extract_code": extract_code,
    "a message": lambda text: message(text, opens_thinking=False),
    "a message whose prompt opens the thinking": lambda text: message(text, opens_thinking=True),
    "think_answer": rewarded,
    "flags": lambda text: flags(text, text, [{"input": "1", "expected": "123456"}], True),
    "exception_line": lambda text: exception_line(text.encode()),
    **{f"rule {rule}": lambda text, rule=rule: compared(text, "1 2\n3", rule) for rule in RULES},  # type: ignore[misc]
    **{f"rule {rule}, alike": lambda text, rule=rule: compared(text, text + "1", rule) for rule in RULES},  # type: ignore[misc]
}


@pytest.mark.long
@pytest.mark.parametrize("read", (readers := {**patterns(), **FUNCTIONS}).values(), ids=readers)
def test_what_reads_text_of_a_policy_takes_linear_time(read):
    assert slower_than_linear(read) == []
