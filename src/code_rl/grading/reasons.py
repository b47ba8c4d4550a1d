"""Why a test failed, in messages that reveal nothing of a hidden test."""

from __future__ import annotations

import builtins
import re
from dataclasses import dataclass

from code_rl.grading.comparison import raised_names
from code_rl.grading.problem import CallTest, StdinTest, TestCase
from code_rl.grading.sandbox.executor import Execution, Status
from code_rl.grading.values import ENVELOPE, dumps
from code_rl.grading.verdict import VerdictKind

MAX_MESSAGE = 240
MAX_GOT = 2_000

_EXCEPTIONS = frozenset(
    name
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, BaseException)
)


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a test failed. `message` reveals nothing of the test; `public_message` may, for a public
    test."""

    kind: VerdictKind
    message: str
    public_message: str = ""
    got: str | None = None

    def shown(self, public: bool) -> str:
        """Return the failure's message, of one line, printable and of at most 240 characters. The
        part that may reveal something of the test is in it only if `public`."""
        if not public or not self.public_message:
            return clip(self.message)
        if self.public_message.startswith(self.message):
            return clip(self.public_message)
        return clip(f"{self.message}: {self.public_message}")


def status_reason(execution: Execution, test: TestCase) -> Reason | None:
    """Return why this execution failed before any comparison, or None if it gave an answer. Its
    `message` names a built-in exception or an exit code, or is the compiler's; whatever else the
    program says is in `public_message`."""
    if execution.status is Status.OK:
        return None if isinstance(test, StdinTest) else _unanswered(execution, test)
    detail = clip(execution.detail)
    kind = VerdictKind(execution.status.value)
    if kind is VerdictKind.COMPILE_ERROR:
        return Reason(kind, detail or "the program does not compile")
    name = re.match(r"\w+", detail)
    if kind is VerdictKind.RUNTIME_ERROR and name and name[0] in _EXCEPTIONS:
        return Reason(kind, name[0], detail)
    if kind is VerdictKind.RUNTIME_ERROR and execution.exit_code:
        return Reason(kind, f"exit code {execution.exit_code}", detail)
    return Reason(kind, kind.value.replace("_", " "), detail)


def left_by_itself(execution: Execution, test: TestCase) -> bool:
    """Return True for a stdin test's program that ended with an exit code above 0 of its own
    choice, not by an uncaught exception, a signal or a limit."""
    crashed = execution.exit_code == 1 and b"Traceback (most recent call last)" in execution.stderr
    chosen = execution.exit_code is not None and execution.exit_code > 0 and not crashed
    return isinstance(test, StdinTest) and execution.status is Status.RUNTIME_ERROR and chosen


def wrong(message: str, test: TestCase, execution: Execution) -> Reason:
    """Return the reason for a wrong answer. For a public test it also has the beginnings of the
    expected and the given answer, and up to 2,000 bytes of the latter as `got`; for a hidden one,
    `message` alone."""
    if not test.public:
        return Reason(VerdictKind.WRONG_ANSWER, message)
    expected = test.raises if isinstance(test, CallTest) and test.raises else test.expected
    raw = execution.stdout if execution.value is None else execution.value
    got = raw[:MAX_GOT].decode("utf-8", "replace") + ("…" if len(raw) > MAX_GOT else "")
    said = repr(raw[:80].decode("utf-8", "replace")) + ("…" if len(raw) > 80 else "")
    wanted = repr(expected[:80]) if isinstance(expected, str) else dumps(expected, -ENVELOPE)
    shown = f"expected {wanted[:80]}{'…' * (len(wanted) > 80)}, got {said}"
    return Reason(VerdictKind.WRONG_ANSWER, message, shown, got=got)


def last_lines(execution: Execution) -> str:
    """Return the last two lines of a trusted program's stderr that are not blank, or else its
    `detail`, as one short line for its author."""
    said = [
        line
        for line in execution.stderr[-4096:].decode("utf-8", "replace").splitlines()
        if line.strip()
    ]
    return clip("; ".join(said[-2:])) or clip(execution.detail)


def clip(text: str) -> str:
    """Return the first 240 characters, with unprintable ones as spaces, line ends included, lone
    surrogates as `?`, and none at either end."""
    text = "".join(char if char.isprintable() else " " for char in text[:MAX_MESSAGE])
    return text.encode("utf-8", "replace").decode("utf-8").strip()


def _unanswered(execution: Execution, test: TestCase) -> Reason | None:
    """Return the reason if the call gave no value or raised where that is not expected, else None.
    Only a built-in exception's name is in `message`."""
    if execution.value is None:
        detail = clip(execution.detail)
        return Reason(
            VerdictKind.RUNTIME_ERROR, "the program ended without returning from the call", detail
        )
    if isinstance(test, CallTest) and test.raises is not None:
        return None
    names = raised_names(execution.value)
    if names is None:
        return None
    known = next((name for name in names if name in _EXCEPTIONS), "an exception")
    return Reason(
        VerdictKind.RUNTIME_ERROR, known, f"{known}: the call raised {', '.join(names[:1])}"
    )
