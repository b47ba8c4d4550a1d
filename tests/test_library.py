"""`import code_rl`: light, complete, plain and awaited. docs/library.md is run by tests/test_docs.py."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import code_rl
from code_rl import CallTest, DataError, Problem, StdinTest, load_problems
from code_rl.policy.rewards import fraction
from code_rl.training import read_metrics
from code_rl.util.concurrency import wait_for
from code_rl.util.door import names
from code_rl.util.errors import InputError
from tests.refusals import refused
from tests.training.pipeline_support import SMALL

PACKAGE = Path(code_rl.__file__).parent
SUM = Problem("sum", "Add.", (StdinTest("1 2\n", "3\n"), StdinTest("5 6\n", "11\n")))
NUMBER: Any = 1
ADDS = "print(sum(map(int, input().split())))"


def in_a_fresh_interpreter(code: str) -> str:
    program = [sys.executable, "-c", code]
    return subprocess.run(program, capture_output=True, text=True, timeout=60, check=True, cwd=PACKAGE.parent).stdout


def test_the_import_loads_nothing_but_itself():
    code = "import sys; before = set(sys.modules); import code_rl; print(*(m for m in sys.modules if m not in before))"
    loaded = {
        name for name in in_a_fresh_interpreter(code).split() if name.partition(".")[0] not in sys.stdlib_module_names
    }
    assert loaded == {"code_rl", "code_rl.util", "code_rl.util.door", "code_rl.util.version"}


def test_judging_needs_nothing_of_the_extras():
    code = "import sys, code_rl; code_rl.judge, code_rl.Problem, code_rl.Repair; print({'torch', 'tinker', 'transformers', 'chz', 'rich', 'jinja2', 'numpy'} & set(sys.modules))"
    assert in_a_fresh_interpreter(code).strip() == "set()"


def test_every_name_that_is_listed_is_there():
    assert set(code_rl.__all__) <= set(dir(code_rl))
    for name in set(code_rl.__all__) - {"__version__"}:
        assert getattr(code_rl, name).__name__ == name
    with refused("jugde", kind=AttributeError):
        getattr(code_rl, "jugde")  # noqa: B009 - no checker knows it


def test_type_checkers_see_the_names_that_are_listed():
    assert sorted([*names("code_rl"), "__version__"]) == sorted(code_rl.__all__)


def test_judge_works_in_a_script_and_where_a_loop_runs():
    assert code_rl.judge(SUM, ADDS).correct

    async def cell() -> None:
        assert code_rl.judge(SUM, ADDS).correct
        assert (await code_rl.judge_async(SUM, "print(3)")).failure.test == 1

    asyncio.run(cell())


@pytest.mark.parametrize(
    ("problem", "code", "named"),
    [
        (SUM, 5, "code=5"),
        ("sum", ADDS, "problem='sum'"),
        (replace(SUM, tests=()), "", "tests"),
        (replace(SUM, tests=StdinTest("", "")), ADDS, "tests="),  # type: ignore[arg-type]
        (replace(SUM, tests=("1",)), ADDS, "tests"),  # type: ignore[arg-type]
        (replace(SUM, tests=(StdinTest("", NUMBER),)), ADDS, "tests"),
        (replace(SUM, compare="contest"), ADDS, "compare="),  # type: ignore[arg-type]
        (replace(SUM, time_limit_s=0), ADDS, "time_limit_s"),
        (replace(SUM, time_limit_s="2"), ADDS, "time_limit_s"),  # type: ignore[arg-type]
        (replace(SUM, memory_limit_mb=-5), ADDS, "memory_limit_mb"),
        (replace(SUM, statement=None), ADDS, "statement"),
    ],
)
def test_judge_says_what_it_cannot_take(problem, code, named):
    with refused(named, kind=DataError):
        code_rl.judge(problem, code)


def test_judge_passes_its_settings_on():
    slow = Problem("slow", "", (StdinTest("", ""),), time_limit_s=30.0)
    assert code_rl.judge(slow, "while True: pass", cpu_limit_s=0.2).kind == "time_limit"
    each = Problem("each", "", (CallTest((1,), 2), CallTest((2,), 2), CallTest((3,), 3)), fn_name="same")
    assert code_rl.judge(each, "def same(x): return x", all_tests=True).passed == 2


def test_interrupting_a_call_in_a_notebook_cancels_it():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background job lacks
    ended = []

    async def endless() -> None:
        try:
            await asyncio.sleep(0.2)
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def cell() -> None:
        with pytest.raises(KeyboardInterrupt):
            wait_for(endless())

    loop = asyncio.new_event_loop()  # as a notebook's: SIGINT is Python's own
    try:
        loop.run_until_complete(cell())
    finally:
        loop.close()
        signal.signal(signal.SIGINT, before)
    assert ended


def test_load_problems_takes_the_words_of_dataset(tmp_path, monkeypatch):
    monkeypatch.setenv("CODE_RL_CACHE", str(tmp_path / "cache"))
    rows = [
        {"id": f"p{n}", "statement": "?", "tests": [{"kind": "stdin", "input": f"{n}", "expected": "1"}]}
        for n in range(5)
    ]
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [problem.id for problem in code_rl.load_problems(path)] == ["p0", "p1", "p2", "p3", "p4"]
    some = [problem.id for problem in code_rl.load_problems(str(path), limit=2)]
    assert len(some) == 2
    assert some == [problem.id for problem in code_rl.load_problems(path, limit=2)]
    with refused("'deepcoder'"):
        code_rl.load_problems("deepcodr")
    with refused("limit="):
        code_rl.load_problems("builtin", limit=0)


def test_a_table_without_pandas_is_refused_by_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with refused("pandas"):
        code_rl.TrainingResult(Path("run"), [{"step": 0}]).frame()


@pytest.mark.slow
def test_a_run_shows_itself_in_a_line_however_long_it_was():
    run = code_rl.TrainingResult(Path("run"), [{"step": step} for step in range(1000)])
    assert "run" in repr(run)
    assert len(repr(run)) < 100


def test_a_notebook_shows_an_error_in_one_line_without_keys(monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "not-for-the-notebook")
    error = code_rl.ConfigError("seed=x\nis no number: not-for-the-notebook")
    error.add_note("choose another")
    assert error._render_traceback_() == ["ConfigError: seed=x is no number: ***; choose another"]


@pytest.mark.long
def test_an_evaluation_shows_its_progress_without_a_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("code_rl.util.progress.LINE_EVERY_S", 0.0)
    code_rl.evaluate(load_problems("builtin", limit=4), backend="embedded", max_tokens=8, eval_samples=1)
    assert "of 8" in capsys.readouterr().out


def test_a_run_that_is_cancelled_goes_on_when_it_is_trained_again(tmp_path):
    given = {**SMALL, "max_steps": 3, "save_every": 1, "log_path": tmp_path / "run"}

    async def cell() -> None:
        training = asyncio.create_task(code_rl.train_async(**given))
        while not training.done() and len(read_metrics(tmp_path / "run")) < 1:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        training.cancel()
        with pytest.raises(asyncio.CancelledError):
            await training

    asyncio.run(cell())
    assert len(read_metrics(tmp_path / "run")) < 3
    resumed = code_rl.train(log_path=tmp_path / "run")
    assert resumed.log_path == tmp_path / "run"
    assert [record["step"] for record in resumed.metrics] == [0, 1, 2]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_step": 3}, "did you mean 'max_steps'"),
        ({"max_steps": "ten"}, "max_steps='ten' is not a whole number"),
        ({"max_steps": [1]}, "Expected 'max_steps' to be int"),
        ({"advantage": "nowhere:mine"}, "advantage=nowhere:mine cannot be loaded"),
        ({"dry_run": True}, "dry_run=true trains nothing"),
    ],
)
def test_a_mistake_in_the_settings_is_said_before_anything_is_written(tmp_path, settings, message):
    with refused(message):
        code_rl.train(log_path=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_a_part_that_a_notebook_defines_is_found_by_name():
    part = "def median(rewards): return [each - 1.0 for each in rewards]"
    used = "from code_rl.training.algorithm.advantages import get_estimator; print(get_estimator('__main__:median')([2.0]))"
    assert in_a_fresh_interpreter(f"{part}\n{used}").strip() == "[1.0]"


@pytest.mark.parametrize(
    ("problems", "given", "named"),
    [
        ([SUM], {"learning_rate": 1e-3, "model_name": "tiny"}, "learning_rate="),
        ([SUM], {"checkpoint": "nowhere"}, "checkpoint=nowhere"),
        ([SUM], {"policy": None}, "policy="),
        (SUM, {"model_name": "tiny", "backend": "embedded"}, "problem"),
        ([], {"model_name": "tiny", "backend": "embedded"}, "'test'"),
    ],
)
def test_an_evaluation_refuses_what_would_have_no_effect_or_no_problems(problems, given, named):
    with refused(named, kind=InputError):
        code_rl.evaluate(problems, **given)


def test_an_evaluation_of_a_policy_takes_it_as_it_is():
    policy: Any = object()
    with refused("backend=", "policy="):
        asyncio.run(code_rl.evaluate_async([SUM], policy=policy, backend="embedded"))


@pytest.mark.parametrize(
    ("word", "ours"),
    [("output_dir", "log_path"), ("wandb_project", "log_to=wandb"), ("num_generations", "group_size")],
)
def test_words_of_other_tools_are_understood(word, ours):
    with refused(ours):
        code_rl.train(**{word: "1"})


class Halves(code_rl.Single):
    """An environment that is made by its user."""


@pytest.mark.long
def test_objects_train_where_names_do_and_a_resume_asks_for_those_that_have_none(tmp_path, capsys, monkeypatch):
    problems = list(load_problems("builtin", limit=8))
    loss = code_rl.Loss("mine", lambda ops, logprobs, inputs, settings: -inputs["advantages"] * logprobs, {})
    given = {
        "reward": lambda trajectory: float(trajectory.verdict.passed),
        "advantage": lambda rewards: [reward - max(rewards) / 2 for reward in rewards],
        "loss": loss,
        "environment": code_rl.Repair(max_turns=2),
        "dataset": problems,
        "test_dataset": problems[:2],
    }
    rest = {"backend": "embedded", "executor": "embedded", "batch_size": 8, "group_size": 2, "eval_samples": 2}
    small = {"max_tokens": 24, "threads": 1, "isolation": "none", **rest}
    run = code_rl.train(log_path=tmp_path / "run", max_steps=2.0, **given, **small)
    said = capsys.readouterr().out
    assert said.count("give them to code_rl.train again") == 1
    assert [row["step"] for row in run.metrics] == [-1, 0, 1]
    assert list(run.frame().index) == [-1, 0, 1]
    assert code_rl.report(run, browse=False).is_file()
    monkeypatch.setattr("code_rl.util.registry._given", {})  # as in a new process
    again = code_rl.train(log_path=tmp_path / "run", max_steps=3, **given)
    assert again.metrics[-1]["step"] == 2
    monkeypatch.setattr("code_rl.util.registry._given", {})
    with refused("reward="):
        code_rl.train(log_path=tmp_path / "run", max_steps=4)


@pytest.mark.long
def test_a_run_ends_with_the_call_that_goes_on_which_keeps_its_own_object_whatever_was_given_since(
    tmp_path, capsys, monkeypatch
):
    (script := tmp_path / "script.py").write_text("")
    monkeypatch.setattr(sys, "argv", [str(script)])
    log_path = tmp_path / "it's run"
    settings: dict[str, Any] = {**SMALL, "max_steps": 1, "save_every": 1, "eval_every": -1, "format_coef": 0}
    code_rl.train(log_path=log_path, reward=lambda trajectory: 1.0, **settings)
    said = capsys.readouterr().out
    assert "script.py" not in said
    call = said.partition("to go on from here: ")[2].partition("\n")[0]
    assert call == f"code_rl.train(log_path={str(log_path)!r}, max_steps=2)"
    assert "code_rl.train(model_name='" in said
    code_rl.train(log_path=tmp_path / "second", reward=lambda trajectory: -7.0, **settings)
    resumed = code_rl.train(log_path=log_path, max_steps=2)
    assert [record["mean_reward"] for record in resumed.metrics] == [1.0, 1.0]


@pytest.mark.long
def test_a_resume_may_leave_out_the_evaluations_and_objects_that_can_be_imported(tmp_path):
    settings: dict[str, Any] = {**SMALL, "max_steps": 1, "eval_every": 0, "eval_limit": 1, "eval_samples": 1}
    code_rl.train(log_path=tmp_path, reward=fraction, environment=Halves, **settings)
    named = json.loads((tmp_path / "config.json").read_text())
    assert named["reward"] == "code_rl.policy.rewards:fraction"
    assert named["environment"] == f"{__name__}:Halves"
    resumed = code_rl.train(log_path=tmp_path, max_steps=2, eval_every=-1)
    assert [record["step"] for record in resumed.metrics] == [-1, 0, 1]
