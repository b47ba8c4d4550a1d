"""The names that starter code of competition sites takes for granted.

LeetCode's and LiveCodeBench's starter code annotates with `List` and `Optional` and imports nothing; their judges import much of the standard library first.
In training only calls have them, and only names that shadow no builtin: a program that reads stdin writes its own imports. The benchmark
LiveCodeBench means more: its star imports stand before every program.
"""

CALL_PRELUDE = """\
from typing import *
from bisect import *
from collections import *
from functools import *
from heapq import *
from itertools import *
from math import ceil, comb, factorial, floor, gcd, inf, isqrt, log, log2, prod, sqrt
import bisect, collections, functools, heapq, itertools, math, operator, random, re, string, sys
"""

NODE_PRELUDE = """\
class ListNode:
    def __init__(self, val=0, next=None):
        self.val, self.next = val, next
class TreeNode:
    def __init__(self, val=0, left=None, right=None):
        self.val, self.left, self.right = val, left, right
"""

_BEFORE_BUILTINS = (
    "string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics", "itertools", "functools", "operator",
    "io", "sys", "json",
)  # fmt: skip

LCB_PRELUDE = (
    "".join(f"from {name} import *\n" for name in (*_BEFORE_BUILTINS, "builtins", "typing"))
    + f"import {', '.join(_BEFORE_BUILTINS)}\nsys.setrecursionlimit(50000)\n"
)
"""What LiveCodeBench has before every program: the names of these modules, a later one before an earlier, then the modules themselves."""
