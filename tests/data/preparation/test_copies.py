"""Copies within the data and of evaluation sets: runs of eight words, and nothing else."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from code_rl.cli.main import main
from code_rl.grading import Problem, StdinTest
from tests.data.preparation.prepared import prepared
from tests.grading.corpus.rooms import data_file
from tests.refusals import one_line

FIELD = (
    "A farmer has n fields in a row and the i-th of them yields a sack of grain for each of its hedges. Neighbouring "
    "fields must not be harvested in one year. Print the largest number of sacks that can be harvested. The first line "
    "holds n, the second line the yields, and no yield is above {most}."
)
TRAIN = (
    "A signalman sees trains that leave his station and notes the minute of each on a card. Two trains may not leave "
    "within {most} minutes. Tell him how many cards he must tear up, where he starts from the first one of the day."
)
FRAME = "You are an expert programmer. Read the problem below with care and answer with a single block of Python code."
LEAK = FIELD.format(most=9)
ANY = ("min_tests=1", "min_statement_chars=0")


def problem(name: str, statement: str, *cases: tuple[str, str]) -> Problem:
    return Problem(name, statement, tuple(StdinTest(given, wanted) for given, wanted in cases or (("1", "1"),)))


def kept(folder: Path, *problems: Problem | str) -> list[bool]:
    """Whether each problem, or statement, is kept beside those before it."""
    made = [one if isinstance(one, Problem) else problem(f"p{n}", one) for n, one in enumerate(problems)]
    found = prepared(folder, made, *ANY, "stop_after=deduplicate").reasons
    assert {*found.values()} <= {"duplicate"}
    return [one.id not in found for one in made]


def exam(text: str, name: str = "e", **more: str) -> dict[str, str]:
    return {"id": name, "statement": text, **more}


def found(
    folder: Path, problems: str | Mapping[str, str], *exams: Mapping[str, Any], times: int = 1, share: float = 0.35
) -> dict[str, str]:
    """What each problem, given by id and statement, overlaps with among an evaluation set's rows."""
    texts = {"p": problems} if isinstance(problems, str) else problems
    exam_file = folder / "exams.jsonl"
    exam_file.write_text("".join(json.dumps(row) + "\n" for row in exams))
    sets = ",".join([str(exam_file)] * times)
    words = (*ANY, "similarity=1", f"decontaminate={sets}", f"containment={share}", "stop_after=decontaminate")
    # Other answers to one input, so that none is a duplicate.
    problems_of = [problem(name, text, ("1", f"{n}")) for n, (name, text) in enumerate(texts.items())]
    made = prepared(folder, problems_of, *words)
    assert {*made.reasons.values()} <= {"contaminated"}
    return {name: row["detail"].replace(str(exam_file), "SET") for name, row in made.dropped.items()}


def edited(text: str, share: float, seed: int) -> str:
    rng = random.Random(seed)
    return " ".join(word if rng.random() >= share else "other" for word in text.split())


LAYOUTS: Sequence[Callable[[str], str]] = (
    str.upper,
    lambda text: text.replace(" ", "\n"),
    lambda text: f"**{text.replace('row', '_row_')}**",
    lambda text: text.replace(",", " –").replace(". ", "!\n> "),
)


def test_layout_hides_no_copy(tmp_path: Path) -> None:
    texts = [lay(LEAK) for lay in LAYOUTS]
    assert kept(tmp_path / "kept", LEAK, *texts) == [True, *[False] * len(texts)]
    said = found(tmp_path, {f"p{n}": text for n, text in enumerate(texts)}, exam(LEAK))
    assert [*said.values()] == ["e of SET: shared text, 100% of its text"] * len(texts)


@pytest.mark.parametrize(
    ("texts", "keeps"),
    [
        (["Größe von X2: 数を数える", "größe VON x2, 数を数える!", "Größe von X3: 数を数える"], [True, False, True]),
        (["輸入整数，加一，乘二，減三，輸出其平方。", "輸入整数，加一，乘二，減三，輸出其立方。"], [True, True]),
        ([LEAK, f"Task for today.\n{LEAK}", TRAIN.format(most=9)], [True, False, True]),
        ([FIELD.format(most=2), FIELD.format(most=12)], [True, True]),
        (["Write a function that returns x plus 2.", "Write a function that returns x plus 12."], [True, True]),
        ([problem("a", LEAK, ("1", "2")), problem("b", LEAK, ("1", "3"))], [True, True]),
        ([*(f"{LEAK} The farm has the number {n}." for n in range(2000)), f"{LEAK} The farm has the number 1234."], [*[True] * 2000, False]),
    ],
    ids=["letters", "signs are words", "an edit", "a number", "a number in a short text", "two answers to one input", "thousands alike"],
)  # fmt: skip
def test_a_duplicate_has_the_words_and_numbers_of_an_earlier_problem(
    tmp_path: Path, texts: list[str | Problem], keeps: list[bool]
) -> None:
    assert kept(tmp_path, *texts) == keeps


