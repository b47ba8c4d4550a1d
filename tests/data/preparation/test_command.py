"""The verb as a user meets it: refusals, early stops, reading back, and difficulty."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from code_rl.cli.main import main
from code_rl.data import open_dataset
from code_rl.data.builtin import BuiltinTrainSet
from code_rl.grading import CallTest, Problem, StdinTest
from code_rl.grading.native import write_problems
from code_rl.grading.values import MAX_DEPTH
from tests.data.preparation.prepared import prepared
from tests.grading.corpus.rooms import data_file
from tests.kinds import each_is
from tests.refusals import one_line


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A file of six sound problems."""
    path = tmp_path / "small.jsonl"
    write_problems(path, BuiltinTrainSet()[:6])
    return path


def test_lines_that_cannot_be_read_are_named_and_dropped(small: Path, tmp_path: Path) -> None:
    with small.open("a") as stream:
        stream.write("{\n[1]\n")
    dropped = prepared(tmp_path, small, "min_tests=1").dropped.values()
    unreadable = [row["detail"] for row in dropped if row["reason"] == "unreadable_row"]
    assert ["line 7" in unreadable[0], "line 8" in unreadable[1], len(unreadable)] == [True, True, 2]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["stop_after=polish"], "stop_after='polish'"),
        (["min_tests=0"], "min_tests=0"),
        (["decontaminate=nowhere.jsonl"], "nowhere.jsonl"),
        (["solved=keep"], "pass_rates"),
        (["pass_rates=nowhere"], "pass_rates=nowhere"),
        (["colour=red"], "colour"),
        (["containment=0.3"], "decontaminate="),
        (["decontaminate=,"], "decontaminate=,"),
    ],
)
def test_bad_settings_are_refused_in_one_line(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert main(["prepare", f"dataset={small}", f"out={tmp_path / 'out'}", *words]) == 2
    one_line(capsys, told)
    assert not (tmp_path / "out").exists()


def test_an_executor_that_cannot_be_had_is_refused_before_any_stage(small: Path, tmp_path: Path) -> None:
    assert main(["prepare", f"dataset={small}", f"out={tmp_path / 'out'}", "executor=somewhere"]) == 2
    assert not (tmp_path / "out" / "card.json").exists()


def test_a_folder_with_other_things_in_it_is_left_alone(small: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("ten years")
    assert main(["prepare", f"dataset={small}", f"out={tmp_path / 'out'}"]) == 2
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.txt"]


def test_the_end_counts_each_split(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = prepared(tmp_path, small, "mutants=0", "test_share=0.5").out
    count = {name: len((out / f"{name}.jsonl").read_text().splitlines()) for name in ("train", "test")}
    assert f"{count['train']} in train, {count['test']} in test" in capsys.readouterr().out


def test_files_of_the_users_in_the_folder_stay_and_those_of_another_format_go(small: Path, tmp_path: Path) -> None:
    out = prepared(tmp_path, small, "mutants=0", "format=jsonl.gz").out
    for name in ("train.log", "test.sh", "train.notes.md", "test.jsonl.gz"):
        (out / name).write_text("mine")
    prepared(tmp_path, small, "mutants=0")
    left = {path.name for path in out.iterdir() if path.name.startswith(("train", "test"))}
    assert left == {"train.jsonl", "train.log", "test.sh", "train.notes.md", "test.jsonl.gz"}


def test_a_finished_set_is_not_replaced_by_another_and_the_data_are_not_overwritten(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"out={tmp_path / 'out'}", "executor=embedded", "mutants=0"]
    assert main(["prepare", f"dataset={small}", *words]) == 0
    done = (tmp_path / "out" / "train.jsonl").read_bytes()
    other = shutil.copy(small, tmp_path / "other.jsonl")
    capsys.readouterr()
    for dataset, named in ((tmp_path / "out" / "train.jsonl", "train.jsonl"), (other, f"dataset={small}")):
        assert main(["prepare", f"dataset={dataset}", *words]) == 2
        one_line(capsys, named)
    assert (tmp_path / "out" / "train.jsonl").read_bytes() == done


def test_it_stops_after_the_stage_that_was_named(small: Path, tmp_path: Path) -> None:
    made = prepared(tmp_path, small, "stop_after=deduplicate")
    stages = [(stage["stage"], stage["in"], stage["out"]) for stage in made.card["stages"]]
    assert stages == [("normalise", 6, 6), ("filter", 6, 6), ("deduplicate", 6, 6)]
    assert not (made.out / "manifest.json").exists()


FILTERED = (
    ("Look at this board: ![board](http://x/y.png) and print the number of rooks.", "image"),
    ("Look at this board and print the number of rooks. <IMG src='board.png'>", "image"),
    ("This is an interactive problem. Guess the number that the judge thinks of.", "interactive"),
    ("English statement is not available for the problem. Please switch to Chinese.", "no_statement"),
    ("Statement: https://example.org/problems/17/statement", "no_statement"),
    ("The [statement](https://example.org/17).", "no_statement"),
    ("Add.", "too_short"),
    ("word " * 5000, "too_long"),
    ("You are given an image as a grid of pixels. Print how many of them are black.", ""),
    ("Best hand: a Flush is five cards of one suit. Print the name of the given hand.", ""),
    ("Find the nth bell number. https://example.org/bell-numbers/", ""),
)
"""Statements, and the reason for which a problem that has one is dropped (empty: it stays)."""


def test_a_filter_drops_for_its_own_reason(tmp_path: Path) -> None:
    tests = tuple(StdinTest(f"{n}\n", f"{n + 1}\n") for n in range(3))
    problems = [Problem(f"{n}", text, tests) for n, (text, _) in enumerate(FILTERED)]
    told = FILTERED[-1][0]
    deep: object = 1
    for _ in range(MAX_DEPTH):
        deep = [deep]
    problems += [
        Problem("few", told, tests[:1]),
        Problem("large", told, (StdinTest("x" * 2_000_000, "1"), *tests)),
        Problem("deep", told, (CallTest((deep,), deep),) * 2, fn_name="f"),
    ]
    found = prepared(tmp_path, problems, "stop_after=filter", "max_row_mb=1").reasons
    wanted = {f"{n}": reason for n, (_, reason) in enumerate(FILTERED) if reason}
    assert found == wanted | {"few": "few_tests", "large": "oversized"}


@pytest.mark.long
@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz"])
def test_a_prepared_folder_is_read_back_whole_with_its_cards(small: Path, tmp_path: Path, kind: str) -> None:
    out = prepared(tmp_path, small, "mutants=1", "unverified=keep", "test_share=0.4", f"format={kind}").out
    splits = {name: list(open_dataset(f"{out}:{name}")) for name in ("train", "test")}
    back = {problem.id: problem for problem in each_is(Problem, [*splits["train"], *splits["test"]])}
    before = {problem.id: problem for problem in BuiltinTrainSet()[:6]}
    assert back.keys() == before.keys()
    for name, problem in back.items():
        card = problem.meta["prepare"]
        assert (card["passed"], card["reference_cpu_s"]) == (["normalise", "filter", "deduplicate", "verify"], 0.25)
        meta = {**before[name].meta, "prepare": card}
        assert problem == dataclasses.replace(before[name], meta=meta)
    manifest = json.loads((out / "manifest.json").read_text())
    assert {name: split["problems"] for name, split in manifest["splits"].items()} == {
        name: len(found) for name, found in splits.items()
    }


def test_only_what_is_missing_from_a_ledger_is_decided_again(small: Path, tmp_path: Path) -> None:
    made = prepared(tmp_path, small, "mutants=1")
    first = made.problems
    log = made.out / "work" / "verify.jsonl"
    rows = log.read_text().splitlines(keepends=True)
    noted = [row.replace('"reference": 1', '"reference": 7') for row in rows[:3]]
    log.write_text("".join(noted) + rows[3][:20])
    again = prepared(tmp_path, small, "mutants=1").problems
    references = {name: problem.meta["prepare"].pop("reference") for name, problem in again.items()}
    assert sorted(references.values()) == [1, 1, 1, 7, 7, 7]
    for problem in first.values():
        assert problem.meta["prepare"].pop("reference") == 1
    assert again == first


@pytest.mark.long
def test_public_tests_and_those_with_the_longest_inputs_are_written(tmp_path: Path) -> None:
    tests = [StdinTest(f"{n}{' ' * n}\n", f"{n + 1}\n", public=n < 2) for n in range(9)]
    text = "Given a whole number n print the whole number that comes right after it."
    problem = Problem("p", text, tuple(tests), solutions=("print(int(input()) + 1)",))
    assert prepared(tmp_path, [problem], "max_tests=4").problems["p"].tests == (*tests[:2], *tests[7:])


def test_a_row_that_is_no_problem_is_counted_with_its_reason(small: Path, tmp_path: Path) -> None:
    with small.open("a") as stream:
        stream.write('{"id": "odd", "statement": "s", "tests": []}\n')
        stream.write(small.read_text().splitlines()[0] + "\n")
    stage = prepared(tmp_path, small, "stop_after=normalise").stage("normalise")
    assert (stage["in"], stage["out"], sum(stage["dropped"].values()), stage["dropped"]["repeated_id"]) == (8, 6, 2, 1)


def test_verdicts_of_an_evaluation_give_pass_rates_and_the_extremes_go(tmp_path: Path) -> None:
    always, never, some, unknown = BuiltinTrainSet()[:4]
    verdicts = [
        (always, "passed"), (never, "wrong_answer"), (some, "passed"), (some, "time_limit"), (some, "sandbox_error"),
    ]  # fmt: skip
    rows = ({"problem_id": problem.id, "verdict": verdict} for problem, verdict in verdicts)
    (tmp_path / "verdicts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("unverified=keep", f"pass_rates={tmp_path / 'verdicts.jsonl'}")
    made = prepared(tmp_path, [always, never, some, unknown], *words)
    cards = {name: problem.meta["prepare"] for name, problem in made.problems.items()}
    assert cards[some.id]["difficulty"] == {"pass_rate": 0.5, "samples": 2}
    assert "difficulty" not in cards[unknown.id]
    assert made.stage("difficulty")["dropped"] == {"always_solved": 1, "never_solved": 1}


@pytest.mark.parametrize("row", ["{}", '{"problem_id": "a", "verdict": "right"}', "nonsense"])
def test_rows_that_are_no_verdicts_are_refused_before_anything_runs(tmp_path: Path, row: str) -> None:
    (tmp_path / "rows.jsonl").write_text(row + "\n")
    for path in (tmp_path / "rows.jsonl", tmp_path / "none.jsonl"):
        words = ["dataset=builtin", f"out={tmp_path / 'out'}", f"pass_rates={path}"]
        assert main(["prepare", *words]) == 2


@pytest.mark.slow
def test_leetcode_problems_that_are_in_livecodebench_are_found_and_named(tmp_path: Path) -> None:
    rows = data_file("leetcode/LeetCodeDataset-v0.3.1-test.jsonl.gz")
    eval_problems = data_file("qwq_lcb_prompts/livecodebench_v5.jsonl")
    made = prepared(tmp_path, rows, f"decontaminate={eval_problems}", "stop_after=decontaminate")
    assert 110 <= made.stage("decontaminate")["dropped"]["contaminated"] <= 120
    first = next(row for row in made.dropped.values() if row["reason"] == "contaminated")
    assert first["id"] == "shortest-distance-after-road-addition-queries-i"
    assert first["detail"].startswith("3517 of ")


def test_a_set_of_which_nothing_is_left_is_not_offered_as_one_to_read_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepared(tmp_path, [Problem("p", "Print the sum of two integers.", (StdinTest("1 2", "3"),))])
    shown = capsys.readouterr().out
    assert "nothing is left" in shown
    assert "read it back" not in shown


def test_of_two_copies_the_one_with_a_solution_stays(tmp_path: Path) -> None:
    text = "Given a whole number n that is at most one million print the whole number that comes right after it, and nothing else."
    bare = Problem("bare", text, (StdinTest("1\n", "2\n"), StdinTest("2\n", "3\n")))
    solved = dataclasses.replace(bare, id="solved", solutions=("print(int(input()) + 1)",))
    assert prepared(tmp_path, [bare, solved], "stop_after=deduplicate").reasons == {"bare": "duplicate"}
