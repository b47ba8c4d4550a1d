"""Constants and asserts are read without running code, and anything else is refused by name."""

import ast
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from code_rl.data.sources import asserts
from code_rl.data.sources.asserts import AssertReader
from code_rl.data.sources.records import RowError

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.binary()
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner), max_leaves=20
)


def fold(text: str):
    return asserts.fold(ast.parse(text, mode="eval").body)


def read(text: str, name: str = "f"):
    return AssertReader(name).read(ast.parse(text).body[0])


@given(VALUES)
def test_every_plain_value_is_read_back_from_its_repr(value):
    assert fold(repr(value)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-1", -1),
        ("2**31 - 1", 2**31 - 1),
        ("float('inf')", math.inf),
        ("-math.inf", -math.inf),
        ("set()", set()),
        ("tuple([1, 2])", (1, 2)),
        ("[0] * 3", [0, 0, 0]),
        ("1 + 2j", 1 + 2j),
        ("not True", False),
    ],
)
def test_constant_forms_beside_literals(text, value):
    assert fold(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "open('x')",
        "__import__('os')",
        "f(1)",
        "[i for i in (1,)]",
        "...",
        "(lambda: 1)()",
        "1 / 0",
        "int('x')",
        "10 ** 10 ** 10",
        "1 << 10**12",
        "'x' * 10**12",
        "[0] * 10**9",
        "10**6 * [0] * 10**6",
    ],
)
def test_what_would_need_running_or_fill_the_memory_is_refused(text):
    with pytest.raises(RowError):
        fold(text)


@pytest.mark.parametrize(
    ("text", "view", "expected"),
    [
        ("assert f(1)", "bool", True),
        ("assert not f(1)", "bool", False),
        ("assert set(f(1)) == set((1, 2))", "set", {1, 2}),
        ("assert tuple(f(1)) == (1,)", "tuple", (1,)),
        ("assert len(f(1)) == 2", "len", 2),
        ("assert f(1) is True", "is", True),
        ("assert f(1) is None", None, None),
    ],
)
def test_what_a_test_looks_at_is_a_view(text, view, expected):
    test, found = read(text)
    assert (found, test.expected) == (view, expected)


@pytest.mark.parametrize(
    ("text", "abs_tol", "rel_tol"),
    [
        ("assert abs(f(1) - 0.5) < 1e-6", 1e-6, None),
        ("assert math.isclose(f(1), 2.5, rel_tol=0.001)", None, 0.001),
        ("assert math.isclose(f(1), 2.5, abs_tol=1)", 1.0, 1e-9),
    ],
)
def test_tolerances_are_kept(text, abs_tol, rel_tol):
    test, _ = read(text)
    assert (test.abs_tol, test.rel_tol) == (abs_tol, rel_tol)


@pytest.mark.parametrize("text", ["assert True, 'note'", "import math", "print", "assert f(1) == f(2)"])
def test_statements_that_say_nothing_are_left_out(text):
    assert read(text) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("assert g(1) == 2", "not_a_call_of_the_entry_point"),
        ("assert f(1) == g(2)", "value_is_not_a_literal"),
        ("assert f(1) > 2", "unknown_assert_form"),
        ("for i in range(3): pass", "statement_is_not_an_assert"),
        ("assert f(**{'a': 1}) == 2", "unknown_assert_form"),
    ],
)
def test_unknown_forms_are_refused_with_a_reason_code(text, reason):
    with pytest.raises(RowError) as caught:
        read(text)
    assert caught.value.reason == reason
