"""`rejudge`: a run's stored programs under other tests, and where passing programs disagree."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import chz
import pytest

from code_rl.cli import main
from code_rl.commands.train import train_command
from code_rl.commands.verdict_files import PARTIAL
from code_rl.config import make_config
from code_rl.problems.builtin import BuiltinTrainSet
from code_rl.problems.native import write_problems
from code_rl.problems.problem import Problem
from code_rl.reports.overview import overview
from code_rl.reports.run import open_run
from code_rl.runs.directory import with_checksum
from tests.pipeline_support import small
from tests.preparation.test_strengthen import LAST, LOOP, MAX, SCAN, SORTED


@pytest.fixture(scope="module")
def strong(tmp_path_factory: pytest.TempPathFactory) -> list[Problem]:
    return list(BuiltinTrainSet(12))


@pytest.fixture(scope="module")
def weak(strong: list[Problem], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the same problems with one public test each: nearly all that compiles and echoes a sample passes."""
    folder = tmp_path_factory.mktemp("weak")
    write_problems(folder / "weak.jsonl", [dataclasses.replace(each, tests=each.tests[:1]) for each in strong])
    write_problems(folder / "strong.jsonl", strong)
    assert train_command(small(folder / "run", dataset=folder / "weak.jsonl", save_every=1, max_steps=4, batch_size=24)) == 0  # fmt: skip
    return folder


