"""evalplus's untrusted_check. In a folder of your choice:

python3.11 -m venv foreign/ep && foreign/ep/bin/pip install evalplus==0.3.1 sortedcontainers
code-rl audit grader=CLONE/benchmarks/graders/evalplus_check.py:grade takes=call python=foreign/ep/bin/python
"""

import ast
from typing import Any

from evalplus.eval import PASS, untrusted_check


def grade(code: str, problem: dict[str, Any]) -> float:
    tests: list[Any] = [ast.parse(line).body[0] for line in problem["asserts"]]
    tests = [stated.test for stated in tests]  # call == value, with tuples and keys as they are
    inputs = [[ast.literal_eval(argument) for argument in test.left.args] for test in tests]
    outputs = [ast.literal_eval(test.comparators[0]) for test in tests]
    times = [problem["time_limit_s"] / 4] * len(inputs)  # its limit is four times the reference's time
    status, _ = untrusted_check("humaneval", code, inputs, problem["fn_name"], outputs, 0, times, fast_check=True)
    return float(status == PASS)