def test_a_short_text_is_one_run(tmp_path: Path) -> None:
    texts = {
        "same": "Add two whole numbers, then stop!",
        "other": "Add three whole numbers, then stop!",
        "plus": "Write a function that returns x plus 2.",
    }
    exams = exam("add two whole numbers then stop"), exam("Write a function that returns x plus 12.", "f")
    assert found(tmp_path, texts, *exams).keys() == {"same"}


def test_a_leak_whose_words_are_edited_here_and_there_is_found(tmp_path: Path) -> None:
    text = f"{FIELD} {TRAIN}"
    texts = {f"{share}/{seed}": edited(text, share, seed) for share in (0.02, 0.03) for seed in range(20)}
    assert found(tmp_path, texts, exam(text)).keys() == texts.keys()


def test_seven_edited_copies_in_an_evaluation_set_do_not_hide_the_leak(tmp_path: Path) -> None:
    assert found(tmp_path, LEAK, *(exam(edited(LEAK, 0.05, seed), f"e{seed}") for seed in range(7)))


def test_a_share_of_exactly_the_threshold_is_an_overlap(tmp_path: Path) -> None:
    assert "shared text" in found(tmp_path, TRAIN, exam(TRAIN), share=1.0)["p"]


def test_naming_a_set_again_changes_nothing(tmp_path: Path) -> None:
    exams = exam(LEAK, "one"), exam(TRAIN.format(most=5), "two")
    (tmp_path / "again").mkdir()
    assert found(tmp_path / "again", LEAK, *exams, times=20) == found(tmp_path, LEAK, *exams)


def test_a_frame_that_many_evaluation_problems_share_is_no_overlap(tmp_path: Path) -> None:
    exams = [exam(f"{FRAME}\nProblem: {edited(TRAIN, 0.9, n)} {n}", f"e{n}") for n in range(9)]
    texts = {"framed": f"{FRAME}\nCount the letters of a word that is given on the first line.", "leak": LEAK}
    said = found(tmp_path, texts, *exams, exam(f"{FRAME}\n{LEAK}", "field"))
    assert {name: detail.partition(" ")[0] for name, detail in said.items()} == {"leak": "field"}


def test_an_equal_id_decides_where_any_run_is_shared_and_a_mere_number_is_none(tmp_path: Path) -> None:
    shares = f"{' '.join(LEAK.split()[:10])} has no hedges."
    texts = {"farm/7": shares, "7": shares, "a": "Another task altogether, which has no word in common with it."}
    exams = exam(LEAK, "Farm/7", question_id="7"), exam(f"{TRAIN} In the year of the red harvest.", "a")
    said = found(tmp_path, texts, *exams)
    assert said.keys() == {"farm/7"}
    assert "the same id" in said["farm/7"]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": LEAK},
        {"question": "Problem 3", "prompt": LEAK},
        {"prompt": [{"role": "system", "content": "Be terse."}, {"role": "user", "content": LEAK}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": LEAK}]}]},
        {"conversations": [{"from": "human", "value": LEAK}, {"from": "gpt", "value": TRAIN * 3}]},
        {"statement": LEAK, "tests": TRAIN * 3, "solution": TRAIN},
    ],
    ids=["text", "two fields", "chat", "parts", "an answer", "other fields"],
)
def test_an_evaluation_row_is_known_by_its_statement(row: dict[str, object], tmp_path: Path) -> None:
    assert found(tmp_path, LEAK, row)


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ([{"prompt": LEAK}, {"tests": LEAK}], ("1 of 2 rows", "exams.jsonl, line 2")),
        ([{"prompt": LEAK}, {"prompt": " "}], ("1 of 2 rows", "exams.jsonl, line 2")),
        ([{"prompt": LEAK}, {"prompt": None}], ("1 of 2 rows", "exams.jsonl, line 2")),
        ([{"prompt": 7}], ("1 of 1 rows", "exams.jsonl, line 1")),
        ([{"id": n, "prompt": FRAME, "task": f"{n}"} for n in range(9)], ("9 of 9 rows", "exams.jsonl")),
    ],
    ids=["no statement", "a blank one", "none", "no text", "one text for all"],
)
def test_an_evaluation_set_whose_rows_have_no_statements_of_their_own_is_refused_before_anything_runs(
    rows: list[dict[str, object]], named: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "exams.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [f"out={tmp_path / 'out'}", f"decontaminate={tmp_path / 'exams.jsonl'}"]
    assert main(["prepare", "dataset=builtin", *words]) == 2
    one_line(capsys, *named)
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_public_sets_overlap_in_117_problems_also_where_they_are_named_three_times(tmp_path: Path) -> None:
    rows, exams = data_file("leetcode/LeetCodeDataset-v0.3.1-test.jsonl.gz"), str(data_file("qwq_lcb_prompts"))
    words = (*ANY, "similarity=1", f"decontaminate={','.join([exams] * 3)}", "stop_after=decontaminate")
    assert prepared(tmp_path, rows, *words).stage("decontaminate")["dropped"] == {"contaminated": 117}
