"""Returned values: equality under each rule, and hostile encodings."""

from __future__ import annotations

import json
import math
import sys
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from code_rl.grading import CallTest, Compare
from code_rl.grading.comparison import compare_returned, dumps

MANY = 300_000


def right(rule: str, got, expected, **tolerance) -> bool:
    return raw_right(rule, dumps(got).encode(), expected, **tolerance)


def raw_right(rule: str, data: bytes, expected, **tolerance) -> bool:
    return compare_returned(data, CallTest((), expected), Compare(rule, **tolerance)) is None


BIG = 10**6000 + 7
EQUAL = [
    (True, 1),
    (True, 1.0),
    ([True], [1]),
    ({True}, {1}),
    ((1, 2), [1, 2]),
    ([1, (2, [3])], (1, [2, (3,)])),
    (1.0, 1),
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
    (1, True),
    (None, None),
    ("\ud800\x00", "\ud800\x00"),
    ({}, {}),
    ({"__type__": "tuple", "items": [1]}, {"__type__": "tuple", "items": [1]}),
]
UNEQUAL = [
    (-1000001, -1000000),
    (2**53 + 1, float(2**53)),
    (10**400, float("inf")),
    ([1, 9, 9], [1, 2, 3]),
    ([1], [1, 2]),
    ([], None),
    ("1", 1),
    ([1], 1),
    ([1], {1}),
    ("ab", ["a", "b"]),
    (b"ab", "ab"),
    ({"1": 2}, {1: 2}),
    ({"a": 1}, {"a": 1, "b": 2}),
    (float("nan"), 1.0),
    (1 + 2j, 1 + 3j),
    (0.333333, 1 / 3),
    (BIG, BIG + 1),
    (BIG, float("inf")),
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


NEAR = {"abs_tol": 1e-6}
EXACT = {"abs_tol": 1e-3, "rel_tol": 1.0, "exact_integers": True}
DECIDED = [
    ("lcb-official", True, 1, {}, True),
    ("lcb-official", (1, 2), [1, 2], {}, True),
    ("lcb-official", [(1, 2)], [[1, 2]], {}, False),
    ("lcb-official", (1,), (1,), {}, True),
    ("lcb-official", math.nan, math.nan, {}, False),
    ("python", [0.1 + 0.2], [0.3], {"abs_tol": 1e-9}, True),
    ("python", 3.0000001, 3, {"abs_tol": 1e-3}, True),
    ("python", 3.0000001, 3, EXACT, False),
    ("python", 3, 3.0000001, EXACT, True),
    ("lcb", [0.333333], [1 / 3], NEAR, True),
    ("lcb", [0.3333], [1 / 3], NEAR, False),
    ("lcb", 3, 3.0000001, NEAR, True),
    ("lcb", 1000001, 1000000, NEAR, False),
    ("lcb", math.nan, math.nan, NEAR, True),
    ("lcb", math.inf, 1e308, NEAR, False),
    ("lcb", 10**400, 1.5, NEAR, False),
    ("lcb", True, 1.0, NEAR, True),
    ("lcb", {"a": (0.1 + 0.2,)}, {"a": [0.3]}, NEAR, True),
    ("lcb", 2**53 + 1, 2.0**53, NEAR, False),
    ("lcb", 3.00001, 3.0, {"abs_tol": 1e-5}, True),
    ("lcb", 3.0000100001, 3.0, {"abs_tol": 1e-5}, False),
    ("lcb", 3.00002, 3, {"abs_tol": 1e-5}, False),
    ("contest", "a  B", "a b", {"ignore_case": True}, True),
    ("contest", 0.5000001, 0.5, NEAR, True),
    ("contest", 3.0, 3, {}, True),
    ("contest", 3.000001, 3, {"abs_tol": 1e-5}, True),
    ("contest", 3.000001, 4, {"abs_tol": 1e-5}, False),
    ("contest", 4, 3, EXACT, False),
    ("contest", 1.2345678901234567e19, 12345678901234567890, {"abs_tol": 1e-5}, False),
]


@pytest.mark.parametrize(("rule", "got", "expected", "options", "verdict"), DECIDED)
def test_a_rule_decides_with_its_options(rule, got, expected, options, verdict):
    assert right(rule, got, expected, **options) is verdict


@given(st.integers(), st.integers())
def test_integers_may_be_left_out_of_a_tolerance(got, expected):
    assert right("lcb", got, expected, abs_tol=1e9, rel_tol=1.0, exact_integers=True) == (got == expected)


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
    "bytes without items": b'{"__type__":"bytes"}',
    "bytearray without items": b'{"__type__":"bytearray"}',
    "items not pairs": b'{"__type__":"dict","items":[1,[1],[1,2,3]]}',
    "unhashable members": b'{"__type__":"set","items":[{"a":[]}]}',
    "trailing": b"1 2",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_encodings_are_wrong_and_never_raise(data):
    for expected in (1, [1], {"a": 1}, {1, 2}, (1,), {frozenset({1})}, {1: 2}, list(range(1000)), b"ab"):
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
