"""Every documented row shape gives right verdicts; a row that cannot be understood is left out with a reason, never guessed."""

from __future__ import annotations

import contextlib
import copy
import json
from typing import Any

import pytest

from code_rl.data import ProblemStore
from code_rl.data.sources import Skipped
from code_rl.grading import Problem
from code_rl.policy.prompt_templates import build_prompt, get_prompt_template
from code_rl.util.errors import DataError
from tests.data.loading.raw_rows import (
    CALLS,
    METHOD,
    METHOD_STARTER,
    SAMPLES,
    SUM,
    TABLES,
    TOP,
    apps,
    lcbv5,
    prime_call,
    problem_in,
    taco,
)
from tests.refusals import refused

CODE_CONTESTS = next(sample for sample in SAMPLES if sample.name == "code_contests")


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_a_right_program_passes_and_a_wrong_one_fails(court, sample):
    verdicts = court.verdicts(court.problem(sample.row), sample.right, sample.wrong)
    assert verdicts == ["passed", "wrong_answer"]


@pytest.mark.parametrize("sample", SAMPLES[:-1], ids=lambda sample: sample.name)
def test_columns_that_are_none_or_of_no_meaning_change_nothing(court, sample):
    none = dict.fromkeys(("starter_code", "solutions", "metadata", "question", "id"))
    assert court.item({**none, "extra_column": 1, **sample.row}) == court.item(sample.row)


def test_call_rows_keep_types_that_text_would_lose(court):
    code = "def kinds(x):\n    return [type(x).__name__, x]"
    problem = court.problem(taco([[True], [1.5], [None], ["1"]], [["bool", True], ["float", 1.5], ["NoneType", None], ["str", "1"]], code, "kinds"))  # fmt: skip
    assert [test.args for test in problem.tests] == [(True,), (1.5,), (None,), ("1",)]


def test_the_second_solution_decides_where_the_first_is_broken(court):
    row = taco(CALLS, [[[2, 3]], [[5]]]) | {"solutions": json.dumps(["def top(xs, k): retrun", TOP])}
    assert court.problem(row).meta["reading"].startswith("argument list/result in a list")


UNDECIDED = ((CALLS, [[9], [8]]), ([{"x": 1}], [1]), ([7], [1]), (["7"], ["1"]))


@pytest.mark.parametrize(
    ("row", "reason", "named"),
    [
        ({"what": 1}, "unknown_shape", "what"),
        (taco(CALLS, [["no"], ["way"]]), "no_reading_fits", "argument list/result"),
        (taco([[{"1": 2}]], [1], "def size(d):\n    return len(d)", "size"), "wrapping_ambiguous", "integer keys"),
        *((taco(*tests) | {"solutions": None}, "wrapping_unresolved", "solution") for tests in UNDECIDED),
    ],
)
def test_a_set_without_any_problem_says_why_its_row_is_left_out(court, row, reason, named):
    with refused(f"1 {reason}", named, kind=DataError):
        court.load(row)


def test_a_documented_row_that_can_be_read_in_one_way_needs_no_solution(court):
    problem = court.problem(taco(CALLS, [9, 8]) | {"solutions": None})
    assert [test.expected for test in problem.tests] == [9, 8]


def test_a_documented_reading_that_passes_comes_before_any_other(court):
    anything = "def f(*args):\n    return args[0] if len(args) == 1 else list(args)"
    assert court.problem(taco([[["a"]]], [["a"]], anything, "f")).tests[0].args == (["a"],)


def test_a_call_without_starter_code_shows_the_function_to_write(court):
    shown = build_prompt(court.problem(taco(CALLS, [[[2, 3]], [[5]]])).view())
    assert "def top(xs, k):" in shown
    assert "stdin" not in shown
    method = court.problem(apps(CALLS, [[2, 3], [5]], METHOD))
    assert method.starter_code.startswith("class Solution:\n    def top(self, xs: List[int], k: int)")


def test_starter_code_may_annotate_with_names_that_it_does_not_import(court):
    row = lcbv5([{"input": "[1]\n1", "output": "[1]", "testtype": "functional"}], metadata={"func_name": "top"}, starter_code=METHOD_STARTER)  # fmt: skip
    assert court.verdicts(court.problem(row), METHOD) == ["passed"]


def test_fences_around_solutions_are_not_code(court):
    assert court.problem(prime_call([[2, 3]])).solutions[0].rstrip() == TOP


