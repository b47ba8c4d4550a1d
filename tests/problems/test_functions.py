"""The short functions for small pretrained models: as written by their script, solved by their solutions, held out as said."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from code_rl.data.dataset import open_dataset, own_test_setting
from code_rl.grading.judging import judge_async
from code_rl.grading.problem import Problem
from code_rl.grading.sandbox.connect import connect_executor
from tests.kinds import each_is

ROOT = Path(__file__).parents[2]


def test_the_files_are_what_the_script_writes():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "write_functions.py", "check"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "all as written\n"), done.stderr


@pytest.mark.slow
def test_solutions_pass_and_no_constant_answer_does():
    async def go():
        executor = connect_executor("embedded")
        try:
            for split, every in (("train", 16), ("test", 4)):
                for problem in list(open_dataset(f"functions:{split}"))[::every]:
                    assert isinstance(problem, Problem)
                    right = await judge_async(problem, problem.solutions[0], executor)
                    assert right.kind == "passed", (problem.id, right)
                    for answer in {repr(test.expected) for test in problem.tests}:
                        wrong = await judge_async(problem, f"def {problem.fn_name}(x):\n    return {answer}", executor)
                        assert wrong.kind != "passed", (problem.id, answer)
        finally:
            await executor.aclose()

    asyncio.run(go())


def test_held_out_problems_have_other_names_constants_or_pairs():
    train, held_out = (each_is(Problem, open_dataset(f"functions:{split}")) for split in ("train", "test"))
    assert (len(train), len(held_out)) == (512, 128)
    assert own_test_setting("functions") == "functions:test"
    assert not {problem.id for problem in train} & {problem.id for problem in held_out}
    assert {problem.meta["split"] for problem in held_out} == {"constants", "compositions"}
    numbers = {int(part) for problem in train for part in str(problem.fn_name).split("_") if part.isdigit()}
    assert not {n for n in numbers if n % 7 == 3}
