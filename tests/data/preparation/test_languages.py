"""Problems of other languages: each is verified by its own references, compiled and run as in training."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from code_rl.cli.main import main
from code_rl.grading import CallTest, Problem, StdinTest, languages
from code_rl.grading.native import write_problems
from tests.data.preparation.prepared import prepared
from tests.grading.judging.test_languages import RIGHT, needs
from tests.refusals import one_line

pytestmark = pytest.mark.usefixtures("boxes")
TESTS = tuple(StdinTest(f"{n}\n", f"{n * n}\n") for n in (3, 12, 3_000_000_000))
STATEMENT = "Read a whole number n from standard input and print n times n."
CPP = Problem("squares", STATEMENT, TESTS, solutions=(RIGHT["cpp"],), language="cpp", time_limit_s=10.0)
PYTHON = dataclasses.replace(CPP, solutions=("print(int(input()) ** 2)",), language="python")


@needs["cpp"]
def test_a_problems_own_language_decides_how_its_references_and_wrong_solutions_run(tmp_path: Path) -> None:
    wrong = {"wrong_solutions": [RIGHT["cpp"].replace("n * n", "n + n")]}
    broken = dataclasses.replace(CPP, id="python", statement=f"As text. {STATEMENT}", solutions=PYTHON.solutions)
    made = prepared(tmp_path, [dataclasses.replace(CPP, meta=wrong), broken], "similarity=1")
    assert [(one.id, one.language) for one in made.problems.values()] == [("squares", "cpp")]
    assert made.card["kept"]["verdicts"] == {"right": {"passed": 1}, "wrong_solutions": {"wrong_answer": 1}}
    assert made.reasons == {"python": "reference_fails"}


@pytest.mark.long
@needs["cpp"]
def test_a_set_is_prepared_in_another_language_with_the_solutions_that_it_has_there(tmp_path: Path) -> None:
    row = {
        "name": "1_A. Squares",
        "description": STATEMENT,
        "public_tests": {"input": [], "output": []},
        "private_tests": {"input": [t.input for t in TESTS], "output": [t.expected for t in TESTS]},
        "solutions": {"language": [3, 2], "solution": ["print(int(input()) ** 2)", RIGHT["cpp"]]},
        "incorrect_solutions": {"language": [3, 2], "solution": ["print(1)", RIGHT["cpp"].replace("n * n", "n")]},
    }
    (tmp_path / "set.jsonl").write_text(json.dumps(row) + "\n")
    made = prepared(tmp_path, tmp_path / "set.jsonl", "language=cpp")
    assert [(one.language, one.solutions) for one in made.problems.values()] == [("cpp", (RIGHT["cpp"],))]
    assert made.card["kept"]["verdicts"] == {"right": {"passed": 1}, "wrong_solutions": {"wrong_answer": 1}}
    (again,) = prepared(tmp_path, tmp_path / "set.jsonl").problems.values()
    assert again.solutions == ("print(int(input()) ** 2)",)


@needs["cpp"]
def test_call_tests_and_references_of_another_language_are_counted_by_name(tmp_path: Path) -> None:
    calls = tuple(CallTest((n,), n * n) for n in (3, 12))
    call = Problem("call", f"Write f. {STATEMENT}", calls, fn_name="f", solutions=("def f(n): return n * n",))
    assert prepared(tmp_path, [call, PYTHON], "language=cpp").reasons == {
        "call": "only_python",
        "squares": "no_reference",
    }
    (kept,) = prepared(tmp_path, [call, PYTHON], "language=cpp", "unverified=keep").problems.values()
    assert (kept.language, kept.solutions) == ("cpp", ())


def test_a_language_that_is_unknown_or_not_installed_is_refused_before_any_row_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(languages, "_known", dict(languages._known))
    own = tmp_path / "own.toml"
    own.write_text('[missing]\nfences = ["m"]\nfile = "a"\nrun = "true"\nversion = "no-such-compiler --version"\n')
    languages.add_languages(own)
    write_problems(tmp_path / "set.jsonl", [PYTHON])
    for words in (["language=cobol", "stop_after=filter"], ["language=missing"]):
        assert main(["prepare", f"dataset={tmp_path / 'set.jsonl'}", f"out={tmp_path / 'out'}", *words]) == 2
        one_line(capsys, *words[0].split("=")[1:])
        assert not (tmp_path / "out" / "card.json").exists()
