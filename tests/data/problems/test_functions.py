"""The short functions for small pretrained models: as written by their script, solved by their solutions, held out as said."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from code_rl.data import find_data, open_dataset
from code_rl.grading import CallTest, Problem
from tests.data.preparation.prepared import prepared
from tests.kinds import each_is
from tests.paths import ROOT


def test_the_files_are_what_the_script_writes():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "write_functions.py", "check"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "all as written\n"), done.stderr


def problems_of(split):
    return each_is(Problem, open_dataset(f"functions:{split}"))


@pytest.mark.slow
@pytest.mark.parametrize(("split", "every"), [("train", 16), ("test", 4), ("unseen", 1)])
def test_solutions_pass_and_no_constant_answer_does(court, split, every):
    for problem in problems_of(split)[::every]:
        answers = {repr(test.expected) for test in problem.tests}
        constant = (f"def {problem.fn_name}(x):\n    return {answer}" for answer in answers)
        right, *wrong = court.verdicts(problem, problem.solutions[0], *constant)
        assert right == "passed", problem.id
        assert "passed" not in wrong, problem.id


def test_held_out_problems_have_other_names_constants_or_pairs():
    train, held_out = map(problems_of, ("train", "test"))
    assert (len(train), len(held_out)) == (512, 128)
    (own,) = find_data("functions", None, evaluates=True).test.values()
    assert list(own) == held_out
    assert not {problem.id for problem in train} & {problem.id for problem in held_out}
    assert {problem.meta["split"] for problem in held_out} == {"constants", "compositions"}
    numbers = {int(part) for problem in train for part in str(problem.fn_name).split("_") if part.isdigit()}
    assert not {n for n in numbers if n % 7 == 3}


def test_the_unseen_problems_share_no_text_and_no_name_with_those_to_train_on(tmp_path):
    train, unseen = map(problems_of, ("train", "unseen"))
    shown = dataclasses.replace(unseen[0], id="other")
    words = ("similarity=1", "min_tests=1", "decontaminate=functions:unseen", "stop_after=decontaminate")
    found = prepared(tmp_path, [*train, shown], *words).reasons
    assert found == {"other": "contaminated"}
    assert not {problem.fn_name for problem in train} & {problem.fn_name for problem in unseen}


def test_no_solution_of_an_unseen_problem_solves_one_to_train_on():
    train = problems_of("train")
    for problem in problems_of("unseen"):
        space: dict[str, Any] = {}
        exec(problem.solutions[0], space)
        assert not [other.id for other in train if _solves(space[str(problem.fn_name)], other)], problem.id


def _solves(function: Callable[..., Any], problem: Problem) -> bool:
    try:
        return all(function(*test.args) == test.expected for test in problem.tests if isinstance(test, CallTest))
    except (TypeError, AttributeError, ValueError):
        return False
