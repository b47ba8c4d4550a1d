"""Raw rows of the public sets become problems, or say why not."""

import gc
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from code_rl.data.sources import Skipped
from code_rl.grading import CallTest, Problem
from code_rl.grading.values import BinaryTree, LinkedList
from code_rl.util.errors import DataError
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


def without(row, *names):
    return {name: value for name, value in row.items() if name not in names}


def test_humaneval_asserts_become_hidden_call_tests(court):
    problem = court.item(HUMANEVAL)
    assert problem.tests == (CallTest(([1],), [2]), CallTest(([],), []))
    assert problem.view().public_tests == ()


def test_an_answer_may_rely_on_the_prompts_imports_and_helpers(court):
    answer = "def twice(xs: List[int]) -> List[int]:\n    return [helper(x) + x for x in xs]"
    assert court.verdicts(court.item(HUMANEVAL), answer) == ["passed"]


@pytest.mark.parametrize(
    "body", [HUMANEVAL["canonical_solution"], "    return [xs.pop() * 2 for _ in range(len(xs))][::-1]\n"]
)
def test_humaneval_plus_expected_values_come_from_the_reference_which_may_change_its_arguments(court, body):
    problem = court.problem({**HUMANEVAL_PLUS, "canonical_solution": body})
    assert problem.tests == (CallTest(([1],), [2]), CallTest(([],), []), CallTest(([5, 6],), [10, 12]))


LARGE = "    return [helper(x) * 2 for x in xs] if xs != [-1] else 'x' * 40_000_000\n"
"""A body whose value for [-1] is beyond the limits of a reference."""


def test_a_call_whose_value_is_beyond_the_limits_is_left_out_and_named(court):
    calls = [[[i]] for i in range(38)]
    row = {**HUMANEVAL_PLUS, "canonical_solution": LARGE, "plus_input": [*calls[:30], [[-1]], *calls[30:]]}
    problem = court.problem(row)
    assert len(problem.tests) == 40
    assert problem.meta["calls_left_out"] == {"32": "output_limit"}
    assert problem.tests[32] == CallTest(([30],), [60])


@pytest.mark.parametrize("extra", [[["text"], [7]], [[[-1]]]], ids=["a call fails", "too many are beyond the limits"])
def test_a_reference_that_fails_leaves_its_row_out(court, extra):
    with refused("1 reference_failed", kind=DataError):
        court.load({**HUMANEVAL_PLUS, "canonical_solution": LARGE, "plus_input": extra})


def test_any_root_is_right_for_find_zero_and_a_non_root_is_not(court):
    row = {
        **HUMANEVAL_PLUS,
        "prompt": "import math\n\ndef poly(xs, x):\n    return sum(c * math.pow(x, i) for i, c in enumerate(xs))\n\ndef find_zero(xs):\n    '''root'''\n",
        "entry_point": "find_zero",
        "canonical_solution": "    return 1.0\n",
        "base_input": [[[-6, 11, -6, 1]]],
        "plus_input": [],
    }
    answers = (f"def find_zero(xs):\n    return {value}" for value in ("3", "2.5", "float('nan')"))
    assert court.verdicts(court.problem(row), *answers) == ["passed", "wrong_answer", "wrong_answer"]


def test_the_set_s_broken_oracle_is_named_not_guessed(court):
    oracle = "def check(candidate):\n    inputs = [[1]]\n    results = [1]\n    for i, (inp, exp) in enumerate(zip(inputs, results)):\n        assert _poly(*candidate(*inp), inp) <= 0.0001\n"
    assert court.item({**HUMANEVAL, "test": oracle}).reason == "unknown_oracle"


def test_mbpp_shows_its_first_test_and_only_that(court):
    problem = court.item(MBPP)
    assert problem.fn_name == "add_pair"
    assert [test.public for test in problem.tests] == [True, False]
    assert "assert add_pair((1, 2)) == (3,)" in problem.statement
    assert "(0, 0)" not in problem.statement


TRUTHY = {"code": "def has(s):\n    return 'a' in s", "test_list": ["assert has('abc')", "assert not has('x')"]}
OFFSET = "OFFSET = 5\ndef add_pair(pair):\n    return (pair[0] + pair[1] + OFFSET,)"
RECURSIVE = "def f(n):\n    return [n] + f(n - 1) if n else []"


@pytest.mark.parametrize(
    ("changes", "right", "wrong"),
    [
        ({}, "def add_pair(p):\n    return (sum(p),)", "def add_pair(p):\n    return [sum(p)]"),
        ({"test_setup_code": "OFFSET = 0"}, OFFSET, OFFSET.replace("+ OFFSET", "+ 5")),
        ({"code": RECURSIVE, "test_list": ["assert set(f(3)) == {1, 2, 3}"]}, RECURSIVE, "def f(n):\n    return [n]"),
        (TRUTHY, "import re\ndef has(s):\n    return re.search('a', s)", "def has(s):\n    return 'no'"),
    ],
    ids=["a list is no tuple", "setup after the program", "a view leaves recursive calls alone", "any truthy value"],
)
def test_mbpp_rows_are_judged_as_their_asserts_would_judge(court, changes, right, wrong):
    assert court.verdicts(court.item({**MBPP, **changes}), right, wrong) == ["passed", "wrong_answer"]


def test_mbpp_plus_inputs_get_back_the_types_that_json_lost(court):
    problem = court.problem(MBPP_PLUS)
    assert [test.args for test in problem.tests] == [((1, 2),), ((3, 4),), ((0.5, 0.25),)]
    assert problem.compare.abs_tol > 0


