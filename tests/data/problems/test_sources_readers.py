"""Raw rows of the public sets become problems, or say why not."""

import asyncio
import copy
from dataclasses import replace

import pytest

from code_rl.data.resolve import REFERENCE_LIMITS, with_expected
from code_rl.data.sources.leetcode import binary_tree, linked_list
from code_rl.data.sources.mbpp import cast_calls
from code_rl.data.sources.records import Draft, RowError, Skipped
from code_rl.grading import CallTest, Problem, VerdictKind, judge_async
from code_rl.grading.values import BinaryTree, LinkedList
from code_rl.util.errors import DataError
from tests.boxes import shared_box
from tests.grading.corpus.reading import (
    read_humaneval,
    read_humaneval_plus,
    read_humaneval_plus_origin,
    read_leetcode,
    read_mbpp,
    read_mbpp_plus,
    read_rows,
)
from tests.refusals import refused

HUMANEVAL = {
    "task_id": "HumanEval/900",
    "prompt": 'from typing import List\n\ndef helper(x):\n    return x\n\ndef twice(xs: List[int]) -> List[int]:\n    """ Doubles. """\n',
    "entry_point": "twice",
    "canonical_solution": "    return [helper(x) * 2 for x in xs]\n",
    "test": "METADATA = {}\n\ndef check(candidate):\n    assert candidate([1]) == [2]\n    assert candidate([]) == []\n    assert True\n",
}
HUMANEVAL_PLUS = {**HUMANEVAL, "base_input": [[[1]], [[]]], "plus_input": [[[5, 6]]], "atol": 0}
MBPP = {
    "task_id": 900,
    "text": "Write a function to add a pair.",
    "code": "def add_pair(pair):\r\n    return (pair[0] + pair[1],)",
    "test_list": ["assert add_pair((1, 2)) == (3,)", "assert add_pair((0, 0)) == (0,)"],
    "test_setup_code": "",
    "challenge_test_list": [],
}
MBPP_PLUS = {
    "task_id": "Mbpp/900",
    "prompt": '"""\nAdd a pair.\nassert add_pair((1, 2)) == (3,)\n"""\n',
    "entry_point": "add_pair",
    "canonical_solution": "def add_pair(pair):\n    assert isinstance(pair, tuple)\n    return (pair[0] + pair[1],)",
    "assertion": "assert add_pair((1, 2)) == (3,)\n",
    "base_input": [[[1, 2]]],
    "plus_input": [[[3, 4]], [[0.5, 0.25]]],
    "atol": 0,
}
LEETCODE_OLD = {
    "task_id": "reverse",
    "prompt": "from typing import *\n\nclass ListNode:\n    def __init__(self, val=0, next=None):\n        self.val = val\n        self.next = next\n",
    "completion": "class Solution:\n    def reverse(self, head: Optional[ListNode]):\n        last = None\n        while head:\n            head.next, last, head = last, head, head.next\n        return last\n",
    "entry_point": "Solution().reverse",
    "test": "def check(candidate):\n    assert is_same_list(candidate(head = list_node([1,2,3])), list_node([3,2,1]))\n    assert is_same_list(candidate(head = list_node([])), list_node([]))\n",
    "query": "Reverse a list.\nPlease complete the following python code precisely:\n```python\nclass Solution:\n```",
    "meta": {"question_id": 1, "difficulty": "Easy", "question_title": "with examples", "lang_code": "class Solution:"},
}


def only(items):
    (item,) = list(items)
    return item


async def _verdict(problem, code):
    return (await judge_async(problem, code, shared_box())).kind


async def _expected(draft, limits=REFERENCE_LIMITS):
    return await with_expected(draft, shared_box(), limits)


def test_humaneval_asserts_become_hidden_call_tests():
    problem = only(read_humaneval([HUMANEVAL]))
    assert problem.tests == (CallTest(([1],), [2]), CallTest(([],), []))
    assert problem.view().public_tests == ()


def test_an_answer_may_rely_on_the_prompts_imports_and_helpers():
    problem = only(read_humaneval([HUMANEVAL]))
    answer = "def twice(xs: List[int]) -> List[int]:\n    return [helper(x) + x for x in xs]"
    assert asyncio.run(_verdict(problem, answer)) is VerdictKind.PASSED


def test_humaneval_plus_expected_values_come_from_the_reference():
    problem = asyncio.run(_expected(only(read_humaneval_plus([HUMANEVAL_PLUS]))))
    assert [test.expected for test in problem.tests] == [[2], [], [10, 12]]


def test_a_reference_that_fails_makes_the_row_a_skipped_one():
    row = {**HUMANEVAL_PLUS, "plus_input": [["text"], [7]]}
    result = asyncio.run(_expected(only(read_humaneval_plus([row]))))
    assert isinstance(result, Skipped)
    assert result.reason == "reference_failed"


