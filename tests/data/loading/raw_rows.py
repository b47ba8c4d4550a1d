"""Rows written after the documented schemas of the public sets: one of each shape, with a right and a wrong program."""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from dataclasses import dataclass
from typing import Any

from code_rl.data.sources import CODE_R1_SYSTEM, code_r1_question

SUM = "a, b = map(int, input().split())\nprint(a + b)"
PRODUCT = "a, b = map(int, input().split())\nprint(a * b)"
SUM_TESTS = [("1 2\n", "3\n"), ("5 7\n", "12\n")]
INPUTS, OUTPUTS = [given for given, _ in SUM_TESTS], [wanted for _, wanted in SUM_TESTS]
TOP = "def top(xs, k):\n    return sorted(xs)[-k:]"
BOTTOM = "def top(xs, k):\n    return sorted(xs)[:k]"
METHOD = "class Solution:\n    def top(self, xs: List[int], k: int) -> List[int]:\n        return sorted(xs)[-k:]"
METHOD_STARTER = "class Solution:\n    def top(self, xs: List[int], k: int) -> List[int]:\n        "


@dataclass(frozen=True)
class Sample:
    """A raw row, the problem that its reader makes, and two programs."""

    name: str
    row: dict[str, Any]
    right: str
    wrong: str


def problem_in(item: Any) -> Any:
    """The problem of a row that was read, which may still lack its tests."""
    return getattr(item, "problem", item)


def fenced(code: str) -> str:
    return f"Here it is:\n```python\n{code}\n```"


def packed(tests: Any) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


def prime_call(output: Any, inputs: Any = ([3, 1, 2], 2), code: str = TOP, name: str = "top") -> dict[str, Any]:
    test = {"type": "function_call", "fn_name": name, "input": list(inputs), "output": output}
    return {"problem": "The largest k.", "solutions": [fenced(code)], "tests": json.dumps([test, test])}


def taco(inputs: Any, outputs: Any, code: str = TOP, name: str | None = "top", **rest: Any) -> dict[str, Any]:
    tests = {"inputs": inputs, "outputs": outputs} | ({"fn_name": name} if name else {})
    return {"problem": "The largest k.", "solutions": json.dumps([code]), "tests": json.dumps(tests), **rest}


def apps(inputs: Any, outputs: Any, code: str = TOP, name: str | None = "top", **rest: Any) -> dict[str, Any]:
    tests = {"inputs": inputs, "outputs": outputs} | ({"fn_name": name} if name else {})
    row = {"question": "The largest k.", "solutions": json.dumps([code]), "input_output": json.dumps(tests)}
    return {"starter_code": "", "difficulty": "interview", **row, **rest}


def lcbv5(tests: list[dict[str, str]], **rest: Any) -> dict[str, Any]:
    return {"problem": "The largest k.", "starter_code": "", "tests": json.dumps(tests), "metadata": {}, **rest}


CHECK = """\
def check(candidate):
    assert candidate(xs = [3, 1, 2], k = 2) == [2, 3]
    assert candidate(xs = [5], k = 1) == [5]


check(Solution().top)"""
TABLES = """\
_inputs = [[[3, 1, 2], 2], [[5, 4], 1]]
_outputs = [[2, 3], [5]]
import math
def _near(a, b, tol=1e-5):
    return a == b

for i, o in zip(_inputs, _outputs):
    assert _near(top(*i), {})"""


def verl(truth: dict[str, Any], code: str, leetcode: bool = False) -> dict[str, Any]:
    """A row of ganler/code-r1-12k."""
    starter = METHOD_STARTER if leetcode else None
    return {
        "data_source": "code",
        "ability": "coding",
        "prompt": [
            {"role": "system", "content": CODE_R1_SYSTEM},
            {"role": "user", "content": code_r1_question("The largest k.", starter)},
        ],
        "reward_model": {"style": "rule", "ground_truth": json.dumps(truth)},
        "extra_info": {"split": "train", "index": 0, "reference": code, "dataset": "LeetCodeDataset"},
    }


