"""verl's prime_code, as default_compute_score calls it for apps, taco, codecontests and codeforces. In a folder of your choice:

python3.11 -m venv foreign/verl && foreign/verl/bin/pip install --no-deps verl==0.9.1 && foreign/verl/bin/pip install numpy sortedcontainers
code-rl audit grader=CLONE/benchmarks/graders/verl_prime_code.py:grade python=foreign/verl/bin/python
"""

import importlib.util
import pathlib
import sys
from typing import Any

spec: Any = importlib.util.find_spec("verl")  # without importing all of verl
folder = pathlib.Path(spec.submodule_search_locations[0])
sys.path.insert(0, str(folder / "utils" / "reward_score"))

import prime_code


def grade(code: str, problem: dict[str, Any]) -> float:
    score, _ = prime_code.compute_score(problem["completion"], problem["lcb_input_output"], continuous=True)
    return float(score)
