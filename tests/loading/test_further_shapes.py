"""AceCoder, EvoEval, BigCodeBench and verl: rows as published become problems that right programs pass and wrong ones do not, or say why not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from code_rl.problems.problem import CallTest, Problem, StdinTest
from code_rl.problems.sources.records import Ambiguous, Draft, Origin, Skipped, item_id
from code_rl.problems.sources.shapes import read_row, shape_of
from tests.kinds import each_is

ACECODE: dict[str, Any] = {
    "id": "oss_7",
    "source": "oss",
    "question": "Write `total(values)`: the sum.",
    "test_cases": ["assert total([1, 2]) == 3", "assert total([]) == 0", "assert total(values=[2.5]) == 2.5"],
    "inferences": [
        {"completion": "```python\ndef total(values):\n    return 0\n```", "model_name": "m", "pass_rate": 0.3},
        {
            "completion": "```python\ndef total(values):\n    return sum(values)\n```",
            "model_name": "m",
            "pass_rate": 1.0,
        },
    ],
}
EVOEVAL: dict[str, Any] = {
    "task_id": "EvoEval/7",
    "prompt": 'def total(values, start):\n    """ The sum from start on. """\n',
    "entry_point": "total",
    "canonical_solution": "    return sum(values, start)\n",
    "parent": "HumanEval/7",
    "inputs": ["[1, 2], 3", "(), 0.5", ""],
}
BIGCODEBENCH: dict[str, Any] = {
    "task_id": "BigCodeBench/7",
    "complete_prompt": 'import math\n\ndef task_func(x, scale=1):\n    """ The root. """\n',
    "instruct_prompt": "Write the root.",
    "canonical_solution": '    if x < 0:\n        raise ValueError("negative")\n    return math.sqrt(x) * scale\n',
    "entry_point": "task_func",
    "test": """import unittest
class TestCases(unittest.TestCase):
    def test_whole(self):
        # a comment
        given = 16
        result = task_func(given, scale=2)
        self.assertEqual(result, 8)
    def test_near(self):
        self.assertAlmostEqual(task_func(2), 1.41421, places=4, msg="near")
    def test_negative(self):
        with self.assertRaises(ValueError):
            task_func(-1)
""",
}
VERL: dict[str, Any] = {
    "data_source": "taco",
    "prompt": [{"role": "system", "content": "Think."}, {"role": "user", "content": "Print the double."}],
    "ability": "code",
    "reward_model": {
        "style": "rule",
        "ground_truth": json.dumps({"inputs": ["1\n", "4\n"], "outputs": ["2\n", "8\n"]}),
    },
    "extra_info": {"split": "train", "index": 3},
}


def read(row):
    return read_row(row, Origin("set", "set/train", 0))


def test_acecode_asserts_are_tests_and_completions_that_pass_all_are_solutions(court):
    problem = read(ACECODE)
    assert (problem.id, problem.fn_name, len(problem.solutions)) == ("oss_7", "total", 1)
    assert problem.tests == (CallTest(([1, 2],), 3), CallTest(([],), 0), CallTest((), 2.5, {"values": [2.5]}))
    assert court.verdicts(problem, problem.solutions[0], "def total(values):\n    return 0") == [
        "passed",
        "wrong_answer",
    ]


@pytest.mark.parametrize("texts", [EVOEVAL["inputs"], json.dumps(EVOEVAL["inputs"])])
def test_evoeval_inputs_are_texts_between_brackets_and_the_reference_gives_their_results(court, texts):
    row = {
        **EVOEVAL,
        "inputs": texts,
        "prompt": EVOEVAL["prompt"].replace("start)", "start=0)").replace("values,", "values=(),"),
    }
    item = read(row)
    assert isinstance(item, Draft)
    problem = court.resolve(item)
    assert [(test.args, test.expected) for test in problem.tests] == [(([1, 2], 3), 6), (((), 0.5), 0.5), ((), 0)]
    wrong = "def total(values=(), start=0):\n    return start"
    assert court.verdicts(problem, problem.solutions[0], wrong) == ["passed", "wrong_answer"]


def test_sandbox_fusion_s_evoeval_has_its_tables_as_texts_too(court):
    check = """def check(candidate):
    inputs = [eval(f"[{i}]") for i in ['[1, 2], 3', '[0.5], 1']]
    outputs = [6, 1.5]
    for i, (inp, exp) in enumerate(zip(inputs, outputs)):
        exact_match, _ = is_equal(candidate(*inp), exp)
        assert exact_match