def test_a_call_whose_value_is_beyond_the_limits_is_left_out_and_named():
    small = replace(REFERENCE_LIMITS, output_bytes=10_000)
    calls = [[[i]] for i in range(38)]
    row = {**HUMANEVAL_PLUS, "plus_input": [*calls[:30], [[1] * 5000], *calls[30:]]}
    problem = asyncio.run(_expected(only(read_humaneval_plus([row])), small))
    assert len(problem.tests) == 40
    assert problem.meta["calls_left_out"] == {"32": "output_limit"}
    assert problem.tests[32] == CallTest(([30],), [60])


def test_a_reference_often_beyond_its_limits_has_failed():
    small = replace(REFERENCE_LIMITS, output_bytes=10_000)
    row = {**HUMANEVAL_PLUS, "plus_input": [[[1] * 5000]]}
    result = asyncio.run(_expected(only(read_humaneval_plus([row])), small))
    assert isinstance(result, Skipped)
    assert result.reason == "reference_failed"


def test_a_reference_that_changes_its_arguments_disturbs_no_test():
    row = {**HUMANEVAL_PLUS, "canonical_solution": "    return [xs.pop() * 2 for _ in range(len(xs))][::-1]\n"}
    problem = asyncio.run(_expected(only(read_humaneval_plus([row]))))
    assert problem.tests[2] == CallTest(([5, 6],), [10, 12])


def test_any_root_is_right_for_find_zero_and_a_non_root_is_not():
    row = {
        **HUMANEVAL_PLUS,
        "prompt": "import math\n\ndef poly(xs, x):\n    return sum(c * math.pow(x, i) for i, c in enumerate(xs))\n\ndef find_zero(xs):\n    '''root'''\n",
        "entry_point": "find_zero",
        "canonical_solution": "    return 1.0\n",
        "base_input": [[[-6, 11, -6, 1]]],
        "plus_input": [],
    }
    problem = asyncio.run(_expected(only(read_humaneval_plus([row]))))
    assert asyncio.run(_verdict(problem, "def find_zero(xs):\n    return 3")) is VerdictKind.PASSED
    assert asyncio.run(_verdict(problem, "def find_zero(xs):\n    return 2.5")) is VerdictKind.WRONG_ANSWER
    assert asyncio.run(_verdict(problem, "def find_zero(xs):\n    return float('nan')")) is VerdictKind.WRONG_ANSWER


def test_the_set_s_broken_oracle_is_named_not_guessed():
    row = {
        **HUMANEVAL,
        "test": "def check(candidate):\n    inputs = [[1]]\n    results = [1]\n    for i, (inp, exp) in enumerate(zip(inputs, results)):\n        assert _poly(*candidate(*inp), inp) <= 0.0001\n",
    }
    assert only(read_humaneval_plus_origin([row])).reason == "unknown_oracle"


def test_mbpp_shows_its_first_test_and_only_that():
    problem = only(read_mbpp([MBPP]))
    assert problem.fn_name == "add_pair"
    assert [test.public for test in problem.tests] == [True, False]
    assert "assert add_pair((1, 2)) == (3,)" in problem.statement
    assert "(0, 0)" not in problem.statement


def test_mbpp_tests_tell_a_list_from_a_tuple():
    problem = only(read_mbpp([MBPP]))
    assert asyncio.run(_verdict(problem, "def add_pair(p):\n    return (sum(p),)")) is VerdictKind.PASSED
    assert asyncio.run(_verdict(problem, "def add_pair(p):\n    return [sum(p)]")) is VerdictKind.WRONG_ANSWER


@pytest.mark.parametrize(
    "changes",
    [
        {
            "test_setup_code": "OFFSET = 0",
            "code": "OFFSET = 5\ndef add_pair(pair):\n    return (pair[0] + pair[1] + OFFSET,)",
        },
        {
            "code": "def f(n):\n    return [n] + f(n - 1) if n else []",
            "test_list": ["assert set(f(3)) == {1, 2, 3}"],
        },
    ],
)
def test_mbpp_setup_code_runs_after_the_program_and_a_view_leaves_recursive_calls_alone(changes):
    problem = only(read_mbpp([{**MBPP, **changes}]))
    assert asyncio.run(_verdict(problem, problem.solutions[0])) is VerdictKind.PASSED


def test_mbpp_plus_inputs_get_back_the_types_that_json_lost():
    problem = asyncio.run(_expected(only(read_mbpp_plus([MBPP_PLUS]))))
    assert [test.args for test in problem.tests] == [((1, 2),), ((3, 4),), ((0.5, 0.25),)]
    assert problem.compare.abs_tol > 0


def test_a_truthiness_test_accepts_any_truthy_value_even_one_that_is_no_plain_data():
    row = {
        **MBPP,
        "code": "def has(s):\n    return 'a' in s",
        "test_list": ["assert has('abc')", "assert not has('x')"],
    }
    problem = only(read_mbpp([row]))
    answer = "import re\ndef has(s):\n    return re.search('a', s)"
    assert asyncio.run(_verdict(problem, answer)) is VerdictKind.PASSED
    assert asyncio.run(_verdict(problem, "def has(s):\n    return 'no'")) is VerdictKind.WRONG_ANSWER


