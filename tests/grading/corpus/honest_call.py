"""Honest programs that are called: functions and `Solution` classes in the forms that models write."""

from __future__ import annotations

from textwrap import dedent

from code_rl.grading.problem import CallTest, Compare, Problem
from tests.grading.corpus.entries import PASSED, Entry, total_problem

TOTAL = total_problem()
PAIRS = Problem(
    "pairs",
    "pairs",
    (CallTest(({"a": (1, 2), "b": (3,)},), [("a", 3), ("b", 3)]), CallTest(({},), [])),
    fn_name="pairs",
    compare=Compare("lcb"),
)
SPLIT = Problem("halves", "halves", (CallTest(([4, 1, 3],), (1, 4)), CallTest(([9],), (9, 9))), fn_name="halves")

_TOTAL_PROGRAMS = {
    "function": "def total(numbers):\n    return sum(numbers)",
    "lambda": "total = lambda numbers: sum(numbers)",
    "solution_class": "class Solution:\n    def total(self, numbers):\n        return sum(numbers)",
    "solution_with_unimported_typing_names": "from typing import *\nclass Solution:\n    def total(self, numbers: List[int]) -> int:\n        return sum(numbers)",
    "solution_with_init_and_state": """
        class Solution:
            def __init__(self):
                self.memo = {}
            def total(self, numbers):
                self.memo["sum"] = sum(numbers)
                return self.memo["sum"]
        """,
    "solution_static_method": "class Solution:\n    @staticmethod\n    def total(numbers):\n        return sum(numbers)",
    "solution_class_method": "class Solution:\n    @classmethod\n    def total(cls, numbers):\n        return sum(numbers)",
    "solution_inherits": "class Base:\n    def total(self, numbers):\n        return sum(numbers)\nclass Solution(Base):\n    pass",
    "guarded_demo_below": "def total(numbers):\n    return sum(numbers)\nif __name__ == '__main__':\n    print(total([1]))",
    "prints_while_importing": "print('loading')\ndef total(numbers):\n    return sum(numbers)\nprint(total([1, 2]))",
    "prints_inside": "def total(numbers):\n    print('debug', numbers)\n    return sum(numbers)",
    "future_import": "from __future__ import annotations\ndef total(numbers: list[Unknown]) -> int:\n    return sum(numbers)",
    "recursion_with_cache": """
        import sys
        from functools import cache
        sys.setrecursionlimit(10**6)
        def total(numbers):
            @cache
            def upto(index):
                return 0 if index == 0 else upto(index - 1) + numbers[index - 1]
            return upto(len(numbers))
        """,
    "global_memo_between_calls": "seen = []\ndef total(numbers):\n    seen.append(1)\n    return sum(numbers)",
    "mutates_its_argument": "def total(numbers):\n    answer = 0\n    while numbers:\n        answer += numbers.pop()\n    return answer",
    "int_subclass_from_enum": "import enum\ndef total(numbers):\n    Kind = enum.IntEnum('Kind', [('X', sum(numbers))])\n    return Kind.X",
    "partial_object": "from functools import partial\ntotal = partial(lambda start, numbers: sum(numbers, start), 0)",
    "callable_instance": "class Adder:\n    def __call__(self, numbers):\n        return sum(numbers)\ntotal = Adder()",
    "catches_everything_inside": "def total(numbers):\n    try:\n        raise KeyError\n    except BaseException:\n        return sum(numbers)",
    "swallowed_exit_inside": "import sys\ndef total(numbers):\n    try:\n        sys.exit(3)\n    except SystemExit:\n        return sum(numbers)",
    "main_reads_stdin_at_import_guarded": "def total(numbers):\n    return sum(numbers)\ndef main():\n    print(total(list(map(int, input().split()))))\nif __name__ == '__main__':\n    main()",
    "thread_in_function": """
        import threading
        def total(numbers):
            box = []
            thread = threading.Thread(target=lambda: box.append(sum(numbers)))
            thread.start()
            thread.join()
            return box[0]
        """,
    "dataclass_inside": """
        from dataclasses import dataclass
        @dataclass
        class Acc:
            value: int = 0
        def total(numbers):
            acc = Acc()
            for number in numbers:
                acc.value += number
            return acc.value
        """,
    "asyncio_run_inside": "import asyncio\nasync def go(numbers):\n    return sum(numbers)\ndef total(numbers):\n    return asyncio.run(go(numbers))",
    "deque_and_heapq": "import heapq\nfrom collections import deque\ndef total(numbers):\n    heapq.heapify(numbers)\n    return sum(deque(numbers))",
    "numpy_inside": "import numpy as np\ndef total(numbers):\n    return int(np.array(numbers, dtype=np.int64).sum())",
    "sortedcontainers_inside": "from sortedcontainers import SortedDict, SortedList\ndef total(numbers):\n    return sum(SortedList(numbers))",
    "nonlocal_and_closures": "def total(numbers):\n    acc = 0\n    def add(x):\n        nonlocal acc\n        acc += x\n    list(map(add, numbers))\n    return acc",
}

_OTHER_PROGRAMS = {
    "lists_for_tuples": ("def pairs(table):\n    return [[key, sum(value)] for key, value in table.items()]", PAIRS),
    "named_tuples": (
        "from collections import namedtuple\nPair = namedtuple('Pair', 'key total')\ndef pairs(table):\n    return [Pair(k, sum(v)) for k, v in table.items()]",
        PAIRS,
    ),
    "ordered_dict_in_and_out": (
        "from collections import OrderedDict\ndef pairs(table):\n    return list(OrderedDict((k, sum(v)) for k, v in table.items()).items())",
        PAIRS,
    ),
    "tuple_result": ("def halves(items):\n    return min(items), max(items)", SPLIT),
    "sort_in_place_result": ("def halves(items):\n    items.sort()\n    return items[0], items[-1]", SPLIT),
}

HONEST_CALL: tuple[Entry, ...] = (
    *(Entry(f"call_{name}", "call idiom", dedent(code), TOTAL, PASSED) for name, code in _TOTAL_PROGRAMS.items()),
    *(
        Entry(f"call_{name}", "call idiom", dedent(code), problem, PASSED)
        for name, (code, problem) in _OTHER_PROGRAMS.items()
    ),
)
