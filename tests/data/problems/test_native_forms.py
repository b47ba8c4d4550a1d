"""The newer forms of the native format: they survive a file, old rows are as they were, bad ones are named."""

from __future__ import annotations

import json

import pytest

from code_rl.grading.native import format_problem, parse_problem, problem_from_json
from code_rl.grading.problem import CallTest, Compare, Problem, SequenceTest, StdinTest, check_compare
from code_rl.util.errors import DataError

SEQUENCE = {"kind": "sequence", "class": "C", "calls": [["C", [2]], ["get", [1]]], "expected": [None, 1]}
CALL = {"kind": "call", "args": [1], "raises": "ValueError", "fn_name": "g"}
PROBLEMS = [
    Problem("a", "", (SequenceTest("C", (("C", ({1},)), ("get", ((1, 2),))), (None, {1: 2}), True, 0.5),)),
    Problem("b", "", (CallTest((1,), raises="ValueError", fn_name="g"), CallTest((1,), 0.5, rel_tol=0.1)), None, "f"),
    Problem("c", "", (StdinTest("1", "2", abs_tol=0.0),), compare=Compare("contest", 0.1, 0.2, True, True)),
    Problem("d", "", (StdinTest("1", "2"),), compare=Compare("checker", checker="print()", checker_time_limit_s=2.5)),
    Problem("f", "", (CallTest((1,), fn_name="g"), SequenceTest("C", (("C", ()),), (None,)))),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.id)
def test_new_forms_survive_a_line(problem):
    line = format_problem(problem)
    assert parse_problem(line.encode(), "x") == problem
    assert format_problem(parse_problem(line.encode(), "x")) == line


def test_old_rows_are_written_as_before():
    row = json.loads(format_problem(Problem("a", "", (CallTest((1,), 2),), None, "f")))
    assert row["tests"] == [{"kind": "call", "args": [1], "kwargs": {}, "expected": 2, "public": False}]


BAD = [
    ({**SEQUENCE, "calls": []}, None, "begin with the class"),
    ({**SEQUENCE, "calls": [["D", []], ["get", []]]}, None, "begin with the class"),
    ({**SEQUENCE, "expected": [None]}, None, "one value for each"),
    ({**SEQUENCE, "expected": [1, 1]}, None, "null for the first"),
    ({**SEQUENCE, "calls": [["C", [2]], ["get", 1]]}, None, "pair"),
    ({**SEQUENCE, "calls": [["C", [2]], ["a b", []]]}, None, "method"),
    ({**SEQUENCE, "class": "no name"}, None, "name in Python"),
    ({**SEQUENCE, "args": []}, None, "unknown"),
    ({**CALL, "expected": 1}, None, "either"),
    ({**CALL, "raises": "SystemExit"}, None, "SystemExit"),
    ({**CALL, "raises": "a.b"}, None, "name in Python"),
    ({**CALL, "fn_name": None}, None, "name the function"),
    ({**CALL, "abs_tol": -1}, None, "abs_tol"),
    ({**CALL, "abs_tol": "x"}, None, "abs_tol"),
    ({"kind": "stdin", "input": "", "expected": ""}, "f", "all scripts or all calls"),
]


BAD_VALUES = [
    {"__type__": ["x"], "items": []},
    {"__type__": {}, "items": []},
    {"__type__": "bytes", "items": [1 << 70]},
]


@pytest.mark.parametrize("value", BAD_VALUES, ids=str)
def test_values_that_cannot_be_made_are_named(value):
    with pytest.raises(DataError, match=r"tests\[0\]: a value cannot be read"):
        problem_from_json(
            {"id": "a", "statement": "", "fn_name": "f", "tests": [{"kind": "call", "args": [], "expected": value}]}
        )


@pytest.mark.parametrize(("test", "fn_name", "named"), BAD)
def test_bad_tests_are_named(test, fn_name, named):
    with pytest.raises(DataError, match=named):
        problem_from_json({"id": "a", "statement": "", "tests": [test], "fn_name": fn_name})


@pytest.mark.parametrize(
    ("compare", "named"),
    [
        ({"rule": "checker", "checker": "def check(input:\n"}, "does not compile"),
        (
            {"rule": "checker", "checker": "def chek(a, b, c):\n    return True\n"},
            'checker="def chek.* must be a source that defines a function check',
        ),
        ({"rule": "checker", "checker": "floats"}, "must be a source that defines a function check"),
        (
            {"rule": "checker", "checker": "def check(o, e): return o == e"},
            r"defines check\(o, e\); it is called with three arguments: check\(input, output, expected\)",
        ),
        ({"rule": "checker", "checker": "def check(a, b, c, d): return True"}, r"defines check\(a, b, c, d\)"),
        ({"rule": "checker", "checker": "def check(a, b, c, *, d): return True"}, r"defines check\(a, b, c, \*, d\)"),
        ({"rule": "checker", "checker": "checker.py"}, 'checker="checker.py" must be a source'),
        ({"rule": "cheker", "checker": "print()"}, "rule='cheker' is unknown"),
        ({"rule": "checker", "checker": "print()", "checker_memory_limit_mb": 0}, "checker_memory_limit_mb"),
        ({"rule": "checker", "checker": "print()", "checker_memory_limit_mb": 10**30}, "checker_memory_limit_mb"),
        ({"rule": "checker", "checker": "print()", "checker_time_limit_s": 1e300}, "checker_time_limit_s"),
        ({"rule": "lcb", "integers_as_floats": True}, "integers_as_floats"),
        ({"rule": "contest", "ignore_case": 1}, "ignore_case"),
    ],
)
def test_bad_rules_are_named(compare, named):
    row = {"id": "a", "statement": "", "tests": [{"kind": "stdin", "input": "", "expected": ""}], "compare": compare}
    with pytest.raises(DataError, match=named):
        problem_from_json(row)


def test_a_checker_that_is_a_script_may_define_what_it_likes():
    script = "import json, sys\ndef checks(row):\n    print('ok')\nchecks(json.load(sys.stdin))"
    test = {"kind": "stdin", "input": "", "expected": ""}
    row = {"id": "a", "statement": "", "tests": [test], "compare": {"rule": "checker", "checker": script}}
    assert problem_from_json(row).compare.checker == script


def test_a_tolerance_goes_with_no_exact_rule_and_scripts_with_no_calls():
    script = {"kind": "stdin", "input": "", "expected": ""}
    row = {"id": "a", "statement": "", "compare": "lcb-official", "tests": [{**script, "abs_tol": 0.1}]}
    with pytest.raises(DataError, match="tolerance"):
        problem_from_json(row)
    with pytest.raises(DataError, match="all scripts or all calls"):
        problem_from_json({**row, "compare": "lcb", "tests": [script, CALL]})


@pytest.mark.parametrize(
    "source",
    [
        "def check(*all): return True",
        "def check(a, b, c, d=1, *, e=2): return True",
        "def check(a, b, c=0, /, **more): return True",
        "def check(o, e): return o == e\ndef check(i, o, e): return o == e",
        "import functools\n@functools.partial(functools.partial, 1)\ndef check(a, b, c, d): return True",
    ],
)
def test_a_checker_that_three_arguments_can_call_is_taken(source):
    check_compare(Compare("checker", checker=source), "p")