@pytest.mark.parametrize(
    ("literal", "base", "extra", "typed"),
    [
        ([((1, 2),)], [[[1, 2]]], [[[3]]], [((1, 2),), ((3,),)]),
        ([(1, 1j)], [["1", "1j"]], [["2", "(1-2j)"]], [(1, 1j), (2, 1 - 2j)]),
        ([([(1, 2)],)], [[[[1, 2]]]], [[[[3, [4]]]]], [([(1, 2)],), ([(3, [4])],)]),
    ],
)
def test_casts_follow_the_literals(literal, base, extra, typed):
    assert cast_calls(literal, base, extra) == typed


def test_contradicting_literals_are_refused():
    with pytest.raises(RowError, match="input_types_unknown"):
        cast_calls([([1],), ((1,),)], [[[1]], [[1]]], [])


def test_leetcode_nodes_cross_the_wall_as_values():
    problem = only(read_leetcode([LEETCODE_OLD]))
    assert problem.tests[0] == CallTest((), LinkedList((3, 2, 1)), {"head": LinkedList((1, 2, 3))})
    assert problem.tests[1] == CallTest((), None, {"head": None})
    assert asyncio.run(_verdict(problem, problem.solutions[0])) is VerdictKind.PASSED
    assert (
        asyncio.run(_verdict(problem, "class Solution:\n    def reverse(self, head):\n        return head"))
        is VerdictKind.WRONG_ANSWER
    )


def test_the_older_layout_s_examples_are_its_tests_and_stay_out_of_the_statement():
    assert only(read_leetcode([LEETCODE_OLD])).statement == "Reverse a list."


def test_a_tree_has_one_form_however_it_is_written():
    assert binary_tree([1, None, 2, None, None]) == BinaryTree((1, None, 2))
    assert binary_tree([1, None, 2, 3, 4, 9, 9]) == binary_tree([1, None, 2, 3, 4, 9, 9, None, None])
    assert binary_tree([]) is None
    assert linked_list([]) is None


@pytest.mark.parametrize("body", ["", "    # Twice each.\n"])
def test_a_prompt_may_end_at_the_header_of_its_function(body):
    prompt = "import math\n\ndef twice(xs):\n" + body
    row = {**HUMANEVAL, "prompt": prompt, "canonical_solution": "    return [x * 2 for x in xs]\n"}
    problem = only(read_humaneval([row]))
    assert problem.meta["preamble"] == "import math"
    assert asyncio.run(_verdict(problem, problem.solutions[0])) is VerdictKind.PASSED


@pytest.mark.parametrize(
    ("reader", "row", "reason"),
    [
        (read_humaneval, {key: value for key, value in HUMANEVAL.items() if key != "prompt"}, "missing_field"),
        (read_humaneval, {**HUMANEVAL, "test": 3}, "wrong_field_type"),
        (read_humaneval, {**HUMANEVAL, "test": "def check(candidate):\n    assert True\n"}, "no_tests"),
        (read_humaneval, {**HUMANEVAL, "test": "def (:"}, "not_python"),
        (read_humaneval, {**HUMANEVAL, "entry_point": "absent"}, "entry_point_not_in_prompt"),
        (read_humaneval_plus, {**HUMANEVAL_PLUS, "plus_input": [3]}, "wrong_field_type"),
        (read_humaneval_plus, {**HUMANEVAL_PLUS, "atol": "much"}, "wrong_field_type"),
        (read_mbpp, {**MBPP, "test_list": ["assert other(1) == 2"]}, "entry_point_unclear"),
        (read_mbpp, {**MBPP, "test_list": [7]}, "wrong_field_type"),
        (read_mbpp, {**MBPP, "text": " "}, "blank_statement"),
        (read_mbpp_plus, {**MBPP_PLUS, "base_input": {"a": 1}}, "wrong_field_type"),
        (read_leetcode, {**LEETCODE_OLD, "entry_point": "solve"}, "unknown_entry_point"),
        (read_leetcode, {**LEETCODE_OLD, "query": "no request"}, "unknown_query_shape"),
    ],
)
def test_a_malformed_row_is_named_and_the_next_one_is_still_read(reader, row, reason):
    skipped, following = list(reader([row, copy.deepcopy(_GOOD[reader])]))
    assert isinstance(skipped, Skipped)
    assert skipped.reason == reason
    assert isinstance(following, Problem | Draft)


_GOOD = {
    read_humaneval: HUMANEVAL,
    read_humaneval_plus: HUMANEVAL_PLUS,
    read_mbpp: MBPP,
    read_mbpp_plus: MBPP_PLUS,
    read_leetcode: LEETCODE_OLD,
}


def test_rows_are_streamed_and_a_broken_line_names_file_and_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n\n[1]\n')
    rows = read_rows(path)
    assert next(rows) == {"a": 1}
    with refused("rows.jsonl, line 3", kind=DataError):
        next(rows)