@pytest.mark.parametrize(
    ("literal", "base", "extra", "typed"),
    [
        ("(1, 2)", [[1, 2]], [[3]], [((1, 2),), ((3,),)]),
        ("1, 1j", ["1", "1j"], ["2", "(1-2j)"], [(1, 1j), (2, 1 - 2j)]),
        ("[(1, 2)]", [[[1, 2]]], [[[3, [4]]]], [([(1, 2)],), ([(3, [4])],)]),
    ],
)
def test_casts_follow_the_literals(court, literal, base, extra, typed):
    code = {"assertion": f"assert add_pair({literal}) == 0", "canonical_solution": "def add_pair(*args):\n    return 0"}
    problem = court.problem({**MBPP_PLUS, **code, "base_input": [base], "plus_input": [extra]})
    assert [test.args for test in problem.tests] == typed


def test_contradicting_literals_are_refused(court):
    asserts = "assert add_pair([1]) == 0\nassert add_pair((1,)) == 0\n"
    assert court.item({**MBPP_PLUS, "assertion": asserts, "base_input": [[[1]], [[1]]]}).reason == "input_types_unknown"


def test_leetcode_nodes_cross_the_wall_as_values_and_its_examples_stay_out_of_the_statement(court):
    problem = court.item(LEETCODE_OLD)
    assert problem.statement == "Reverse a list."
    assert problem.tests[0] == CallTest((), LinkedList((3, 2, 1)), {"head": LinkedList((1, 2, 3))})
    assert problem.tests[1] == CallTest((), None, {"head": None})
    unchanged = "class Solution:\n    def reverse(self, head):\n        return head"
    assert court.verdicts(problem, problem.solutions[0], unchanged) == ["passed", "wrong_answer"]


@pytest.mark.parametrize(
    ("written", "tree"),
    [
        ("[1, None, 2, None, None]", BinaryTree((1, None, 2))),
        ("[1, None, 2, 3, 4, 9, 9]", BinaryTree((1, None, 2, 3, 4, 9, 9))),
        ("[1, None, 2, 3, 4, 9, 9, None, None]", BinaryTree((1, None, 2, 3, 4, 9, 9))),
        ("[]", None),
    ],
)
def test_a_tree_has_one_form_however_it_is_written(court, written, tree):
    test = f"def check(candidate):\n    assert candidate(head = tree_node({written})) == 1\n"
    assert court.item({**LEETCODE_OLD, "test": test}).tests[0].kwargs == {"head": tree}


@pytest.mark.parametrize("body", ["", "    # Twice each.\n"])
def test_a_prompt_may_end_at_the_header_of_its_function(court, body):
    prompt = "import math\n\ndef twice(xs):\n" + body
    problem = court.item({**HUMANEVAL, "prompt": prompt, "canonical_solution": "    return [x * 2 for x in xs]\n"})
    assert problem.meta["preamble"] == "import math"
    assert court.verdicts(problem, problem.solutions[0]) == ["passed"]


# The last ones end other CPython versions' parsers otherwise than in a SyntaxError.
NO_PYTHON = ("def (:", "x = \0", "(" * 5000 + ")" * 5000, "-" * 200_000 + "1")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({**HUMANEVAL, "test": 3}, "wrong_field_type"),
        ({**HUMANEVAL, "test": "def check(candidate):\n    assert True\n"}, "no_tests"),
        *(({**HUMANEVAL, "test": text}, "not_python") for text in NO_PYTHON),
        ({**HUMANEVAL, "entry_point": "absent"}, "entry_point_not_in_prompt"),
        (without(HUMANEVAL, "entry_point"), "missing_field"),
        ({**HUMANEVAL_PLUS, "plus_input": [3]}, "wrong_field_type"),
        ({**HUMANEVAL_PLUS, "atol": "much"}, "wrong_field_type"),
        ({**MBPP, "test_list": ["assert other(1) == 2"]}, "entry_point_unclear"),
        ({**MBPP, "test_list": [7]}, "wrong_field_type"),
        ({**MBPP, "text": " "}, "blank_statement"),
        ({**MBPP_PLUS, "base_input": {"a": 1}}, "wrong_field_type"),
        ({**LEETCODE_OLD, "entry_point": "solve"}, "unknown_entry_point"),
        ({**LEETCODE_OLD, "query": "no request"}, "unknown_query_shape"),
    ],
)
def test_a_malformed_row_is_named_and_the_next_one_is_still_read(court, row, reason):
    skipped, following = court.dataset(row, HUMANEVAL)
    assert (type(skipped), skipped.reason) == (Skipped, reason)
    assert following.tests


def test_rows_that_several_threads_read_at_once_do_not_disturb_each_other(court):
    """CPython up to 3.11 counts the depth of all threads' syntax trees together."""
    deep = "x = " + "(" * 60 + "1" + ")" * 60 + "\ny = [" + "{}, " * 300 + "]\n"
    dataset = court.dataset(*[{**HUMANEVAL, "test": HUMANEVAL["test"] + deep}] * 20)
    kept = gc.get_threshold()
    gc.set_threshold(50)
    gc.callbacks.append(give_way := lambda *_: time.sleep(0))
    try:
        with ThreadPoolExecutor(4) as threads:
            read: list[list[object]] = list(threads.map(list, [dataset] * 4))
    finally:
        gc.callbacks.remove(give_way)
        gc.set_threshold(*kept)
    assert [set(map(type, items)) for items in read] == [{Problem}] * 4
