"""Copies within the data and of evaluation sets: runs of eight words, and nothing else."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from code_rl.data.preparation.copies import (
    MOST_SHARERS,
    Decontaminator,
    Deduplicator,
    EvaluationProblem,
    Pair,
    evaluation_problems,
)
from code_rl.data.preparation.normalise import open_source
from code_rl.data.preparation.workspace import ProblemSummary, summarize
from code_rl.data.sources import Skipped
from code_rl.grading import Problem, StdinTest
from code_rl.util.errors import DataError
from tests.grading.corpus.rooms import data_file
from tests.refusals import refused

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


def entry(statement: str, *cases: tuple[str, str], name: str = "p") -> ProblemSummary:
    tests = tuple(StdinTest(given, expected) for given, expected in cases or (("1", "1"),))
    return summarize(Problem(name, statement, tests), 0, b"")


def kept(*entries: ProblemSummary) -> list[bool]:
    found = Deduplicator(0.8)
    return [found.decide(one).keep for one in entries]


def exam(text: str, *ids: str) -> EvaluationProblem:
    return EvaluationProblem("set", ids[0] if ids else "e", text, ids)


def found(statement: str, *eval_problems: EvaluationProblem, name: str = "p") -> Pair | None:
    return Decontaminator(eval_problems, 0.35).find(entry(statement, name=name))


def edited(text: str, share: float, seed: int) -> str:
    rng = random.Random(seed)
    return " ".join(word if rng.random() >= share else "other" for word in text.split())


@pytest.mark.parametrize(
    "lay",
    [
        str.upper,
        lambda text: text.replace(" ", "\n"),
        lambda text: f"**{text.replace('row', '_row_')}**",
        lambda text: text.replace(",", " –").replace(". ", "!\n> "),
    ],
    ids=["case", "lines", "markup", "signs"],
)
def test_layout_hides_no_copy(lay: Callable[[str], str]) -> None:
    text = FIELD.format(most=9)
    assert kept(entry(text), entry(lay(text))) == [True, False]
    assert found(lay(text), exam(text)) == Pair("p", ("set",), "e", "shared text", 1.0)


def test_letters_of_any_alphabet_are_words() -> None:
    assert kept(
        entry("Größe von X2: 数を数える"), entry("größe VON x2, 数を数える!"), entry("Größe von X3: 数を数える")
    ) == [True, False, True]
    assert kept(entry("輸入整数，輸出其平方。"), entry("輸入整数，輸出其立方。")) == [True, True]


def test_a_short_text_is_one_run() -> None:
    assert found("Add two numbers!", exam("add two numbers"))
    assert found("Add three numbers!", exam("add two numbers")) is None


def test_a_copy_with_an_edit_is_a_duplicate_and_another_story_is_not() -> None:
    text = FIELD.format(most=9)
    assert kept(entry(text), entry(f"Task for today.\n{text}"), entry(TRAIN.format(most=9))) == [True, False, True]


@pytest.mark.parametrize("told", [FIELD.format(most="{n}"), "Write a function that returns x plus {n}."])
def test_another_number_makes_another_problem(told: str) -> None:
    texts = told.format(n=2), told.format(n=12)
    assert kept(*map(entry, texts)) == [True, True]


def test_short_texts_that_differ_in_a_number_do_not_overlap() -> None:
    one, other = "Write a function that returns x plus 2.", "Write a function that returns x plus 12."
    assert found(one, exam(other)) is None


def test_one_input_with_two_answers_makes_two_problems() -> None:
    text = FIELD.format(most=9)
    assert kept(entry(text, ("1", "2")), entry(text, ("1", "3"))) == [True, True]


def test_a_copy_is_found_in_a_family_of_thousands() -> None:
    family = [entry(f"{FIELD.format(most=9)} The farm has the number {n}.") for n in range(2000)]
    assert kept(*family, family[1234])[-1] is False


@pytest.mark.parametrize("share", [0.02, 0.03])
def test_a_leak_whose_words_are_edited_here_and_there_is_found(share: float) -> None:
    text = f"{FIELD} {TRAIN}"
    assert all(found(edited(text, share, seed), exam(text)) for seed in range(20))


def test_seven_edited_copies_in_an_evaluation_set_do_not_hide_the_leak() -> None:
    text = FIELD.format(most=9)
    assert found(text, *(exam(edited(text, 0.05, seed)) for seed in range(7)))


def test_a_share_of_exactly_the_threshold_is_an_overlap() -> None:
    assert Decontaminator([exam(TRAIN)], 1.0).find(entry(TRAIN)) is not None


def test_naming_a_set_again_changes_nothing() -> None:
    eval_problems = [exam(FIELD.format(most=9), "one"), exam(TRAIN.format(most=5), "two")]
    assert found(FIELD.format(most=9), *eval_problems * 20) == found(FIELD.format(most=9), *eval_problems)


def test_a_frame_that_many_evaluation_problems_share_is_no_overlap() -> None:
    eval_problems = [exam(f"{FRAME}\nProblem: {edited(TRAIN, 0.9, n)} {n}") for n in range(MOST_SHARERS + 1)]
    framed = exam(f"{FRAME}\n{FIELD.format(most=9)}", "field")
    assert (
        found(f"{FRAME}\nCount the letters of a word that is given on the first line.", *eval_problems, framed) is None
    )
    leak = found(FIELD.format(most=9), *eval_problems, framed)
    assert leak is not None
    assert leak.eval_id == "field"


def test_an_equal_id_decides_where_any_run_is_shared_and_a_mere_number_is_none() -> None:
    told = FIELD.format(most=9)
    opening = " ".join(told.split()[:10])
    pair = found(f"{opening} has no hedges.", exam(told, "Farm/7", "7"), name="farm/7")
    assert pair is not None
    assert pair.why == "the same id"
    assert found(f"{opening} has no hedges.", exam(told, "Farm/7", "7"), name="7") is None
    assert found("Another task altogether, which has no word in common with it.", exam(told, "a"), name="a") is None


LEAK = FIELD.format(most=9)


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
    (tmp_path / "set" / "below").mkdir(parents=True)
    (tmp_path / "set" / "below" / "rows.jsonl").write_text(json.dumps(row) + "\n")
    assert found(LEAK, *evaluation_problems(str(tmp_path / "set")))


@pytest.mark.parametrize("row", [{"tests": LEAK}, {"prompt": " "}, {"prompt": None}])
def test_an_evaluation_row_without_a_statement_is_an_error_that_names_it(row: object, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"prompt": LEAK}) + "\n" + json.dumps(row) + "\n")
    with refused("1 of 2 rows", "rows.jsonl, line 2", kind=DataError):
        list(evaluation_problems(str(path)))


def test_an_evaluation_file_with_one_text_for_most_rows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"id": n, "prompt": FRAME, "task": f"{n}"}) + "\n" for n in range(9)))
    with refused("9 of 9 rows", kind=DataError):
        list(evaluation_problems(str(path)))


@pytest.mark.long
def test_public_sets_overlap_alike_however_often_they_are_named() -> None:
    rows = [*open_source(str(data_file("leetcode/LeetCodeDataset-v0.3.1-test.jsonl.gz"))).items()]
    read = [row for row in rows if not isinstance(row, Skipped)]
    problems = [row if isinstance(row, Problem) else row.problem for row in read]
    eval_problems = [*evaluation_problems(str(data_file("qwq_lcb_prompts")))]
    for times in (1, 3):
        overlap = Decontaminator(eval_problems * times, 0.35)
        assert sum(overlap.find(entry(one.statement, name=one.id)) is not None for one in problems) == 117
