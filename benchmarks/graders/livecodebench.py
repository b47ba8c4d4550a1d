"""LiveCodeBench's testing_util behind its own check_correctness (commit 28fef95). In a folder of your choice:

git clone https://github.com/LiveCodeBench/LiveCodeBench foreign/LiveCodeBench && git -C foreign/LiveCodeBench checkout 28fef95
python3.11 -m venv foreign/lcb && foreign/lcb/bin/pip install numpy tqdm
code-rl audit grader=CLONE/benchmarks/graders/livecodebench.py:grade python=foreign/lcb/bin/python
"""

import json
import sys

sys.path.insert(0, "foreign/LiveCodeBench")

from lcb_runner.evaluation.compute_code_generation_metrics import check_correctness


def grade(code, problem):
    results, _ = check_correctness({"input_output": json.dumps(problem["lcb_input_output"])}, code, 6, False)
    return float(bool(results) and all(result is True or result == 1 for result in results))
