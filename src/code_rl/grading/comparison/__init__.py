"""The compare rules for printed and for returned outputs; docs/judging.md has the details.

| rule | printed text | returned value |
|---|---|---|
| `lcb` | lines, as text or numerals within tolerance | plain data; tuple = list |
| `lcb-official` | as LiveCodeBench decides, slips included | the same |
| `python` | as `lcb` | as `==` in an assert |
| `contest` | tokens, as text or numbers within tolerance | as `lcb`, strings by tokens |
| `checker` | a trusted program decides, in the sandbox (`checker`) | the same |
"""

from __future__ import annotations

import builtins

from code_rl.grading.comparison import text
from code_rl.grading.comparison.values import RAISED, UnreadableError, compare_values, parse_value
from code_rl.grading.problem import CallTest, Compare, SequenceTest, StdinTest, rule_for
from code_rl.grading.values import ENVELOPE, TAG, dumps

MAX_RAISED_BYTES = 1 << 16
_PRINTED = {
    "lcb": text.compare_lcb,
    "lcb-official": text.compare_lcb_official,
    "python": text.compare_lcb,
    "contest": text.compare_contest,
}


def compare_printed(stdout: bytes, test: StdinTest, compare: Compare) -> str | None:
    """Return None if `stdout` is right for `test`, else a reason that reveals nothing of the test.
    The test's own tolerances override those of `compare`, whose rule is not `checker`.

    Linear in both texts. Output that is not UTF-8 is wrong, never an error.
    """
    compare = rule_for(compare, test)
    try:
        got = stdout.decode("utf-8")
    except UnicodeDecodeError:
        return "the output is not UTF-8 text"
    return _PRINTED[compare.rule](got, test.expected, compare)


def compare_returned(value: bytes, test: CallTest | SequenceTest, compare: Compare) -> str | None:
    """Return None if `value` (encoded by `grading.values`) is right for `test`, else a reason that
    reveals nothing of the test. A value that cannot be read is wrong, never an error.

    If the test has `raises`, only an exception of that class, or of a subclass, is right. The
    test's own tolerances override those of `compare`.
    """
    if isinstance(test, CallTest) and test.raises is not None:
        names = raised_names(value)
        if names is None:
            return "the call returned where it was to raise an exception"
        kind = getattr(builtins, test.raises, None)  # IOError is an alias of OSError
        wanted = kind.__name__ if isinstance(kind, type) else test.raises
        return None if wanted in names else "the call raised another exception"
    expected = list(test.expected) if isinstance(test, SequenceTest) else test.expected
    text = dumps(expected, -ENVELOPE).encode()
    if value == text and compare.rule != "lcb-official":  # to which NaN equals nothing
        return None
    try:
        got = parse_value(value, text)
    except UnreadableError as error:
        return str(error)
    return compare_values(
        got, expected, rule_for(compare, test), outermost=int(isinstance(test, SequenceTest))
    )


def raised_names(value: bytes) -> list[str] | None:
    """Return the names of the raised exception's class and bases, in the order of its MRO, or None
    if the call returned. A program may forge them. A record of more than 64 KiB counts as a
    returned value."""
    if len(value) > MAX_RAISED_BYTES or not value.startswith(
        b'{"%s":"%s"' % (TAG.encode(), RAISED.encode())
    ):
        return None
    try:
        form = parse_value(value)
    except UnreadableError:
        return None
    names = form.get("items") if isinstance(form, dict) and form.get(TAG) == RAISED else None
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else None
