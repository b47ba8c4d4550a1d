"""Called functions: their values come back as plain data; nothing else can be taken for one."""

from code_rl.grading import values
from code_rl.grading.sandbox import Job, Status
from code_rl.grading.values import BinaryTree, LinkedList
from tests.grading.jobs import call_job
from tests.grading.sandbox.sandbox_boxes import run

NODES = """
class ListNode:
    def __init__(self, val=0, next=None):
        self.val, self.next = val, next
class TreeNode:
    def __init__(self, val=0, left=None, right=None):
        self.val, self.left, self.right = val, left, right
"""


def _values(job: Job) -> list[object]:
    done = run(job)
    assert [one.status for one in done] == [Status.OK] * len(job.cases), done
    return [values.loads(one.value or b"") for one in done]


def test_functions_are_found_at_module_level_or_on_a_fresh_solution():
    module = call_job("def f(x): return x + 1", "f", (1,), (2,))
    method = call_job(
        "class Solution:\n    n = 0\n    def f(self, x):\n        self.n += x\n        return self.n", "f", (1,), (2,)
    )
    assert _values(module) == [2, 3]
    assert _values(method) == [1, 2]


def test_a_method_is_called_rather_than_a_library_function_that_an_import_brought():
    method = "class Solution:\n    def merge(self, x): return [x]"
    assert _values(call_job(method, "merge", (1,), preamble="from heapq import *")) == [[1]]


def test_a_programs_own_function_is_called_rather_than_a_method_of_the_same_name():
    both = "class Solution:\n    def f(self, x): return 'method'\ndef f(x): return 'function'"
    assert _values(call_job(both, "f", (1,))) == ["function"]


def test_printed_text_is_kept_apart_from_the_value():
    (done,) = run(call_job("def f():\n    print('[42]')\n    return 1", "f"))
    assert (done.stdout, done.value) == (b"[42]\n", b"1")


def test_a_main_guard_does_not_run_when_a_function_is_called():
    assert _values(call_job("def f(): return 1\nif __name__ == '__main__':\n    f(input())", "f")) == [1]


def test_classes_can_be_pickled():
    assert _values(call_job("import pickle\nclass A: pass\ndef f(): return len(pickle.dumps(A())) > 0", "f")) == [True]


def test_lists_and_trees_are_built_from_the_programs_classes():
    reverse = "class Solution:\n    def f(self, h):\n        p = None\n        while h: h.next, p, h = p, h, h.next\n        return p"
    mirror = "def f(t):\n    if t: t.left, t.right = f(t.right), f(t.left)\n    return t"
    assert _values(call_job(reverse, "f", (LinkedList((1, 2, 3)),), (None,), preamble=NODES)) == [
        LinkedList((3, 2, 1)),
        None,
    ]
    assert _values(call_job(mirror, "f", (BinaryTree((1, 2, 3, 4)),), preamble=NODES)) == [
        BinaryTree((1, 3, 2, None, None, None, 4))
    ]


def test_an_unreadable_value_is_named_by_its_type():
    (done,) = run(call_job("class Fraction: pass\ndef f(): return Fraction()", "f"))
    assert "Fraction" in done.detail


def test_a_subclass_is_read_through_its_base():
    code = "class L(list):\n    __eq__ = lambda s, o: True\n    __iter__ = lambda s: iter([9])\ndef f(): return L([1])"
    assert _values(call_job(code, "f")) == [[1]]