FUNCTIONAL = [
    {"input": "[3, 1, 2]\n2", "output": "[2, 3]", "testtype": "functional"},
    {"input": "[5]\n1", "output": "[5]", "testtype": "functional"},
]
CALLS = [[[3, 1, 2], 2], [[5, 4], 1]]
SAMPLES = [
    Sample(
        "primeintellect stdin",
        {
            "problem": "Add.",
            "solutions": [fenced(SUM)],
            "tests": json.dumps(
                [{"type": "stdin_stdout", "fn_name": None, "input": i, "output": o} for i, o in SUM_TESTS]
            ),
        },
        SUM,
        PRODUCT,
    ),
    Sample("primeintellect call, result in a list", prime_call([[2, 3]]), TOP, BOTTOM),
    Sample("primeintellect call, bare result", prime_call([2, 3]), TOP, BOTTOM),
    Sample(
        "primeintellect call, a list of one that is the result",
        prime_call([3], ([3, 1, 2], 1)),
        TOP,
        "def top(xs, k):\n    return max(xs)",
    ),
    Sample(
        "primeintellect call, a list of one around the result",
        prime_call([3], ([3, 1, 2],), "def top(xs):\n    return max(xs)"),
        "def top(xs):\n    return max(xs)",
        "def top(xs):\n    return [max(xs)]",
    ),
    Sample("taco stdin", taco(INPUTS, OUTPUTS, SUM, None), SUM, PRODUCT),
    Sample("taco call 1: argument list, result in a list", taco(CALLS, [[[2, 3]], [[5]]]), TOP, BOTTOM),
    Sample("taco call 2: argument list, bare result", taco(CALLS, [[2, 3], [5]]), TOP, BOTTOM),
    Sample("taco call 3: argument list in a list", taco([[call] for call in CALLS], [[2, 3], [5]]), TOP, BOTTOM),
    Sample(
        "taco call 4: one argument, not in a list",
        taco([3, 4], [9, 16], "def square(x):\n    return x * x", "square"),
        "def square(x):\n    return x ** 2",
        "def square(x):\n    return x + x",
    ),
    Sample("taco call 5: text, an argument a line", taco(["[3, 1, 2]\n2", "[5, 4]\n1"], ["[2, 3]", "[5]"]), TOP, BOTTOM),
    Sample(
        "taco call 6: a method, texts quoted twice",
        taco(
            [['"ab c"'], ['"d"']],
            [2, 1],
            "class Solution:\n    def words(self, s: str) -> int:\n        return len(s.split())",
            "words",
        ),
        "class Solution:\n    def words(self, s: str) -> int:\n        return s.count(' ') + 1",
        "class Solution:\n    def words(self, s: str) -> int:\n        return len(s)",
    ),
    Sample(
        "taco call: integer keys that JSON made texts",
        taco([[{"1": 2}], [{"3": 4}]], [[{"2": 1}], [{"4": 3}]], "def flip(d):\n    return {v: k for k, v in d.items()}", "flip"),
        "def flip(d):\n    return dict(map(reversed, d.items()))",
        "def flip(d):\n    return d",
    ),
    Sample("lcbv5 stdin", lcbv5([{"input": i, "output": o, "testtype": "stdin"} for i, o in SUM_TESTS]), SUM, PRODUCT),
    Sample("lcbv5 functional, metadata a struct", lcbv5(FUNCTIONAL, metadata={"func_name": "top"}, starter_code=METHOD_STARTER), METHOD, BOTTOM),
    Sample("lcbv5 functional, metadata JSON text", lcbv5(FUNCTIONAL, metadata='{"func_name": "top"}', starter_code=METHOD_STARTER), METHOD, BOTTOM),
    Sample(
        "codeforces",
        {"problem": "Add.", "tests": json.dumps([{"input": i, "output": o} for i, o in SUM_TESTS])},
        SUM,
        PRODUCT,
    ),
    Sample(
        "codeforces in a concatenated set, absent columns None",
        {
            "problem": "Add.",
            "solutions": None,
            "starter_code": None,
            "metadata": None,
            "tests": json.dumps([{"input": i, "output": o} for i, o in SUM_TESTS]),
        },
        SUM,
        PRODUCT,
    ),
    Sample("verl stdin", verl({"inputs": INPUTS, "outputs": OUTPUTS}, SUM), SUM, PRODUCT),
    Sample("verl functional, LeetCode's check", verl({"functional": CHECK}, METHOD, leetcode=True), METHOD, METHOD.replace("-k:", ":k")),
    Sample("verl functional, TACO's tables", verl({"functional": TABLES.format("o")}, TOP), TOP, BOTTOM),
    Sample("verl functional, the first item of a table", verl({"functional": TABLES.replace("[2, 3], [5]", "[[2, 3]], [[5]]").format("o[0]")}, TOP), TOP, BOTTOM),
    Sample("apps stdin", apps(INPUTS, OUTPUTS, SUM, None, problem_id=7), SUM, PRODUCT),
    Sample("apps call", apps(CALLS, [[[2, 3]], [[5]]]), TOP, BOTTOM),
    Sample("taco, a method with starter code", apps(CALLS, [[2, 3], [5]], METHOD, starter_code=METHOD_STARTER, time_limit="2.0 seconds", source="leetcode"), METHOD, BOTTOM),
    Sample(
        "code_contests",
        {
            "name": "1_A. Sum",
            "description": "Add.",
            "public_tests": {"input": INPUTS[:1], "output": OUTPUTS[:1]},
            "private_tests": {"input": INPUTS[1:], "output": OUTPUTS[1:]},
            "generated_tests": {"input": [], "output": []},
            "solutions": {"language": [2, 3], "solution": ["int main() {}", SUM]},
            "incorrect_solutions": {"language": [3], "solution": [PRODUCT]},
            "time_limit": {"seconds": 1, "nanos": 500000000},
            "input_file": "",
            "output_file": "",
        },
        SUM,
        PRODUCT,
    ),
    Sample(
        "livecodebench",
        {
            "question_id": "1_A",
            "question_title": "Top",
            "question_content": "The largest k.",
            "platform": "leetcode",
            "contest_id": "c",
            "contest_date": "2024-08-03T00:00:00",
            "starter_code": METHOD_STARTER,
            "difficulty": "easy",
            "metadata": '{"func_name": "top"}',
            "public_test_cases": json.dumps(FUNCTIONAL[:1]),
            "private_test_cases": packed(FUNCTIONAL[1:]),
        },
        METHOD,
        BOTTOM,
    ),
    Sample(
        "acecode, answers with their pass rates",
        {
            "id": "oss_1",
            "question": "Write `top`, the largest k of xs, in ascending order.",
            "test_cases": ["assert top([3, 1, 2], 2) == [2, 3]", "assert top(xs=[5, 4], k=1) == [5]"],
            "inferences": [{"completion": BOTTOM, "pass_rate": 0.5}, {"completion": f"Sorted:\n```python\n{TOP}\n```", "pass_rate": 1.0}],
        },
        TOP,
        BOTTOM,
    ),
    Sample(
        "evolvecoder",
        {"id": "TACO_1", "question": "Write `top`.", "tests": ["assert top([3, 1, 2], 2) == [2, 3]", "assert top([5, 4], 1) == [5]"]},
        TOP,
        BOTTOM,
    ),
    Sample(
        "nemo-gym",
        {
            "responses_create_params": {"input": [{"role": "user", "content": "Add."}]},
            "verifier_metadata": {"unit_tests": {"inputs": INPUTS, "outputs": OUTPUTS}},
            "hash_id": "c69268",
            "dataset": "taco",
        },
        SUM,
        PRODUCT,
    ),
    Sample(
        "native",
        {"id": "n", "statement": "Add.", "tests": [{"kind": "stdin", "input": i, "expected": o} for i, o in SUM_TESTS]},
        SUM,
        PRODUCT,
    ),
]  # fmt: skip
