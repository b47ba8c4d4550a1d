"""The whole path with the real embedded sandbox: programs of every fate, hostile ones, checkers, the verb, the course's names."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import replace

import pytest

pytest.importorskip("chz")

from code_rl.cli.main import main
from code_rl.grading import CallTest, Compare, Problem, StdinTest, judge_async
from code_rl.grading.native import write_problems
from code_rl.grading.sandbox import connect_executor
from tests.waiting import until


def write_programs(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


CHECKER = """
def check(input, output, expected):
    try:
        parts = [int(token) for token in output.split()]
    except ValueError:
        return "not numbers"
    return len(parts) == 2 and sum(parts) == int(input) or "sum is not " + input.strip()
"""
DOUBLE = Problem(
    "double", "", (StdinTest("3\n", "6\n", public=True), StdinTest("4\n", "8\n")), time_limit_s=1, memory_limit_mb=256
)
PATIENT = replace(DOUBLE, id="patient", time_limit_s=10)  # zeroing memory costs a loaded machine seconds of CPU time
SPLIT = Problem(
    "split", "", tuple(StdinTest(f"{n}\n", "") for n in range(5)), compare=Compare("checker", checker=CHECKER)
)
ADD = Problem("add", "", (CallTest((1,), 3, {"b": 2}), CallTest((2, 2), 4)), fn_name="add")
PAIR = Problem("pair", "", (CallTest((1,), (1, [2.5])),), fn_name="pair")
BIG = Problem("big", "", (StdinTest("6000", "7" * 6000),))
TEXT = Problem("text", "", (CallTest((), "a\x00\ud800\u2028"),), fn_name="text")

FATES = [
    (DOUBLE, "print(2 * int(input()))", "passed"),
    (DOUBLE, "import sys\nfor line in sys.stdin:\n    sys.stdout.buffer.write(b'%d' % (2 * int(line)))", "passed"),
    (DOUBLE, "print(6)", "wrong_answer"),
    (DOUBLE, "import os; os.write(1, b'\\xff\\xfe')", "wrong_answer"),
    (DOUBLE, "print(2 * int(input()))\nraise SystemExit(1)", "runtime_error"),
    (DOUBLE, "1 / 0", "runtime_error"),
    (DOUBLE, "def", "compile_error"),
    (DOUBLE, "while True: pass", "time_limit"),
    (PATIENT, "x = bytearray(10**10)", "memory_limit"),
    (PATIENT, "while True: print('x' * 10**6)", "output_limit"),
    (DOUBLE, None, "no_code"),
    (BIG, "print('7' * int(input()))", "passed"),
    (BIG, "print('7' * (int(input()) - 1) + '8')", "wrong_answer"),
    (SPLIT, "n = int(input())\nprint(1, n - 1)", "passed"),
    (SPLIT, "print('x')", "wrong_answer"),
    (ADD, "def add(a, b): return a + b", "passed"),
    (ADD, "class Solution:\n    def add(self, a, b): return float(a + b)", "passed"),
    (ADD, "def add(a, b): return a - b", "wrong_answer"),
    (ADD, "def plus(a, b): return a + b", "runtime_error"),
    (ADD, "class Any:\n    def __eq__(self, other): return True\ndef add(a, b): return Any()", "runtime_error"),
    (ADD, "class I(int):\n    def __eq__(self, other): return True\ndef add(a, b): return I(0)", "wrong_answer"),
    (ADD, "import os\ndef add(a, b): os._exit(0)", "runtime_error"),
    (ADD, "def add(a, b): raise SystemExit(0)", "runtime_error"),
    (ADD, "def add(a, b):\n    x = []\n    for _ in range(10**5): x = [x]\n    return x", "runtime_error"),
    (PAIR, "def pair(a): return [a, (2.5,)]", "passed"),
    (PAIR, "def pair(a): return {a, 2.5}", "wrong_answer"),
    (TEXT, "def text(): return 'a\\x00\\ud800\\u2028'", "passed"),
]


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """The rows that `code-rl judge` writes, with the embedded sandbox."""
    folder = tmp_path_factory.mktemp("judged")
    write_problems(folder / "p.jsonl.gz", [DOUBLE, PATIENT, SPLIT, ADD, PAIR, BIG, TEXT])
    programs = [{"problem_id": p.id, "program_id": str(i), "code": code} for i, (p, code, _) in enumerate(FATES)]
    write_programs(folder / "q.jsonl", programs)
    files = {"dataset": "p.jsonl.gz", "programs": "q.jsonl", "out": "v.jsonl"}
    assert main(["judge", "executor=embedded", *(f"{name}={folder / file}" for name, file in files.items())]) == 0
    return [json.loads(line) for line in (folder / "v.jsonl").read_text().splitlines()]


@pytest.mark.long
@pytest.mark.parametrize("index", range(len(FATES)))
def test_fates(rows, index):
    problem, code, fate = FATES[index]
    row = rows[index]
    assert (row["problem_id"], row["verdict"]) == (problem.id, fate), (code, row)
    assert (row["passed"] == len(problem.tests)) == (fate == "passed")


@pytest.mark.long
def test_no_program_can_put_a_hidden_input_into_its_verdict():
    secret = Problem("secret", "", (StdinTest("hunter2\n", "no"),), time_limit_s=0.5)
    programs = [
        "raise SyntaxError(input())",
        "raise ValueError(input())",
        "raise type(input(), (Exception,), {})()",
        "compile(input() + ' =', 'f', 'exec')",
        "import sys; sys.exit(input())",
        "import sys; print(input(), file=sys.stderr); 1 / 0",
        "import os; x = input(); os.abort()",
        "x = input()\nwhile True: print(x * 10**5)",
        "x = input()\nwhile True: pass",
        "x = input()\ny = bytearray(10**10)",
        "print(input())",
    ]

    async def judge_all():
        executor = connect_executor("embedded")
        try:
            return await asyncio.gather(*(judge_async(secret, code, executor) for code in programs))
        finally:
            await executor.aclose()

    for code, verdict in zip(programs, asyncio.run(judge_all()), strict=True):
        assert verdict.failure.public is False
        assert verdict.failure.message
        assert "hunter2" not in repr(verdict), code


@pytest.mark.long
def test_a_killed_run_leaves_whole_lines(tmp_path):
    write_problems(tmp_path / "p.jsonl", [DOUBLE])
    row = {"problem_id": "double", "code": "print(2 * int(input()))"}
    write_programs(tmp_path / "q.jsonl", ({**row, "program_id": str(number)} for number in range(20_000)))
    out = tmp_path / "v.jsonl"
    argv = [f"dataset={tmp_path / 'p.jsonl'}", f"programs={tmp_path / 'q.jsonl'}", f"out={out}", "executor=embedded"]
    command = [sys.executable, "-m", "code_rl.cli", "judge", *argv]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: process.poll() is not None or (out.exists() and out.stat().st_size > 1000))
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
    lines = out.read_text().splitlines(keepends=True)
    assert all(line.endswith("\n") for line in lines)
    ids = [int(json.loads(line)["program_id"]) for line in lines]
    assert len(set(ids)) == len(ids) > 0


def test_programs_that_cannot_be_judged_are_refused_before_any_is(tmp_path, capsys):
    calls = Problem("add", "", (CallTest((1, 2), 3),), fn_name="add")
    write_problems(tmp_path / "p.jsonl", [DOUBLE, calls])
    rows = [{"problem_id": name, "program_id": 1, "code": "int main() {}"} for name in ("double", "add")]
    write_programs(tmp_path / "q.jsonl", rows)
    words = [f"dataset={tmp_path / 'p.jsonl'}", f"programs={tmp_path / 'q.jsonl'}", f"out={tmp_path / 'v.jsonl'}"]
    assert main(["judge", *words, "language=cpp"]) == 2
    assert "'add'" in capsys.readouterr().err
    assert not (tmp_path / "v.jsonl").exists()


def test_a_second_run_says_what_was_judged_now_and_what_before(tmp_path, capsys):
    write_problems(tmp_path / "p.jsonl", [DOUBLE])
    words = ["judge", f"dataset={tmp_path / 'p.jsonl'}", f"programs={tmp_path / 'q.jsonl'}"]
    rows = [{"problem_id": "double", "program_id": i, "code": "print(2 * int(input()))"} for i in range(3)]
    for number, told in ((2, ""), (3, "2 judged before")):
        write_programs(tmp_path / "q.jsonl", rows[:number])
        assert main([*words, f"out={tmp_path / 'v.jsonl'}"]) == 0
        assert told in capsys.readouterr().out
    assert main([*words, f"out={tmp_path / 'v.jsonl.gz'}"]) == 2
    (tmp_path / "v.jsonl").write_text((tmp_path / "v.jsonl").read_text().replace("\n", "\nx\n", 1))
    assert main([*words, f"out={tmp_path / 'v.jsonl'}"]) == 2
    assert "line 2" in capsys.readouterr().err
