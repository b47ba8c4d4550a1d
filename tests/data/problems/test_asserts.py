"""Asserts of a native row are read without running code: as calls with constant results; anything else is refused by name."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from code_rl.data.sources import Skipped
from tests.refusals import names_all

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


def row(*codes, **rest):
    tests = [{"kind": "assert", "code": code} for code in codes]
    return {"id": "a", "statement": "?", "fn_name": "f", "tests": tests, **rest}


def only_test(court, code):
    (test,) = court.item(row(code)).tests
    return test


@given(VALUES)
def test_every_plain_value_is_read_back_from_its_repr(court, value):
    assert only_test(court, f"assert f(0) == {value!r}").expected == value


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
def test_constant_forms_beside_literals(court, text, value):
    assert only_test(court, f"assert f({text}) == 0").args == (value,)


@pytest.mark.parametrize(
    ("code", "right", "wrong"),
    [
        ("assert f(1)", "2", "0"),
        ("assert not f(1)", "0", "2"),
        ("assert set(f(1)) == set((1, 2))", "[1, 2, 2]", "[1]"),
        ("assert sorted(f('ba')) == ['a', 'b']", "{'a', 'b'}", "'b'"),
        ("assert tuple(f(1)) == (1,)", "[1]", "[2]"),
        ("assert f(1) == (1,)", "(1,)", "[1]"),
        ("assert len(f(1)) == 2", "'ab'", "'a'"),
        ("assert f(1) is True", "True", "1"),
        ("assert f(1) is None", "None", "0"),
        ("assert abs(f(1) - 10) < 1e-3\nassert abs(f(2) - 10) < 1", "10 + (n == 2) / 2", "10.5"),
        ("assert f(2) == 4\nassert f(0) == 0", "n * n", "n + 2"),
        ("assert abs(f(1) - 10) < 1e-3\nassert f(2) == 10", "10 + (n == 1) * 1e-4", "10.0001"),
    ],
)
def test_an_assert_is_read_as_the_call_that_it_makes_and_the_look_at_its_result(court, code, right, wrong):
    problem = court.item(row(code))
    programs = (f"def f(n): return {value}" for value in (right, wrong))
    assert court.verdicts(problem, *programs) == ["passed", "wrong_answer"]


@pytest.mark.parametrize(
    ("code", "abs_tol", "rel_tol"),
    [
        ("assert abs(f(1) - 0.5) < 1e-6", 1e-6, None),
        ("assert math.isclose(f(1), 2.5, rel_tol=0.001)", None, 0.001),
        ("assert math.isclose(f(1), 2.5, abs_tol=1)", 1.0, 1e-9),
    ],
)
def test_tolerances_are_kept(court, code, abs_tol, rel_tol):
    test = only_test(court, code)
    assert (test.abs_tol, test.rel_tol) == (abs_tol, rel_tol)


@pytest.mark.parametrize("code", ["assert True, 'note'", "import math", "print", "assert f(1) == f(2)"])
def test_statements_that_say_nothing_are_left_out(court, code):
    assert only_test(court, f"{code}\nassert f(1) == 2").expected == 2
    assert court.item(row("assert f(1) == 2", code)).reason == "bad_native_row"


@pytest.mark.parametrize(
    ("code", "named"),
    [
        ("assert g(1) == 2", "not_a_call_of_the_entry_point"),
        ("assert f(1) == g(2)", "value_is_not_a_literal"),
        ("assert f(1) > 2", "unknown_assert_form"),
        ("for i in range(3): pass", "statement_is_not_an_assert"),
        ("x = f(2)", "statement_is_not_an_assert"),
        ("assert f(**{'a': 1}) == 2", "unknown_assert_form"),
        ("assert f(", "tests"),
        ("", "tests"),
        (3, "tests"),
    ],
)
def test_unknown_forms_are_refused_with_a_reason_code(court, code, named):
    found = court.item(row(code))
    assert (type(found), found.reason) == (Skipped, "bad_native_row")
    assert named in found.detail


@pytest.mark.parametrize(
    "text",
    [
        "open('x')",
        "__import__('os')",
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
def test_what_would_need_running_or_fill_the_memory_is_refused(court, text):
    assert court.item(row(f"assert f(0) == {text}")).reason == "bad_native_row"


def test_asserts_beside_tests_of_another_kind_or_with_other_looks_at_the_result_are_refused(court):
    mixed = row("assert f(2) == 4")
    mixed["tests"] += [{"kind": "call", "args": [1], "expected": 1}]
    assert court.item(mixed).reason == "bad_native_row"
    found = court.item(row("assert f(2) == True", "assert not f(3)"))
    assert found.reason == "bad_native_row"
    names_all(found.detail, "tests", "==", "bool")


def test_a_row_without_a_function_name_has_that_of_its_asserts(court):
    assert court.item(row("assert g(2) == 4", fn_name=None)).fn_name == "g"
