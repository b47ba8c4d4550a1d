"""Called functions: what they return comes back as plain data; nothing else can be taken for it."""

import pytest

from code_rl.grading import values
from code_rl.grading.sandbox.executor import CallInput, Job, Status
from code_rl.grading.values import BinaryTree, LinkedList
from tests.grading.sandbox.sandbox_boxes import LEVELS, call_job, run, run_jobs

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


def test_values_of_every_plain_type_come_back():
    given = (1, -(10**5000), 1.5, "ñ\ud800", None, True, [1, [2]], (1, 2), {1, 2}, {"a": (1,)}, {1: 2}, b"\xff", 2j)
    assert _values(call_job("def f(*a): return a", "f", given)) == [given]


def test_functions_are_found_at_module_level_or_on_a_fresh_solution():
    module = call_job("def f(x): return x + 1", "f", (1,), (2,))
    method = call_job(
        "class Solution:\n    n = 0\n    def f(self, x):\n        self.n += x\n        return self.n", "f", (1,), (2,)
    )
    assert _values(module) == [2, 3]
    assert _values(method) == [1, 2]


def test_a_method_is_called_rather_than_a_library_function_that_an_import_brought():
    method = "class Solution:\n    def merge(self, x): return [x]"
    assert _values(Job(method, (CallInput((1,)),), "merge", preamble="from heapq import *")) == [[1]]


def test_a_programs_own_function_is_called_rather_than_a_method_of_the_same_name():
    both = "class Solution:\n    def f(self, x): return 'method'\ndef f(x): return 'function'"
    assert _values(call_job(both, "f", (1,))) == ["function"]


def test_keyword_arguments_preamble_and_setup():
    job = Job(
        "def f(x, y): return x * y + z + k", (CallInput((2,), {"y": 5}),), "f", preamble="z = 100", setup="k = 1000"
    )
    assert _values(job) == [1110]


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


NOT_RETURNED = {
    "exits": "import sys\ndef f(): sys.exit(0)",
    "exits_at_once": "import os\ndef f(): os._exit(0)",
    "exits_while_defined": "import sys\ndef f(): return 1\nsys.exit(0)",
    "exits_hard_while_defined": "import os\ndef f(): return 1\nos._exit(0)",
    "raises": "def f(): raise ValueError",
    "kills_itself": "import os\ndef f(): os.kill(os.getpid(), 9)",
    "not_there": "def g(): return 1",
    "not_callable": "f = 1",
    "unreadable_value": "def f(): return object()",
    "circle": "def f():\n    a = []\n    a.append(a)\n    return a",
    "writes_before": "import os\nfor fd in range(3, 20):\n    try: os.write(fd, b'x')\n    except OSError: pass\ndef f(): return 1",
    "writes_a_second_value": (
        "import os, struct, atexit\ndef f():\n    for fd in range(3, 20):\n        try: os.write(fd, struct.pack('<Q', 1) + b'1')\n"
        "        except OSError: pass\n    return 1"
    ),
    "closes_the_channel": "import os\nos.closerange(3, 100)\ndef f(): return 1",
    "fork_returns_twice": "import os\ndef f():\n    pid = os.fork()\n    if pid: os.waitpid(pid, 0)\n    return 1",
}


@pytest.mark.parametrize("level", LEVELS)
def test_what_did_not_return_exactly_once_is_a_runtime_error(level):
    done = run_jobs(*(call_job(code, "f") for code in NOT_RETURNED.values()), level=level)
    statuses = {name: (one[0].status, one[0].value) for name, one in zip(NOT_RETURNED, done, strict=True)}
    assert statuses == dict.fromkeys(NOT_RETURNED, (Status.RUNTIME_ERROR, None))


def test_an_unreadable_value_is_named_by_its_type():
    (done,) = run(call_job("class Fraction: pass\ndef f(): return Fraction()", "f"))
    assert "Fraction" in done.detail


def test_a_subclass_is_read_through_its_base():
    code = "class L(list):\n    __eq__ = lambda s, o: True\n    __iter__ = lambda s: iter([9])\ndef f(): return L([1])"
    assert _values(call_job(code, "f")) == [[1]]
