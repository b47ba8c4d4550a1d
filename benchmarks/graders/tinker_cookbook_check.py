"""The cookbook's sandbox_check_correctness (commit 9dfcc3a) on a Sandbox Fusion server at SANDBOX_URL. In a folder of your choice:

git clone https://github.com/thinking-machines-lab/tinker-cookbook foreign/tinker-cookbook && git -C foreign/tinker-cookbook checkout 9dfcc3a
code-rl sandbox port=8080 &
code-rl audit grader=CLONE/benchmarks/graders/tinker_cookbook_check.py:grade python=.venv/bin/python confine=false

The function runs no program itself: its server does, so that it needs the network which `confine` takes away. Run the two commands where nothing else is
(`unshare --net --mount --pid --fork --mount-proc`, then `ip link set lo up`), since the server is the target of the attack.
"""

import asyncio
import sys
from typing import Any

sys.path.insert(0, "foreign/tinker-cookbook")

from tinker_cookbook.recipes.code_rl.code_grading import extract_code_from_model, sandbox_check_correctness

loop = asyncio.new_event_loop()  # its client keeps a session


def grade(problem: dict[str, Any]) -> float:
    code = extract_code_from_model(problem["completion"])
    if code is None:
        return 0.0
    metadata = {"func_name": problem["fn_name"]}
    tests = [{**test, "metadata": metadata} for test in problem["lcb_tests"]]
    passed, _ = loop.run_until_complete(sandbox_check_correctness(tests, code))
    return float(passed)
