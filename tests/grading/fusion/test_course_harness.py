"""`TEST_CODE` and `TEST_UTIL` as the course's own client sends them: three files, a time limit, and the exit code as the verdict."""

from __future__ import annotations

import base64
import json

import httpx
import pytest

from tinker_utils.lcb import TEST_CODE, TEST_UTIL

ADD = {"inputs": ["1 2\n", "20 3\n"], "outputs": ["3\n", "23"]}
HALVES = {"inputs": ["1\n"], "outputs": ["0.5 0.25\nend\n"]}
CALL = {"inputs": ["[1, 2]\n3", "[]\n0"], "outputs": ["[1, 2, 3]", "[0]"], "fn_name": "push"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("tests", "program", "passes"),
    [
        (ADD, "print(sum(map(int, input().split())))", True),
        (ADD, "import sys\nprint(sum(map(int, sys.stdin.buffer.read().split())))\nsys.exit()", True),
        (ADD, "print(3)", False),
        (ADD, "import os\nos._exit(0)", False),
        (ADD, "print(open('test_cases.txt').read())", False),
        (ADD, "while True: pass", False),
        (ADD, "print(3", False),
        (HALVES, "print('.50  0.250')\nprint('end ')", True),
        (HALVES, "print('0.5 0.25')", False),
        (CALL, "class Solution:\n    def push(self, xs, x):\n        print('noise')\n        return xs + [x]", True),
        (CALL, "def push(xs, x):\n    return [*xs, x]", True),
        (CALL, "def push(xs, x):\n    return xs", False),
        (CALL, "def other(): ...", False),
    ],
)
def test_the_exit_code_is_the_verdict(server, tests, program, passes):
    files = {
        "test_cases.txt": json.dumps({"input_output": json.dumps(tests)}),
        "code.py": program,
        "testing_util.py": TEST_UTIL,
    }
    body = {
        "code": TEST_CODE % {"timeout": 2},
        "language": "python",
        "run_timeout": (2 + 1) * len(tests["inputs"]) + 5,
        "files": {name: base64.b64encode(text.encode()).decode() for name, text in files.items()},
    }
    answer = httpx.post(f"{server.url}/run_code", json=body, timeout=60).json()
    assert (answer["run_result"]["return_code"] == 0) is passes, answer
    assert (answer["status"] == "Success") is passes
