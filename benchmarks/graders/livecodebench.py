"""LiveCodeBench's testing_util, called as its evaluation calls it for one problem (commit 28fef95). In a folder of your choice:

git clone https://github.com/LiveCodeBench/LiveCodeBench foreign/LiveCodeBench && git -C foreign/LiveCodeBench checkout 28fef95
python3.11 -m venv foreign/lcb && foreign/lcb/bin/pip install numpy tqdm
code-rl audit grader=CLONE/benchmarks/graders/livecodebench.py:grade python=foreign/lcb/bin/python
"""

import json
import sys
from typing import Any

sys.path.insert(0, "foreign/LiveCodeBench")

from lcb_runner.evaluation.compute_code_generation_metrics import evaluate_generations_by_problem


def grade(code: str, problem: dict[str, Any]) -> float:
    sample = {"input_output": json.dumps(problem["lcb_input_output"])}
    (results,), _ = evaluate_generations_by_problem(([code], sample, False, 6))
    return float(all(result > 0 for result in results))  # as its compute_metrics_from_results