def test_limits_stated_for_compiled_languages_are_kept_beside_not_used(court):
    problem = court.item(apps(["1 2"], ["3"], SUM, None, time_limit="1.0 seconds", memory_limit="64 megabytes"))
    assert problem.time_limit_s == 6.0
    assert problem.meta["stated_time_limit"] == "1.0 seconds"


def test_rows_of_codecontests_have_their_wrong_solutions_and_the_rule_of_the_sets_own_tester(court):
    problem = court.item(CODE_CONTESTS.row)
    assert problem.meta["wrong_solutions"] == [CODE_CONTESTS.wrong]
    assert problem.solutions == (CODE_CONTESTS.right,)
    assert [test.public for test in problem.tests] == [True, False]
    rule = problem.compare
    assert (rule.rule, rule.abs_tol, rule.ignore_case, rule.exact_integers) == ("contest", 1e-5, True, False)


@pytest.mark.parametrize("row", [taco(["1"], ["2"], SUM, None), apps(["1"], ["2"], SUM, None), prime_call(3)])
def test_rows_of_apps_and_its_heirs_have_their_validators_tolerance(court, row):
    rule = problem_in(court.item(row)).compare
    assert (rule.rule, rule.abs_tol, rule.rel_tol, rule.exact_integers) == ("lcb", 1e-8, 1e-5, True)


def test_a_bool_is_right_where_the_set_expects_0_or_1(court):
    code = "def f(n):\n    return n % 2 == 0"
    assert court.verdicts(court.problem(taco([[2], [3]], [[1], [0]], code, "f")), code) == ["passed"]


@pytest.mark.parametrize("limit", [{"seconds": None, "nanos": 1}, {"seconds": "2"}, 2, None, {}])
def test_a_stated_limit_that_is_none_does_not_cost_the_row(court, limit):
    assert isinstance(court.item({**CODE_CONTESTS.row, "time_limit": limit}), Problem)


CODEFORCES = {
    "id": "1/A",
    "description": "Add two numbers.",
    "input_format": "Two numbers.",
    "output_format": "Their sum.",
    "input_mode": "stdio",
    "interaction_format": None,
    "generated_checker": None,
    "official_tests_complete": True,
    "examples": [{"input": "1 2", "output": "3"}],
    "official_tests": [{"input": "1 2", "output": "3"}, {"input": "4 5", "output": "9"}],
    "rating": 800,
    "time_limit": 2.0,
}


def test_official_tests_of_codeforces_are_public_where_the_statement_shows_them(court):
    problem = court.item(CODEFORCES)
    assert [(test.input, test.expected, test.public) for test in problem.tests] == [
        ("1 2", "3", True),
        ("4 5", "9", False),
    ]
    assert (problem.id, problem.meta) == ("1/A", {"rating": 800, "stated_time_limit": "2.0 seconds"})


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"input_mode": "file"}, "file_io"),
        ({"interaction_format": "Ask."}, "interactive"),
        ({"official_tests_complete": False}, "truncated_tests"),
        ({"generated_checker": "print(1)"}, "custom_checker"),
        ({"official_tests": []}, "no_tests"),
    ],
)
def test_rows_of_codeforces_that_cannot_be_judged_are_named(court, changed, reason):
    assert court.item({**CODEFORCES, **changed}).reason == reason


ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    1e999,
    "",
    " ",
    "[",
    "{}",
    "x" * 99,
    [],
    {},
    [None],
    [[None]],
    {"a": None},
    {"input": [1]},
)


def changed(value):
    """Each copy of a row, or of a value in it, that has one part replaced or left out."""
    yield from ODD
    with contextlib.suppress(TypeError, ValueError):
        yield from map(json.dumps, changed(json.loads(value)))
    for key in range(len(value)) if isinstance(value, list) else list(value) if isinstance(value, dict) else ():
        rest = copy.copy(value)
        del rest[key]
        yield rest
        for part in changed(value[key]):
            new = copy.copy(value)
            new[key] = part
            yield new


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_nothing_that_a_row_holds_raises_anything_but_a_reason(court, sample, tmp_path):
    rows = [row for row in changed(sample.row) if isinstance(row, dict)]
    items = list(court.dataset(*rows))
    assert len(items) == len(rows)
    assert {type(item) for item in items} > {Skipped}
    store = ProblemStore(tmp_path, "key")
    for item in items:
        if isinstance(item, Problem):
            store.add(item)
    assert all(problem.tests for problem in store)


STDIN = {"problem": "Add.", "tests": json.dumps([{"input": "1", "output": "1"}])}
VERL = next(sample.row for sample in SAMPLES if sample.name == "verl stdin")


def verl(truth):
    return VERL | {"reward_model": {"style": "rule", "ground_truth": truth}}


