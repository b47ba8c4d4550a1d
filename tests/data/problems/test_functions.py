"""The short functions for small pretrained models: as written by their script, solved by their solutions, held out as said."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from code_rl.data.dataset import open_dataset, own_test_setting
from code_rl.data.preparation.copies import Decontaminator, evaluation_problems
from code_rl.grading import CallTest, Problem, judge_async
from code_rl.grading.sandbox import connect_executor
from tests.data.preparation.test_copies import entry
from tests.kinds import each_is
from tests.paths import ROOT


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
            for split, every in (("train", 16), ("test", 4), ("unseen", 1)):
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


def test_the_unseen_problems_share_no_text_and_no_name_with_those_to_train_on():
    train, unseen = (each_is(Problem, open_dataset(f"functions:{split}")) for split in ("train", "unseen"))
    overlap = Decontaminator(evaluation_problems("functions:unseen"), 0.35)
    assert [problem.id for problem in train if overlap.find(entry(problem.statement, name=problem.id))] == []
    assert overlap.find(entry(unseen[0].statement, name="other")) is not None
    assert not {problem.fn_name for problem in train} & {problem.fn_name for problem in unseen}


def test_no_solution_of_an_unseen_problem_solves_one_to_train_on():
    train, unseen = (each_is(Problem, open_dataset(f"functions:{split}")) for split in ("train", "unseen"))
    for problem in unseen:
        space: dict[str, Any] = {}
        exec(problem.solutions[0], space)
        assert not [other.id for other in train if _solves(space[str(problem.fn_name)], other)], problem.id


def _solves(function: Callable[..., Any], problem: Problem) -> bool:
    try:
        return all(function(*test.args) == test.expected for test in problem.tests if isinstance(test, CallTest))
    except (TypeError, AttributeError, ValueError):
        return False
