"""Returned values: what counts as equal under each rule, and hostile encodings."""

from __future__ import annotations

import json
import math
import sys
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from code_rl.grading.compare import compare_returned
from code_rl.grading.problem import CallTest, Compare
from code_rl.grading.values import dumps

MANY = 2_000_000


def right(rule: str, got, expected, **tolerance) -> bool:
    return raw_right(rule, dumps(got).encode(), expected, **tolerance)


def raw_right(rule: str, data: bytes, expected, **tolerance) -> bool:
    return compare_returned(data, CallTest((), expected), Compare(rule, **tolerance)) is None


BIG = 10**6000 + 7
EQUAL = [
    ((1, 2), [1, 2]),
    ([1, (2, [3])], (1, [2, (3,)])),
    (1.0, 1),
    (1, 1.0),
    (-0.0, 0.0),
    (float("nan"), float("nan")),
    ([float("inf")], [float("inf")]),
    ({1, 2}, {2, 1}),
    (frozenset({1}), {1}),
    ({1.0, (2, 3)}, {1, (2, 3)}),
    ({"a": 1, "b": [2]}, {"b": (2,), "a": 1.0}),
    ({1: "x", (2, 3): "y"}, {(2, 3): "y", 1: "x"}),
    ({1: "x"}, {1.0: "x"}),
    (b"ab", bytearray(b"ab")),
    (1 + 2j, 1 + 2j),
    (BIG, BIG),
    ([-BIG], (-BIG,)),
    ({BIG}, {BIG}),
    (1, True),
    (0, False),
    (None, None),
    ("", ""),
    ("\ud800\x00", "\ud800\x00"),
    ({}, {}),
    ({"__type__": "tuple", "items": [1]}, {"__type__": "tuple", "items": [1]}),
]
UNEQUAL = [
    (True, 1),
    (False, 0),
    (True, 1.0),
    ([True], [1]),
    ({"a": False}, {"a": 0}),
    (-1000001, -1000000),
    (2**53 + 1, float(2**53)),
    (10**400, float("inf")),
    ([1, 9, 9], [1, 2, 3]),
    ([1], [1, 2]),
    ([1, 2], [1]),
    ([], None),
    ("1", 1),
    (1, "1"),
    ([1], 1),
    (1, [1]),
    ([1], {1}),
    ("ab", ["a", "b"]),
    (b"ab", "ab"),
    ({True}, {1}),
    ({"1": 2}, {1: 2}),
    ({"a": 1}, {"a": 1, "b": 2}),
    ({"a": 1, "b": 2}, {"a": 1}),
    (float("nan"), 1.0),
    (1 + 2j, 1 + 3j),
    (0.333333, 1 / 3),
    (BIG, BIG + 1),
    (BIG, float("inf")),
    (None, 0),
    ("a ", "a"),
    ({}, []),
    ((1,), {"__type__": "tuple", "items": [1]}),
]


@pytest.mark.parametrize(("got", "expected"), EQUAL, ids=range(len(EQUAL)))
def test_lcb_accepts(got, expected):
    assert right("lcb", got, expected)


@pytest.mark.parametrize(("got", "expected"), UNEQUAL, ids=range(len(UNEQUAL)))
def test_lcb_rejects(got, expected):
    assert not right("lcb", got, expected)


@pytest.mark.parametrize(
    ("got", "expected", "verdict"),
    [
        (True, 1, True),
        ((1, 2), [1, 2], True),
        ([(1, 2)], [[1, 2]], False),
        ([1], (1,), False),
        (1.0, 1, True),
        ((1,), (1,), True),
    ],
)
def test_official_rule_decides_as_livecodebench(got, expected, verdict):
    assert right("lcb-official", got, expected) is verdict


@pytest.mark.parametrize(
    ("got", "expected", "verdict"),
    [
        (True, 1, True),
        (1, True, True),
        ((1,), [1], False),
        ([(1,)], [[1]], False),
        ({1}, frozenset({1}), True),
        (1, 1.0, True),
        (0.1 + 0.2, 0.3, False),
        ("1", 1, False),
    ],
)
def test_python_rule_decides_as_an_assert(got, expected, verdict):
    assert right("python", got, expected) is verdict
    assert (got == expected) is verdict


def test_python_rule_takes_tolerance_for_floats_only():
    assert right("python", [0.1 + 0.2], [0.3], abs_tol=1e-9)
    assert not right("python", 3.0000001, 3, abs_tol=1e-3)


@pytest.mark.parametrize(
    ("got", "expected", "verdict"),
    [
        ([0.333333], [1 / 3], True),
        ([0.3333], [1 / 3], False),
        (3, 3.0000001, True),
        (3.0000001, 3, False),
        (1000001, 1000000, False),
        (float("nan"), float("nan"), True),
        (float("inf"), 1e308, False),
        (10**400, 1.5, False),
        (True, 1.0, False),
        ({"a": (0.1 + 0.2,)}, {"a": [0.3]}, True),
    ],
)
def test_float_rule(got, expected, verdict):
    assert right("lcb", got, expected, abs_tol=1e-6) is verdict


@given(st.integers(), st.integers())
def test_integers_are_never_compared_with_tolerance(got, expected):
    assert right("lcb", got, expected, abs_tol=1e9, rel_tol=1.0) == (got == expected)


keys = st.integers() | st.text(max_size=4) | st.tuples(st.integers(), st.text(max_size=3))
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=6)
    | st.sets(keys, max_size=4)
    | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=12,
)


@given(values)
def test_every_value_equals_itself_under_every_rule(value):
    for rule in ("lcb", "python"):
        assert right(rule, value, value)
    assert right("lcb", value, value, abs_tol=1e-9)