"""
    row = {
        "id": "EvoEval/7",
        "content": EVOEVAL["prompt"].rstrip(),
        "labels": '{"entry_point": "total"}',
        "test": check,
    }
    problem = read({**row, "canonical_solution": "    return sum(values, start)\n"})  # the line's end is in neither
    assert isinstance(problem, Problem)
    assert [test.args for test in each_is(CallTest, problem.tests)] == [([1, 2], 3), ([0.5], 1)]
    assert problem.compare.abs_tol == 1e-6
    assert court.verdicts(problem, problem.solutions[0]) == ["passed"]


def test_bigcodebench_methods_that_only_call_and_compare_are_tests(court):
    problem = read(BIGCODEBENCH)
    assert isinstance(problem, Problem), problem
    tests = [(test.args, test.expected, test.raises) for test in each_is(CallTest, problem.tests)]
    assert tests == [((16,), 8, None), ((2,), 1.41421, None), ((-1,), None, "ValueError")]
    plain = "def task_func(x, scale=1):\n    return abs(x) ** 0.5 * scale"
    assert court.verdicts(problem, problem.solutions[0], plain) == ["passed", "wrong_answer"]


@pytest.mark.parametrize(
    "body",
    [
        "        self.assertIsInstance(task_func(4), float)",
        "        ax = task_func(4)\n        self.assertEqual(ax.get_title(), 'x')",
        "        with open('f', 'w') as file:\n            file.write('x')\n        self.assertEqual(task_func(4), 2)",
        "        for x in range(3):\n            self.assertEqual(task_func(x), x)",
        "        self.assertEqual(task_func(4), math.sqrt(4))",
    ],
)
def test_bigcodebench_tests_that_are_programs_are_refused(body):
    tests = f"import unittest\nclass TestCases(unittest.TestCase):\n    def test_it(self):\n{body}\n"
    found = read({**BIGCODEBENCH, "test": tests})
    assert isinstance(found, Skipped)
    assert (found.row_id, found.reason) == ("BigCodeBench/7", "tests_are_a_program")
    patched = tests.replace("    def test_it(self)", "    @patch('os.remove')\n    def test_it(self, mock)")
    assert read({**BIGCODEBENCH, "test": patched}).reason == "tests_are_a_program"


def test_verl_ground_truth_is_tests_in_any_shape_and_the_user_s_last_words_the_statement():
    problem = read(VERL)
    assert (problem.id, problem.statement, problem.source) == ("set/train/0", "Print the double.", "taco")
    assert problem.tests == (StdinTest("1\n", "2\n"), StdinTest("4\n", "8\n"))
    calls = [{"type": "function_call", "fn_name": "f", "input": [1], "output": [2]}]
    truth = {"ground_truth": json.dumps(calls)}
    assert isinstance(read({**VERL, "reward_model": truth}), Ambiguous)


def test_verl_rows_of_several_sets_that_count_from_nothing_each_keep_ids_of_their_own():
    assert {item_id(read_row(VERL, Origin("set", "set/train", place))) for place in (0, 1)} == {
        "set/train/0",
        "set/train/1",
    }


@pytest.mark.parametrize("truth", ["42", "\\boxed{4}", '"text"', '{"functional": "assert f(1) == 2"}', None])
def test_verl_rows_without_tests_say_so(truth):
    found = read({**VERL, "reward_model": {"style": "rule", "ground_truth": truth}})
    assert isinstance(found, Skipped)
    assert found.reason == "not_tests"


def test_each_shape_is_told_by_its_columns():
    rows = {"acecode": ACECODE, "evoeval": EVOEVAL, "bigcodebench": BIGCODEBENCH, "verl": VERL}
    assert {name: shape_of(row).name for name, row in rows.items()} == {name: name for name in rows}