def functional(source):
    return verl(json.dumps({"functional": source}))


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"text": "?"}, "unknown_shape"),
        ({**STDIN, "tests": "{"}, "not_json"),
        ({**STDIN, "tests": "[]"}, "bad_tests"),
        ({**STDIN, "problem": "  "}, "blank_statement"),
        ({**STDIN, "problem": 3}, "wrong_field_type"),
        ({**STDIN, "solutions": [3]}, "wrong_field_type"),
        ({**STDIN, "starter_code": 3}, "wrong_field_type"),
        ({**prime_call([1]), "tests": json.dumps([{"type": "function_call", "fn_name": "a b", "input": [], "output": 1}])}, "bad_fn_name"),
        ({"question": "?", "input_output": ""}, "not_json"),
        ({"question": "?", "input_output": "{}"}, "bad_tests"),
        ({"description": "?", "public_tests": {"input": ["1"], "output": []}, "private_tests": {}}, "bad_tests"),
        ({"description": "?", "public_tests": {}, "private_tests": {}}, "no_tests"),
        ({"description": "?", "public_tests": {}, "private_tests": {}, "input_file": "in.txt"}, "file_io"),
        ({"id": "set/0", "statement": "?", "tests": []}, "bad_native_row"),
        (VERL | {"prompt": [{"role": "system", "content": "Add two numbers."}]}, "blank_statement"),
        *((verl(truth), "not_tests") for truth in ("42", "\\boxed{4}", '"text"', '{"pytest": "def test_it(): ..."}', None)),
        (functional("assert f(1) == 2"), "not_tests"),
        (functional("def check(:"), "not_python"),
        (functional("_inputs = open('x')\n" + TABLES), "value_is_not_a_literal"),
        (functional(TABLES.replace("[5]]", "[5], [6]]")), "bad_tests"),
    ],
)  # fmt: skip
def test_a_malformed_row_is_left_out_by_name(court, row, reason):
    found = court.item(row)
    assert (type(found), found.row_id, found.reason) == (Skipped, "set/0", reason)


IDS = {"id", "name", "task_id", "question_id", "problem_id", "hash_id", "labels"}


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_a_row_that_is_left_out_has_the_id_that_it_would_have_had(court, sample):
    row = {**sample.row, **({"question_id": 7} if "input_output" in sample.row else {})}
    found = [court.item({**row, column: 3}) for column in row.keys() - IDS]
    lost = {item.row_id for item in found if isinstance(item, Skipped)}
    assert lost == {problem_in(court.item(row)).id}


@pytest.mark.parametrize(
    ("row", "name"),
    [
        (apps(["1 2"], ["3"], SUM, None, problem_id=7), "set/7"),
        (taco(["1 2"], ["3"], SUM, None), "set/0"),
        ({"question": "?", "input_output": "", "question_id": 7}, "set/7"),
        ({"problem": "?", "tests": "", "id": "a"}, "a"),
        ({"task_id": 7, "code": 3, "test_list": []}, "Mbpp/7"),
        ({"question": "?", "tests": ["assert f(g(1))"], "id": "TACO_1"}, "TACO_1"),
        ({"task_id": "assert/0", "code": 3, "test_list": []}, "assert/0"),
        ({"description": "?", "public_tests": {}, "private_tests": {}, "name": "1_A"}, "1_A"),
        ({"prompt": 3, "reward_model": {}, "id": 7}, "set/0"),
    ],
)
def test_ids_come_from_the_set_and_the_row_also_where_it_is_left_out(court, row, name):
    found = court.item(row)
    assert (found.row_id if isinstance(found, Skipped) else found.id) == name


@pytest.mark.parametrize("name", ["verl stdin", "verl functional, LeetCode's check"])
def test_code_r1_s_wording_gives_the_conversation_that_its_rows_publish(court, name):
    row = next(sample.row for sample in SAMPLES if sample.name == name)
    assert get_prompt_template("code-r1")(court.item(row).view()) == row["prompt"]


def test_the_user_s_last_words_are_the_statement_of_a_verl_row(court):
    chat = [{"role": "system", "content": "Think."}, {"role": "user", "content": "Print the double."}]
    problem = court.item(VERL | {"prompt": chat, "data_source": "taco"})
    assert (problem.id, problem.statement, problem.source) == ("set/0", "Print the double.", "taco")
    calls = [{"type": "function_call", "fn_name": "f", "input": [1], "output": [2]}]
    assert not isinstance(court.item(verl(json.dumps(calls))), Problem | Skipped)
