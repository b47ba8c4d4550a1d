"""Printed output: equality under each rule."""

from __future__ import annotations

import tracemalloc
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from code_rl.grading import Compare, StdinTest
from code_rl.grading.comparison import compare_printed


def right(rule: str, got: str | bytes, expected: str, **tolerance: Any) -> bool:
    raw = got if isinstance(got, bytes) else got.encode("utf-8", "surrogatepass")
    return compare_printed(raw, StdinTest("", expected), Compare(rule, **tolerance)) is None


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        ("3\n", "3"),
        ("  3  \r\n4\r\n\n\n", "3\n4"),
        ("\n\n3", "3"),
        ("1.0 2", "1 2.0"),
        ("1 2", "1    2"),
        ("-0", "0"),
        ("+5", "5"),
        ("007", "7"),
        (".5", "0.5"),
        ("5.", "5"),
        ("1e-05", "0.00001"),
        ("1000", "1e3"),
        ("inf", "Infinity"),
        ("nan", "nan"),
        ("", ""),
        ("123456789012345678901234567890", "123456789012345678901234567890.0"),
    ],
)
def test_lcb_accepts(got, expected):
    assert right("lcb", got, expected)
    assert right("lcb-official", got, expected)


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        ("-1000001", "-1000000"),
        ("50000000000000001", "50000000000000000"),
        ("1 9 9", "1 2 3"),
        ("1\n\n2", "1\n2"),
        ("1 2", "1\n2"),
        ("1 2 3", "1 2"),
        ("", "0"),
        ("0.333333", "0.3333333333"),
        ("Yes", "YES"),
        ("x 1.0", "x 1"),
        ("True", "1"),
        ("[1, 2]", "[1,2]"),
        ("nan 1.0", "nan 1"),
        ("inf", "-inf"),
        ("3\x00", "3"),
        ("0x10", "16"),
        ("1.2.3", "1.2"),
        ("snan", "1"),
    ],
)
def test_lcb_rejects(got, expected):
    assert not right("lcb", got, expected)
    assert not right("lcb-official", got, expected)


@pytest.mark.parametrize(
    ("got", "expected"), [("1e3", "1000"), ("1_000", "1000"), ("1_0.5", "10.5"), ("１", "1"), ("1E+3 1.0", "1000 1")]
)
def test_slips_of_livecodebench_are_only_in_its_official_rule(got, expected):
    assert not right("lcb", got, expected)
    assert right("lcb-official", got, expected)


POINT, POWER = r"([0-9]{1,6}\.[0-9]{0,6}|\.[0-9]{1,6})", r"([eE][+-]?[0-9]{1,3})?"
numerals = st.from_regex(rf"[+-]?([0-9]{{1,6}}|{POINT}){POWER}", fullmatch=True)
numerals_with_a_point = st.from_regex(rf"[+-]?{POINT}{POWER}", fullmatch=True)


@given(numerals, numerals_with_a_point)
def test_numerals_are_equal_exactly_when_their_decimals_are(got, expected):
    assert right("lcb", got, expected) == (Decimal(got) == Decimal(expected))


@given(numerals, st.integers(0, 5))
def test_zeros_at_the_ends_do_not_change_a_numeral(text, zeros):
    mantissa, _, power = text.lower().partition("e")
    sign, digits = (mantissa[0], mantissa[1:]) if mantissa[0] in "+-" else ("", mantissa)
    padded = sign + "0" * zeros + digits + ("" if "." in digits else ".") + "0" * zeros
    assert right("lcb", padded + ("e" + power if power else ""), text)


def livecodebench(got: str, expected: str) -> bool:
    """The published rule in its own words: strip, split, strip, then lines equal or equal lists of Decimals."""
    lines, wanted = ([line.strip() for line in text.strip().split("\n")] for text in (got, expected))
    if len(lines) != len(wanted):
        return False
    for one, other in zip(lines, wanted, strict=True):
        if one == other:
            continue
        try:
            same = list(map(Decimal, one.split())) == list(map(Decimal, other.split()))
        except ArithmeticError:
            return False
        if not same:
            return False
    return True


tokens = st.sampled_from(["1", "1.0", "-1", "2", "1e0", "10", "1_0", "0", "-0", "x", "True", "inf", "nan", "0.5", ".5"])
texts = st.lists(st.tuples(tokens, st.sampled_from([" ", "\n", "  ", "\r\n", "\n\n"])), max_size=5).map(
    lambda parts: "".join(token + gap for token, gap in parts)
)


@given(texts, texts)
def test_official_rule_is_livecodebenchs_and_lcb_never_accepts_more(got, expected):
    assert right("lcb-official", got, expected) == livecodebench(got, expected)
    assert right("lcb-official", got, expected) or not right("lcb", got, expected)