def rejudged(folder: Path, out: Path, dataset: str, *words: str) -> list[dict[str, Any]]:
    assert main(["rejudge", f"log_path={folder / 'run'}", f"dataset={dataset}", f"out={out}", *words]) == 0
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_unchanged_tests_change_nothing(weak: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = rejudged(weak, tmp_path / "out.jsonl", str(weak / "weak.jsonl"))
    assert len(rows) == 4 * 24
    assert not any(row["changed"] for row in rows)
    assert all(row["was"] == row["verdict"] and row["reward"] == row["reward_now"] for row in rows)
    assert "0 of " in capsys.readouterr().out


def test_stronger_tests_name_each_datum_its_step_and_the_last_sound_checkpoint(
    weak: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = rejudged(weak, tmp_path / "out.jsonl", str(weak / "strong.jsonl"))
    changed = [row for row in rows if row["changed"] and row["trained"]]
    assert changed
    assert all(row["was"] == "passed" and row["verdict"] != "passed" and row["reward_now"] < row["reward"] for row in changed)  # fmt: skip
    first, said = min(row["step"] for row in changed), capsys.readouterr().out
    one = changed[0]
    assert f"step {one['step']}, group {one['group']}, completion {one['completion']}: {one['problem_id']}, passed → {one['verdict']}" in said  # fmt: skip
    assert f"{len(changed)} of " in said
    assert ("no checkpoint lies before it" if first == 0 else f"fork={weak / 'run' / f'{first:06d}'}") in said


def test_the_line_to_go_on_with_leaves_no_test_out(
    weak: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = small(tmp_path / "run", dataset=weak / "strong.jsonl", max_tests=1, save_every=1, max_steps=2, batch_size=24)
    assert train_command(few) == 0
    capsys.readouterr()
    assert rejudged(tmp_path, tmp_path / "out.jsonl", str(weak / "strong.jsonl"))
    assert f"dataset={weak / 'strong.jsonl'} max_tests=None" in capsys.readouterr().out


def test_verdicts_from_before_are_not_judged_again_and_a_torn_one_is(
    weak: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = rejudged(weak, tmp_path / "out.jsonl", str(weak / "strong.jsonl"))
    cut = tmp_path / "cut.jsonl"
    lines = (tmp_path / "out.jsonl").read_text().splitlines(keepends=True)
    Path(f"{cut}{PARTIAL}").write_text("".join(lines[:20]) + lines[20][:30])
    capsys.readouterr()
    again = rejudged(weak, cut, str(weak / "strong.jsonl"))
    known = len({row["key"] for row in whole[:20]})
    assert f"{known} verdicts are here from before" in capsys.readouterr().out
    assert again == whole
    assert not Path(f"{cut}{PARTIAL}").exists()


def test_verdicts_of_another_judge_are_not_those_of_this_one(
    weak: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = rejudged(weak, tmp_path / "out.jsonl", str(weak / "strong.jsonl"))
    monkeypatch.setattr("code_rl.commands.rejudge.sources_digest", lambda *modules: "another")
    then = rejudged(weak, tmp_path / "out.jsonl", str(weak / "strong.jsonl"))
    assert {row["key"] for row in now}.isdisjoint(row["key"] for row in then)


def test_problems_that_are_not_among_those_given_are_named(
    weak: Path, strong: list[Problem], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    met = {row["problem_id"] for row in rejudged(weak, tmp_path / "all.jsonl", str(weak / "strong.jsonl"))}
    gone = sorted(met)[0]
    write_problems(tmp_path / "most.jsonl", [each for each in strong if each.id != gone])
    capsys.readouterr()
    rows = rejudged(weak, tmp_path / "out.jsonl", str(tmp_path / "most.jsonl"))
    assert f"1 problems of the run are not in dataset={tmp_path / 'most.jsonl'}, or have another statement there, and were not judged: {gone}" in capsys.readouterr().out  # fmt: skip
    assert {row["verdict"] for row in rows if row["problem_id"] == gone} == {None}


def test_problems_that_share_an_id_alone_are_not_judged(
    weak: Path, strong: list[Problem], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [each.id for each in strong]
    moved = [dataclasses.replace(each, id=name) for each, name in zip(strong, names[1:] + names[:1], strict=True)]
    write_problems(tmp_path / "moved.jsonl", moved)
    assert (
        main(["rejudge", f"log_path={weak / 'run'}", f"dataset={tmp_path / 'moved.jsonl'}", f"out={tmp_path / 'out'}"])
        == 2
    )
    assert "has none of the 12 problems of the run" in capsys.readouterr().err
    write_problems(tmp_path / "some.jsonl", [strong[0], *moved[:5]])
    rows = rejudged(weak, tmp_path / "out.jsonl", str(tmp_path / "some.jsonl"))
    assert {row["problem_id"] for row in rows if row["verdict"]} <= {names[0]}
    assert "or have another statement there" in capsys.readouterr().out


def test_another_problem_of_the_same_id_is_told_where_the_run_s_own_data_are_gone(
    strong: list[Problem], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", tmp_path / "gone.jsonl", {"max": [LOOP]})
    write_problems(tmp_path / "other.jsonl", [dataclasses.replace(strong[0], id="max")])
    words = [f"log_path={run}", f"dataset={tmp_path / 'other.jsonl'}", f"out={tmp_path / 'out'}"]
    assert main(["rejudge", *words]) == 2
    assert "has none of the 1 problems of the run" in capsys.readouterr().err


@pytest.mark.slow
def test_the_built_in_set_is_found_by_its_ids(weak: Path, tmp_path: Path) -> None:
    rows = rejudged(weak, tmp_path / "out.jsonl", "builtin")
    assert [row["verdict"] for row in rows] == [row["verdict"] for row in rejudged(weak, tmp_path / "same.jsonl", str(weak / "strong.jsonl"))]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["log_path={tmp}", "dataset=builtin"], "holds no run"),
        (["log_path={run}"], "give dataset="),
        (["log_path={run}", "dataset={tmp}/none.jsonl"], "none.jsonl"),
        (["log_path={run}", "dataset={tmp}/other.jsonl"], "has none of the 12 problems of the run"),
        (["log_path={run}", "dataset=builtin", "new_inputs=3"], "does nothing without strengthen=true"),
        (["log_path={run}", "strengthen=true", "out=x"], "does nothing with strengthen=true"),
    ],
)
def test_bad_input_is_one_clear_line(
    weak: Path, strong: list[Problem], tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    write_problems(tmp_path / "other.jsonl", [dataclasses.replace(strong[0], id="another")])
    assert main(["rejudge", *(word.format(run=weak / "run", tmp=tmp_path) for word in words)]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert said in lines[0]


def write_run(folder: Path, dataset: Path, programs: dict[str, list[str]]) -> Path:
    """A run of one step, of whose groups every program passed."""
    folder.mkdir()
    config = chz.asdict(make_config(small(folder, dataset=dataset)))
    kept = with_checksum({**config, "resolved": {"prompts": 4, "completions": 4, "data": {}}})
    (folder / "config.json").write_text(json.dumps(kept))
    common = {
        "reward": 1.0,
        "advantage": 0.0,
        "masked": None,
        "verdict": "passed",
        "passed": 5,
        "total": 5,
        "failure": None,
    }
    lines = [
        {
            "step": 0, "group": group, "attempt": 0, "policy_step": 0, "max_tokens": 64, "skipped": True, "problem_id": name, "statement": MAX.statement, "prompt_tokens": [1],
            "completions": [{**common, "text": f"```python\n{code}```", "truncated": False, "tokens": [1], "logprobs": [0.0]} for code in codes],
        }
        for group, (name, codes) in enumerate(programs.items())
    ]  # fmt: skip
    (folder / "rollouts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_problems_whose_passing_programs_disagree_are_named_in_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_problems(tmp_path / "max.jsonl", [MAX, dataclasses.replace(MAX, id="sound")])
    run = tmp_path / "run"
    write_run(run, tmp_path / "max.jsonl", {"max": [LOOP, SCAN, LAST], "sound": [LOOP, SCAN, SORTED]})
    assert not [one for one in overview(open_run(run))["findings"] if one["name"] == "weak-tests"]
    for _ in range(2):
        assert main(["rejudge", f"log_path={run}", "strengthen=true"]) == 0
        assert "passing programs disagree on 1 of 2 problems" in capsys.readouterr().out
    rows = {row["card"]["problem_id"]: row for row in map(json.loads, (run / "disagreements.jsonl").read_text().splitlines())}  # fmt: skip
    assert list(rows["max"]["card"]["dissenting"]) == ["step 0, group 0, completion 2"]
    assert rows["sound"]["keep"]
    found = [one for one in overview(open_run(run))["findings"] if one["name"] == "weak-tests"]
    assert "on 1 problems: max" in found[0]["evidence"]