@given(values.filter(lambda value: "nan" not in repr(value)))
def test_every_value_without_nan_equals_itself_as_livecodebench_decides(value):
    assert right("lcb-official", value, value)


def test_nan_equals_itself_but_not_as_livecodebench_decides():
    assert right("lcb", math.nan, math.nan)
    assert not right("lcb-official", math.nan, math.nan)


json_values = st.recursive(
    st.none() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
)


@given(json_values, json_values)
def test_lcb_is_python_equality_on_plain_json_without_booleans(got, expected):
    assert right("lcb", got, expected) == (got == expected)


HOSTILE = {
    "not json": b"{",
    "empty": b"",
    "not utf-8": b'"\xff"',
    "deep list": b"[" * 3000 + b"]" * 3000,
    "deep dict": b'{"a":' * 3000 + b"1" + b"}" * 3000,
    "nested sets": b'{"__type__":"frozenset","items":[' * 150 + b"1" + b"]}" * 150,
    "forged tag": b'{"__type__":"module","items":[1]}',
    "tag of another type": b'{"__type__":[1],"items":{"a":1}}',
    "items missing": b'{"__type__":"dict"}',
    "items not pairs": b'{"__type__":"dict","items":[1,[1],[1,2,3]]}',
    "unhashable members": b'{"__type__":"set","items":[{"a":[]}]}',
    "trailing": b"1 2",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("expected", [1, [1], {"a": 1}, {1, 2}, (1,), {frozenset({1})}, {1: 2}, list(range(1000))])
def test_hostile_encodings_are_wrong_and_never_raise(data, expected):
    for rule in ("lcb", "python", "lcb-official"):
        assert not raw_right(rule, data, expected)


@given(
    st.recursive(
        json_values, lambda inner: st.fixed_dictionaries({"__type__": st.text(max_size=4) | inner, "items": inner})
    ),
    values,
)
def test_forged_json_never_raises(forged, expected):
    raw_right("lcb", json.dumps(forged).encode(), expected)


def test_a_megabyte_of_digits_is_never_built_into_an_integer():
    digits = b"9" * (4 << 20)
    assert not raw_right("lcb", digits, 9)
    assert not raw_right("lcb", digits, list(range(20_000)))
    assert not raw_right("lcb", b"[" + digits + b"]", ["9" * 100_000])
    assert not raw_right("lcb", digits, [1.5] * 20_000, abs_tol=1.0)


@pytest.mark.parametrize(
    "data", [b"[" + b"[]," * MANY + b"1]", b"[" + b"{}," * MANY + b"1]", b"[" + b"1," * MANY + b"1]", b"[" * MANY]
)
def test_forged_values_of_many_parts_cost_no_memory(data):
    expected = ["x" * 100_000]
    tracemalloc.start()
    try:
        assert not raw_right("lcb", data, expected)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


COLLECTIONS = [
    ({"__type__": "dict_keys", "items": [2, 1]}, {1, 2}, True),
    ({"__type__": "dict_values", "items": [2, 1]}, {1, 2}, False),
    ({"__type__": "raised", "items": ["ValueError"]}, "ValueError", False),
    ({"__type__": "json", "items": ["5"]}, 5, False),
    ({"__type__": "ndarray", "items": [[1], [2]]}, [[1], [2]], True),
]


@pytest.mark.parametrize(("got", "expected", "verdict"), COLLECTIONS)
def test_encoded_collections_are_compared_by_value(got, expected, verdict):
    assert raw_right("lcb", json.dumps(got).encode(), expected) is verdict


LONG = 12345678901234567890
CONTEST = {"abs_tol": 1e-5, "integers_as_floats": True}


def test_rounding_makes_no_returned_numbers_near():
    assert not right("contest", 1.2345678901234567e19, LONG, **CONTEST)
    assert not right("lcb", 2**53 + 1, 2.0**53, abs_tol=1e-6)
    assert right("lcb", 3.00001, 3.0, abs_tol=1e-5)
    assert not right("lcb", 3.0000100001, 3.0, abs_tol=1e-5)
    assert not right("lcb", 10**400, 1.5, rel_tol=1e-6)


def test_a_float_meets_an_expected_integer_only_where_integers_are_read_as_floats():
    assert right("contest", 3.000001, 3, **CONTEST)
    assert right("lcb", 3.000001, 3.0, abs_tol=1e-5)
    assert not right("contest", 3.000001, 3, abs_tol=1e-5)
    assert not right("lcb", 3.000001, 3, abs_tol=1e-5)
    assert not right("contest", 3.000001, 4, **CONTEST)


def test_bytes_without_items_are_wrong():
    for name in ("bytes", "bytearray"):
        assert not raw_right("lcb", b'{"__type__":"%s"}' % name.encode(), b"ab")


def test_contest_rule_for_returned_values():
    assert right("contest", "a  B", "a b", ignore_case=True)
    assert right("contest", 0.5000001, 0.5, abs_tol=1e-6)
    assert not right("contest", 3.0, 3)
    assert right("contest", 2.9999999, 3, abs_tol=1e-6, integers_as_floats=True)
    assert not right("contest", 4, 3, rel_tol=1.0, integers_as_floats=True)


def test_the_interpreters_digit_limit_is_not_relied_on():
    limit = sys.get_int_max_str_digits()
    data, expected = dumps([BIG]).encode(), [BIG]
    sys.set_int_max_str_digits(4300)
    try:
        assert raw_right("lcb", data, expected)
    finally:
        sys.set_int_max_str_digits(limit)


def test_colliding_hashes_do_not_slow_the_host():
    modulus = sys.hash_info.modulus
    numbers = [k * modulus for k in range(50_000)]
    data = json.dumps({"__type__": "set", "items": numbers}).encode()
    assert not raw_right("lcb", data, list(range(50_000)))
    assert not raw_right("lcb", data, set(range(50_000)))