@given(st.text())
def test_every_rule_accepts_the_expected_text_itself(text):
    if text.encode("utf-8", "replace").decode() == text:
        for rule in ("lcb", "lcb-official", "python"):
            assert right(rule, text, text)
        assert right("lcb", text, text, abs_tol=1e-9)


@given(
    st.binary(),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.sampled_from(["lcb", "lcb-official", "python", "contest"]),
)
def test_no_output_makes_a_rule_raise(stdout, expected, rule):
    tolerance = {"abs_tol": 1e-6} if rule == "contest" else {}
    assert isinstance(right(rule, stdout, expected, **tolerance), bool)


@pytest.mark.parametrize("rule", ["lcb", "lcb-official", "python"])
@pytest.mark.parametrize("got", [b"\xff", b"1\n\xc3\x28", b"\xed\xa0\x80", "1\ud800".encode("utf-8", "surrogatepass")])
def test_output_that_is_not_utf8_is_wrong(rule, got):
    assert not right(rule, got, "1")


@pytest.mark.parametrize(
    ("got", "expected", "tolerance", "verdict"),
    [
        ("0.333333", "0.3333333333", {"abs_tol": 1e-6}, True),
        ("0.33333", "0.3333333333", {"abs_tol": 1e-6}, False),
        ("1000000.5", "1000000.0", {"rel_tol": 1e-6}, True),
        ("1000002.0", "1000000.0", {"rel_tol": 1e-6}, False),
        ("x 0.5000001", "x 0.5", {"abs_tol": 1e-6}, True),
        ("0.5 0.5", "0.5\n0.5", {"abs_tol": 1e-6}, False),
        ("-1000001", "-1000000", {"rel_tol": 1e-3, "abs_tol": 10}, True),
        ("-1000001", "-1000000", {"rel_tol": 1e-3, "abs_tol": 10, "exact_integers": True}, False),
        ("1000000.4", "1000000", {"abs_tol": 10}, True),
        ("1000000.4", "1000000", {"abs_tol": 10, "exact_integers": True}, False),
        ("3e0", "3", {"abs_tol": 1e-6}, True),
        ("3e0", "3", {"abs_tol": 1e-6, "exact_integers": True}, False),
        ("nan", "NaN", {"abs_tol": 1e-6}, True),
        ("nan", "1.5", {"abs_tol": 1e9}, False),
        ("inf", "1.5", {"abs_tol": 1e9}, False),
        ("1e999", "1.5", {"abs_tol": 1e9}, False),
        ("inf", "inf", {"abs_tol": 1e-6}, True),
        ("1_0.0", "10.0", {"abs_tol": 1e-6}, False),
    ],
)
def test_float_rule(got, expected, tolerance, verdict):
    assert right("lcb", got, expected, **tolerance) is verdict


@given(st.integers(), st.integers(), st.floats(0, 1e6), st.floats(0.001, 1e6))
def test_expected_integers_may_be_left_out_of_a_tolerance(got, expected, rel_tol, abs_tol):
    options = {"abs_tol": abs_tol, "rel_tol": rel_tol, "exact_integers": True}
    assert right("lcb", str(got), str(expected), **options) == (got == expected)


