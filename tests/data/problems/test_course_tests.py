"""Test cases in public shapes: each has its meaning, and anything else is refused."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from code_rl.grading import CallTest, Problem, StdinTest
from code_rl.util.errors import DataError
from tests.refusals import refused
from tinker_utils.data import build_question
from tinker_utils.lcb import normalize_tests

LCB_STDIN = [{"input": "1\n", "output": "2\n", "testtype": "stdin"}]
LCB_CALL = [{"input": '[1, 2]\n"x"', "output": "[3]", "testtype": "functional", "metadata": {"func_name": "f"}}]
PRIME_STDIN = [{"type": "stdin_stdout", "fn_name": None, "input": "1\n", "output": "2\n"}]
PRIME_CALL = [{"type": "function_call", "fn_name": "f", "input": [[1, 2], "x"], "output": [[3]]}]

SHAPES = {
    "lcb stdin": (LCB_STDIN, None, (StdinTest("1\n", "2\n"),), None),
    "lcb call": (LCB_CALL, None, (CallTest(([1, 2], "x"), [3]),), "f"),
    "lcb call, name beside": (
        [{**LCB_CALL[0], "metadata": None}],
        {"func_name": "f"},
        (CallTest(([1, 2], "x"), [3]),),
        "f",
    ),
    "lcb call, metadata as text": (
        [{**LCB_CALL[0], "metadata": '{"func_name": "f"}'}],
        None,
        (CallTest(([1, 2], "x"), [3]),),
        "f",
    ),
    "lcb call without arguments": ([{**LCB_CALL[0], "input": ""}], None, (CallTest((), [3]),), "f"),
    "prime stdin": (PRIME_STDIN, None, (StdinTest("1\n", "2\n"),), None),
    "prime call": (PRIME_CALL, None, (CallTest(([1, 2], "x"), [3]),), "f"),
    "prime call, bare output": ([{**PRIME_CALL[0], "output": 3}], None, (CallTest(([1, 2], "x"), 3),), "f"),
    "prime call, text output": ([{**PRIME_CALL[0], "output": "3"}], None, (CallTest(([1, 2], "x"), "3"),), "f"),
    "codeforces": ([{"input": "1", "output": "2"}], None, (StdinTest("1", "2"),), None),
    "one object": ({"input": "1", "output": "2"}, None, (StdinTest("1", "2"),), None),
    "taco stdin": (
        {"inputs": ["1", "2"], "outputs": ["3", "4"]},
        None,
        (StdinTest("1", "3"), StdinTest("2", "4")),
        None,
    ),
    "taco stdin lines": ({"inputs": [["1", "2"]], "outputs": [["3"]]}, None, (StdinTest("1\n2", "3"),), None),
    "taco call": (
        {"inputs": [[[9]]], "outputs": [[[False, True]]], "fn_name": "f"},
        None,
        (CallTest(([9],), [False, True]),),
        "f",
    ),
    "taco call, bare output": ({"inputs": [[9]], "outputs": [7], "fn_name": "f"}, None, (CallTest((9,), 7),), "f"),
    "taco call, text": (
        {"inputs": ["9\n[1]"], "outputs": ["[7]"], "fn_name": "f"},
        None,
        (CallTest((9, [1]), [7]),),
        "f",
    ),
    "taco with a name that is null": (
        {"inputs": ["1"], "outputs": ["3"], "fn_name": None},
        None,
        (StdinTest("1", "3"),),
        None,
    ),
}


@pytest.mark.parametrize(("raw", "metadata", "tests", "fn_name"), SHAPES.values(), ids=SHAPES.keys())
def test_shapes(raw, metadata, tests, fn_name):
    rows = normalize_tests(Problem("p", "", tests, fn_name=fn_name))
    assert normalize_tests(raw, metadata) == rows
    assert normalize_tests(json.dumps(raw), json.dumps(metadata)) == rows
    assert normalize_tests(rows) == rows


def test_rows_are_those_of_livecodebench():
    assert normalize_tests(LCB_STDIN) == [{**LCB_STDIN[0], "metadata": {"func_name": None}}]
    assert normalize_tests(LCB_CALL) == [{**LCB_CALL[0], "input": '[1,2]\n"x"'}]


REFUSED = [
    3,
    "not json",
    ["x"],
    [{"input": "1"}],
    [{"input": "1", "output": ["2", 3]}],
    [{"input": "1", "output": "2", "testtype": "interactive"}],
    [{"input": "1", "output": "2", "testtype": "functional"}],
    [{"input": "1", "output": "2", "testtype": "functional", "metadata": {"func_name": "not a name"}}],
    [{"input": "1", "output": "2", "testtype": "functional", "metadata": [1]}],
    [{**LCB_CALL[0], "input": "not json"}],
    [{**PRIME_CALL[0], "input": [{"__type__": "module", "items": []}]}],
    [*LCB_STDIN, *LCB_CALL],
    [*LCB_CALL, {**LCB_CALL[0], "metadata": {"func_name": "g"}}],
    {"inputs": ["1"], "outputs": []},
    {"inputs": "1", "outputs": "2"},
    {"inputs": [], "outputs": []},
]


@pytest.mark.parametrize("raw", REFUSED, ids=range(len(REFUSED)))
def test_other_shapes_are_data_errors(raw):
    with refused("tests", kind=DataError):
        normalize_tests(raw)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(json_values)
def test_any_json_is_read_or_refused(raw):
    with contextlib.suppress(DataError):
        assert bool(normalize_tests(raw)) == (bool(raw) and raw != "[]")


@given(st.lists(json_values, max_size=3), json_values)
def test_calls_keep_their_values_through_normalisation(args, expected):
    rows = [{"type": "function_call", "fn_name": "f", "input": args, "output": [expected]}]
    assert normalize_tests(rows) == normalize_tests(Problem("p", "", (CallTest(tuple(args), expected),), fn_name="f"))


@pytest.mark.parametrize("field", ["question", "prompt", "problem"])
def test_a_question_is_built_from_any_statement_field(field):
    text = build_question({field: "Add two numbers.", "starter_code": "  "})
    assert "Add two numbers." in text
    assert "# YOUR CODE HERE" in text
    with_starter = build_question({field: "Add.", "starter_code": "def add(a, b):"})
    assert "def add(a, b):" in with_starter
    assert "# YOUR CODE HERE" not in with_starter


@pytest.mark.parametrize("row", [{}, {"question": None}, {"prompt": " "}, {"problem": 3}])
def test_a_row_without_a_statement_has_no_question(row):
    assert build_question(row) is None


def test_the_first_statement_that_is_not_blank_counts():
    assert "B" in build_question({"question": " ", "prompt": "B", "problem": "C"})
