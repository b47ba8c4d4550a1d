"""The card of a prepared set: planted weak and wrong tests are named, and J is that of known programs."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from code_rl.cli.main import main
from code_rl.data.preparation.generated_tests import generated_tests
from code_rl.grading import CallTest, Problem, SequenceTest, StdinTest
from code_rl.grading.native import write_problems
from tests.data.preparation.prepared import prepared
from tests.refusals import one_line

RIGHT = "a, b = map(int, input().split())\nprint(a + b if a > 0 else b)\n"
ANSWERS = {"1 2": "3", "-3 4": "4", "10 20": "30", "0 5": "5"}
TESTS = tuple(StdinTest(given, expected) for given, expected in ANSWERS.items())
STATEMENT = "Given are two integers a and b on one line. Print a + b where a is above zero, else print b."
SOUND = Problem("sound", STATEMENT, TESTS, solutions=(RIGHT,))


def problem(name: str, story: str, **changes: Any) -> Problem:
    """A problem like SOUND, told otherwise, so that it is no duplicate."""
    return dataclasses.replace(SOUND, id=name, statement=f"{story} {STATEMENT}", **changes)


def zero(test: StdinTest) -> StdinTest:
    return dataclasses.replace(test, expected="0")


SET = (
    SOUND,
    problem("always-zero", "Ships arrive at noon in a harbour of the far north.", tests=tuple(map(zero, TESTS))),
    problem("wrong-test", "A gardener counts her tall flowers every single day.", tests=(zero(TESTS[0]), *TESTS[1:])),
    # Nothing tells whether the program adds, or what it prints for an a above zero.
    problem("weak", "Trams ring their bells twice at each stop in this town.", tests=(TESTS[1], TESTS[3])),
    problem(
        "own-wrong-ones",
        "Bakers write down each loaf that they sold before ten.",
        meta={"wrong_solutions": ["print(1)", RIGHT.replace("> 0", "> 5"), "print(1 // 0)"]},
        solutions=(RIGHT, "print(", RIGHT.replace("a > 0", "0 < a")),
    ),
)


def card_of(folder: Path, *words: str, problems: Iterable[Problem] = SET) -> dict[str, Any]:
    """The card of problems."""
    return prepared(folder, problems, "similarity=1", *words).card


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return card_of(tmp_path_factory.mktemp("card"))


def named(card: dict[str, Any], kind: str) -> dict[str, Any]:
    return {row["id"]: row for row in card[kind]}


def test_a_planted_weak_test_and_a_planted_wrong_test_are_named(card: dict[str, Any]) -> None:
    weak = named(card, "weak_tests")
    assert weak["always-zero"]["outcome"] == "passes_constant"
    assert (weak["weak"]["kind"], weak["weak"]["outcome"]) == ("mutants", "kept")
    assert {row["id"]: row["reason"] for row in card["wrong_tests"]} == {"wrong-test": "reference_fails"}
    assert "sound" not in weak


def test_right_programs_are_all_accepted_solutions_and_wrong_ones_the_sets_own(tmp_path: Path) -> None:
    kept = card_of(tmp_path, problems=SET[-1:])["kept"]
    assert kept["verdicts"]["right"] == {"passed": 2, "compile_error": 1}
    assert kept["verdicts"]["wrong_solutions"] == {"wrong_answer": 2, "runtime_error": 1}
    assert kept["j"] == pytest.approx(2 / 3)


def test_the_rows_are_counted_and_the_rates_belong_to_what_is_written(card: dict[str, Any]) -> None:
    assert card["rows"] == {"read": 5, "kept": 3, "passes_constant": 1, "reference_fails": 1}
    assert card["tests"] == [2, 4, 4]
    assert card["provenance"][0]["licence"] == "unstated"
    source, kept = card["source"], card["kept"]
    assert (kept["tpr"]["passed"], kept["tpr"]["total"], source["tpr"]["total"]) == (4, 5, 7)
    assert source["j"] < kept["j"]
    assert kept["interval"][0] < kept["j"] < kept["interval"][1]


def test_problems_below_min_j_are_dropped_without_another_run_of_programs(tmp_path: Path) -> None:
    before = card_of(tmp_path)
    log = tmp_path / "out" / "work" / "verify.jsonl"
    decided = log.read_bytes()
    after = card_of(tmp_path, "min_j=0.6")
    assert (before["rows"]["kept"], after["rows"]["kept"], after["rows"]["low_j"]) == (3, 2, 1)
    assert named(after, "weak_tests")["weak"]["outcome"] == "low_j"
    assert log.read_bytes() == decided


def test_overlap_with_named_sets_is_counted_by_set(tmp_path: Path) -> None:
    exams = [tmp_path / "exams.jsonl", tmp_path / "more.jsonl"]
    for each in exams:
        write_problems(each, [SOUND])
    named = ",".join(map(str, exams))
    found = card_of(tmp_path, f"decontaminate={named}", "stop_after=decontaminate")
    assert found["overlap"] == {str(each): len(SET) for each in exams}
    assert found["kept"]["j"] is None


def test_the_sets_own_wrong_solutions_count_also_where_a_trivial_program_passes(tmp_path: Path) -> None:
    wrong = {"wrong_solutions": ["print(0)", "print(1)"]}
    problems = [
        problem("zero", "Ships.", tests=tuple(map(zero, TESTS)), meta=wrong),
        problem("sound", "Trams.", meta={"wrong_solutions": ["print(0)", None]}),
    ]
    found = card_of(tmp_path, problems=problems)
    assert found["source"]["verdicts"]["wrong_solutions"] == {"passed": 1, "wrong_answer": 2}
    assert [row["passing"] for row in found["weak_tests"]] == [1]
    assert found["rows"]["kept"] == 1


def test_the_licence_is_that_of_the_readme_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "repo").mkdir()
    write_problems(tmp_path / "repo" / "train.jsonl", [SOUND])
    (tmp_path / "repo" / "README.md").write_text("---\nlicense: mit\n---\nProblems.\n")
    assert prepared(tmp_path, tmp_path / "repo", "stop_after=filter").card["provenance"][0]["licence"] == "mit"


def test_a_bound_that_no_tests_can_reach_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", f"dataset={tmp_path}", f"out={tmp_path / 'out'}", "min_j=1.5"]) == 2
    one_line(capsys, "min_j=1.5")


def test_the_markdown_has_no_line_that_data_could_break(tmp_path: Path) -> None:
    made = prepared(tmp_path, [dataclasses.replace(SET[2], id="a\n# b<i>")], "mutants=0")
    assert "- a # b&lt;i&gt;: reference_fails" in (made.out / "card.md").read_text()


LISTS = ([3, 1, 4], [15, 9], [2, 6, 5, 35], [8])


def test_generated_inputs_are_new_and_of_the_same_form() -> None:
    """A list keeps the count before it, and an argument stays a list of integers."""
    texts = [f"{len(each)}\n{' '.join(map(str, each))}\n" for each in LISTS]
    for test in generated_tests(tuple(StdinTest(text, "") for text in texts), random.Random(0)):
        assert isinstance(test, StdinTest)
        count, numbers = test.input.splitlines()
        assert len(numbers.split()) == int(count)
        assert test.input not in texts
    called = generated_tests(tuple(CallTest((each,), 0) for each in LISTS), random.Random(0))
    assert called
    assert all(isinstance(value, int) for test in called if isinstance(test, CallTest) for value in test.args[0])


def test_arguments_given_by_name_are_changed_too() -> None:
    tests = tuple(CallTest((n,), kwargs={"k": k, "text": text}) for n, k, text in ((1, 2, "ab"), (3, 4, "cd")))
    made = generated_tests(tests, random.Random(0))
    assert {len(test.args) for test in made if isinstance(test, CallTest)} == {1}
    named = [test.kwargs for test in made if isinstance(test, CallTest)]
    assert {tuple(each) for each in named} == {("k", "text")}
    assert {each["k"] for each in named} == {2, 4}


def test_sequences_of_calls_and_long_inputs_are_not_changed() -> None:
    assert not generated_tests((StdinTest("1 2\n" * 5000, ""),), random.Random(0))
    sequence = SequenceTest("C", (("C", (1,)), ("add", (2,))), (None, 3))
    assert not generated_tests((sequence,), random.Random(0))