MEGA = 1 << 20


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        ("9" * MEGA, "9" * (MEGA - 1) + "8"),
        ("9" * MEGA, "1.5"),
        ("1e" + "9" * MEGA, "1.0"),
        ("1e999999999999999999", "1.0"),
        (" " * MEGA + "1\n" * 1000, "1.5"),
        ("\n" * MEGA + "x", "1.5"),
        ("1 " * (MEGA // 2), "1.5 " * 100),
        ("\x00" * MEGA, "1.5"),
        ("-" * MEGA, "1.5"),
        ("1." * (MEGA // 2), "1.5"),
    ],
)
@pytest.mark.parametrize("rule", ["lcb", "lcb-official", "contest"])
def test_megabytes_of_hostile_output_are_judged_wrong(rule, got, expected):
    assert not right(rule, got, expected, **({"abs_tol": 1e-9} if rule == "contest" else {}))


CONTEST = [
    ("0.50", "0.5", {}, True),
    ("1 2\n3", "1\n2\n3\n", {}, True),
    ("1 2", "1 2 3", {}, False),
    ("YES", "Yes", {"ignore_case": True}, True),
    ("0.500001", "0.5", {}, False),
    ("0.500001", "0.5", {"abs_tol": 1e-5}, True),
    ("1000001.0", "1000000.0", {"rel_tol": 1e-5}, True),
    ("3.0", "3", {}, True),
    ("3e0", "3", {}, False),
    ("2.999999", "3", {"abs_tol": 1e-5}, True),
    ("2.999999", "3", {"abs_tol": 1e-5, "exact_integers": True}, False),
    ("1000000008", "1000000007", {"rel_tol": 1e-5, "exact_integers": True}, False),
    ("3", "3.0", {}, True),
    ("nan", "1.0", {"abs_tol": 1e9}, False),
    ("inf", "1.0", {"rel_tol": 1.0}, False),
    ("1_0", "10.0", {"abs_tol": 1.0}, False),
    ("٣", "3.0", {"abs_tol": 1.0}, False),
]


@pytest.mark.parametrize(("got", "expected", "options", "verdict"), CONTEST)
def test_contest_rule(got, expected, options, verdict):
    assert right("contest", got, expected, **options) is verdict


def test_a_tests_own_tolerance_comes_before_the_problems():
    loose = StdinTest("", "0.5", abs_tol=0.1)
    assert compare_printed(b"0.55", loose, Compare()) is None
    assert compare_printed(b"0.55", StdinTest("", "0.5", abs_tol=0.01), Compare("lcb", abs_tol=1.0)) is not None
    assert compare_printed(b"0.55", StdinTest("", "0.5"), Compare()) is not None


def test_millions_of_tokens_are_never_held():
    expected, got = "11 " * 1000, "11.0 " * (1 << 20)
    tracemalloc.start()
    try:
        for rule in ("lcb", "lcb-official", "contest"):
            assert not right(rule, got, expected)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * len(got)


CLOSE = {"rel_tol": 1e-6}
AS_CODECONTESTS = {"abs_tol": 1e-5, "ignore_case": True}
EDGE = "1" + "0" * 500
EXACT = [
    ("contest", "12345678901234567891.0", "12345678901234567890", AS_CODECONTESTS, False),
    ("contest", "7" * 17 + "1" * 283 + ".0", "7" * 300, AS_CODECONTESTS, False),
    ("contest", "0.1000000000000000000000001", "0.1", {}, False),
    ("lcb", "9007199254740994.5", "9007199254740993.5", {"abs_tol": 1e-6}, False),
    ("contest", "3.00001", "3", AS_CODECONTESTS, True),
    ("contest", "3.0000100000000000000000001", "3", AS_CODECONTESTS, False),
    ("lcb", EDGE + ".00001", EDGE + ".0", {"abs_tol": 1e-5}, True),
    ("lcb", EDGE + ".00001" + "0" * 300 + "1", EDGE + ".0", {"abs_tol": 1e-5}, False),
    ("lcb", "1e-99999999999999999", "1.0", {"rel_tol": 1.0}, True),
    ("lcb", "-1e-99999999999999999", "1.0", {"rel_tol": 1.0}, False),
    ("lcb", "7" * 100_000 + " 1", "7" * 100_000 + "  1", {}, True),
    ("lcb", "7" * 100_000 + ".0 1", "7" * 100_000 + " 1", {}, True),
    ("lcb", "1e500", "1.0e400", CLOSE, False),
    ("lcb", "1e400", "inf", CLOSE, False),
    ("lcb", "1.0000001e400", "1.0e400", CLOSE, True),
    ("lcb", "0." + "3" * 450, "0." + "3" * 449 + "4", CLOSE, True),
    ("lcb", "0." + "3" * 450, "0." + "4" * 450, CLOSE, False),
    ("lcb", "0." + "0" * MEGA + "1", "0.0", {"abs_tol": 1e-9}, True),
    ("lcb", "0." + "0" * MEGA + "1", "0.0", {}, False),
    ("lcb", "1e999999999999999999", "1.5e-999999999999999999", CLOSE, False),
]


@pytest.mark.parametrize(("rule", "got", "expected", "more", "verdict"), EXACT, ids=range(len(EXACT)))
def test_rounding_makes_no_numerals_near_and_keeps_none_apart(rule, got, expected, more, verdict):
    assert right(rule, got, expected, **more) is verdict


@given(
    st.integers(-(10**6), 10**6), st.integers(-(10**6), 10**6), st.integers(-40, 40), st.sampled_from((1e-5, 0.1, 3.0))
)
def test_a_tolerance_decides_as_fractions_do(one, other, power, tolerance):
    got, expected = f"{one}e{power}", f"{other}e{power}"
    value, wanted = (Fraction(text) for text in (got, expected))
    tol = Fraction(repr(tolerance))
    assert right("lcb", got, expected, abs_tol=tolerance) is (abs(value - wanted) <= tol)
    assert right("lcb", got, expected, rel_tol=tolerance) is (abs(value - wanted) <= tol * abs(wanted))
