"""Sequences of calls, expected exceptions, one of several functions, tolerance of a test: through the real sandbox."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from code_rl.grading import CallTest, Compare, Problem, SequenceTest, VerdictKind, judge_async
from code_rl.grading.values import MAX_DEPTH, BinaryTree, LinkedList
from code_rl.util.errors import DataError

from .fakes import ScriptedExecutor, returned, verdict_of

CALLS = (("LRU", (2,)), ("put", (1, 1)), ("get", (1,)), ("keys", ()), ("put", (2, 2)), ("keys", ()))
SEQUENCE = Problem("lru", "", (SequenceTest("LRU", CALLS, (None, None, 1, [1], None, [1, 2])),))
LRU = """
class LRU:
    def __init__(self, size):
        self.held, self.order = {}, []
    def put(self, key, value):
        self.held[key] = value
        self.order.append(key)
    def get(self, key):
        return self.held.get(key, -1)
    def keys(self):
        return self.order
"""
RAISES = Problem("r", "", (CallTest((1,), 1), CallTest((-1,), raises="ValueError"), CallTest((0,), 0)), fn_name="f")
KINDS = VerdictKind


def test_a_sequence_of_calls_sees_each_result_as_it_was():
    assert verdict_of(SEQUENCE, LRU).correct


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (LRU.replace("-1)", "-1) + 1"), KINDS.WRONG_ANSWER),
        (LRU.replace("def put", "def put_it"), KINDS.RUNTIME_ERROR),
        (LRU.replace("class LRU", "class Cache"), KINDS.RUNTIME_ERROR),
        (LRU.replace("__init__(self, size)", "__init__(self)"), KINDS.RUNTIME_ERROR),
        (
            "class LRU:\n    __eq__ = lambda *a: True\n    def __getattr__(self, n): return lambda *a: self\n    __init__ = lambda *a: None",
            KINDS.RUNTIME_ERROR,
        ),
    ],
)
def test_other_classes_do_not_pass(code, kind):
    assert verdict_of(SEQUENCE, code).kind is kind


RAISING = {
    "right": ("def f(n):\n    if n < 0: raise ValueError('x')\n    return n", KINDS.PASSED),
    "a_subclass": ("class Mine(ValueError): pass\ndef f(n):\n    if n < 0: raise Mine\n    return n", KINDS.PASSED),
    "a_second_base": ("class Mine(KeyError, ValueError): pass\ndef f(n):\n    if n < 0: raise Mine\n    return n", KINDS.PASSED),
    "method": ("class Solution:\n    def f(self, n):\n        if n < 0: raise ValueError\n        return n", KINDS.PASSED),
    "returns": ("def f(n): return n", KINDS.WRONG_ANSWER),
    "another": ("def f(n):\n    if n < 0: raise KeyError\n    return n", KINDS.WRONG_ANSWER),
    "exits": ("def f(n):\n    if n < 0: raise SystemExit(0)\n    return n", KINDS.RUNTIME_ERROR),
    "base_exception": ("class ValueError(BaseException): pass\ndef f(n):\n    if n < 0: raise ValueError\n    return n", KINDS.RUNTIME_ERROR),
    "always": ("def f(n): raise ValueError", KINDS.RUNTIME_ERROR),
    "returns_the_exception": ("def f(n): return ValueError('x') if n < 0 else n", KINDS.RUNTIME_ERROR),
    "returns_the_form": ("def f(n): return {'__type__': 'raised', 'items': ['ValueError']} if n < 0 else n", KINDS.WRONG_ANSWER),
    "no_function": ("def g(n): raise ValueError", KINDS.RUNTIME_ERROR),
    "raises_at_definition": ("raise ValueError", KINDS.RUNTIME_ERROR),
    "memory": ("def f(n):\n    if n < 0: raise MemoryError\n    return n", KINDS.MEMORY_LIMIT),
    "lying_class": ("class M(type):\n    __mro__ = property(lambda c: (ValueError, object))\nclass E(Exception, metaclass=M): pass\ndef f(n):\n    if n < 0: raise E\n    return n", KINDS.WRONG_ANSWER),
}  # fmt: skip


@pytest.mark.parametrize(("code", "kind"), RAISING.values(), ids=RAISING)
def test_an_expected_exception_is_told_from_all_else(code, kind):
    assert verdict_of(RAISES, code).kind is kind


def test_what_is_expected_to_raise_is_not_to_be_seen_in_the_input():
    spying = "import sys\ndef f(n):\n    held = repr(sys._getframe(1).f_locals.get('more'))\n    return held"
    seen = Problem("r", "", (CallTest((1,), "x"), CallTest((1,), raises="ValueError")), fn_name="f")
    first = verdict_of(Problem("r", "", seen.tests, fn_name="f"), "x = 1", all_tests=True)
    assert first.passed == 0
    same = Problem("s", "", (CallTest((1,), "{'catch': True}"), CallTest((2,), "{'catch': True}"), CallTest((3,), raises="ValueError")), fn_name="f")  # fmt: skip
    assert verdict_of(same, spying, all_tests=True).passed == 2


def test_a_test_may_name_its_function_and_its_tolerance():
    tests = (CallTest((2,), 4, fn_name="double"), CallTest((2,), 0.5, fn_name="half", abs_tol=0.01), CallTest((3,), 9))
    problem = Problem("n", "", tests, fn_name="square")
    code = "def double(n): return 2 * n\ndef half(n): return 1 / n + .001\ndef square(n): return n * n"
    assert verdict_of(problem, code).correct
    assert verdict_of(problem, code.replace(".001", ".1")).kind is VerdictKind.WRONG_ANSWER
    assert verdict_of(Problem("n", "", tests[:2]), code).correct


@pytest.mark.parametrize(
    ("expected", "raised"),
    [
        ("IOError", "OSError"),
        ("OSError", "IOError"),
        ("OSError", "FileNotFoundError"),
        ("EnvironmentError", "TimeoutError"),
    ],
)
def test_an_exception_is_expected_by_any_name_that_an_except_clause_could_use(expected, raised):
    problem = Problem("a", "", (CallTest((1,), raises=expected),), fn_name="f")
    assert verdict_of(problem, f"def f(n): raise {raised}").correct


NODE = "class TreeNode:\n    def __init__(self, val=0, left=None, right=None): self.val, self.left, self.right = val, left, right\n"
TREES = Problem("t", "", (CallTest((), BinaryTree((0, 0, 0))),), fn_name="f")


def test_a_tree_may_use_one_node_twice():
    assert verdict_of(TREES, f"{NODE}def f():\n    leaf = TreeNode()\n    return TreeNode(0, leaf, leaf)").correct


def test_nodes_of_a_subclass_are_nodes():
    code = f"{NODE}class Mine(TreeNode): pass\ndef f(): return Mine(0, TreeNode(), Mine())"
    assert verdict_of(TREES, code).correct
    list_node = "class ListNode:\n    def __init__(self, val=0, next=None): self.val, self.next = val, next\n"
    problem = Problem("l", "", (CallTest((), LinkedList((1, 2))),), fn_name="f")
    assert verdict_of(problem, f"{list_node}class Mine(ListNode): pass\ndef f(): return Mine(1, Mine(2))").correct


@pytest.mark.parametrize("right", ["root", "leaf"])
def test_a_tree_that_never_ends_or_unfolds_without_end_is_the_programs_fault(right):
    grow = "    leaf = root = TreeNode()\n    for _ in range(60): leaf, root = root, TreeNode(0, root, root)\n"
    code = f"{NODE}def f():\n{grow}    root.left, root.right = root, {right}\n    return root"
    assert verdict_of(TREES, code, cpu_limit_s=0.5).kind in (KINDS.RUNTIME_ERROR, KINDS.TIME_LIMIT)


def test_a_memoryview_is_read_as_an_array_is():
    problem = Problem("m", "", (CallTest((), [1, 2]),), fn_name="f")
    assert verdict_of(problem, "def f(): return memoryview(bytes([1, 2]))").correct


def test_room_for_a_value_grows_with_what_is_expected():
    text = "x" * (17 << 20)
    problem = Problem("b", "", (CallTest((), text),), fn_name="f")
    assert verdict_of(problem, f"def f(): return 'x' * {len(text)}").correct


@pytest.mark.slow
def test_room_for_a_value_counts_empty_containers():
    problem = Problem("b", "", (CallTest((), [[]] * 6_000_000),), fn_name="f")
    executor = ScriptedExecutor([returned("[]")])
    assert not asyncio.run(judge_async(problem, "x", executor)).correct
    assert executor.jobs[0].limits.output_bytes > 18_000_000


@pytest.mark.parametrize("levels", [201, 202])
def test_what_may_be_expected_may_be_answered(levels):
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    problem = Problem("d", "", (CallTest((), value),), fn_name="f")
    code = f"def f():\n    value = []\n    for _ in range({levels - 1}): value = [value]\n    return value"
    if levels <= 201:
        assert verdict_of(problem, code).correct
    else:
        with pytest.raises(DataError):
            verdict_of(problem, code)


def nested() -> Any:
    """A value as deep as a problem file may nest."""
    value: Any = 1
    for _ in range(MAX_DEPTH):
        value = [value]
    return value


CHECKER = "def check(input, output, expected):\n    return output == expected == input[0][0]\n"
DEEP = {
    "an argument": Problem("d", "", (CallTest((nested(),), nested(), {"k": nested()}),), fn_name="f"),
    "a question to a checker": Problem(
        "d",
        "",
        (CallTest((nested(),), nested(), {"k": nested()}),),
        fn_name="f",
        compare=Compare("checker", checker=CHECKER),
    ),
    "a sequence of calls": Problem("d", "", (SequenceTest("C", (("C", ()), ("f", (nested(),))), (None, nested())),)),
}


@pytest.mark.parametrize("message", DEEP)
def test_what_a_problem_file_may_nest_arrives_in_every_message(message):
    code = "def f(x, k): return x if x == k else None\nclass C:\n    def f(self, x): return x"
    assert verdict_of(DEEP[message], code).correct
