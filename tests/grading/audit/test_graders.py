"""The audit of the audit: graders whose faults are known get the card that they deserve, and an impossible request is refused in one line."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from code_rl.cli.main import main
from code_rl.grading import Problem
from code_rl.grading.audit import (
    AuditedGrader,
    Corpus,
    Function,
    GraderOutcome,
    Row,
    Scorecard,
    audit_grader,
    load_corpus,
)
from tests.grading.audit.conftest import Audit
from tests.grading.audit.samples import short_programs
from tests.refusals import one_line
from tests.waiting import until

PLANTED = Path(__file__).with_name("planted.py")


def _planted(name: str) -> str:
    return f"{PLANTED}:{name}"


def _failed(card: dict[str, Any]) -> list[str]:
    """The programs on which the grader failed."""
    return [name for row in card["classes"] for name in row["failed"]]


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "said", "paid"),
    [
        pytest.param("everyone", "pays everyone", 2, id="pays everyone, and no leak is inferred"),
        pytest.param("lazy", ("hardly compares", "pays everyone"), 2, id="hardly compares, and no leak is inferred"),
        pytest.param("no_one", "pays no one", 0, id="pays no one"),
        pytest.param("imports", "pays everyone", 2, id="imports the standard library, and no file of ours"),
        pytest.param("reads", "pays everyone", 2, id="what a program reads on stdin is no question"),
        pytest.param("shouts", "pays everyone", 2, id="what a program writes to the grader's line is no answer"),
    ],
)
def test_a_grader_is_called_what_it_is(name: str, said: str | tuple[str, ...], paid: int, audit: Audit) -> None:
    card = audit(_planted(name))
    assert any(finding.startswith(said) for finding in card["findings"][:2])
    assert not any("can be read" in finding for finding in card["findings"])
    assert (card["quality"]["tpr"]["passed"], card["quality"]["j"], _failed(card)) == (paid, 0, [])


def test_j_counts_decisions_and_leaves_out_the_graders_own_failures() -> None:
    honest = Row("a", "honest", 10, ["not paid"], ["failed", "failed too"], 0.1)
    wrong = Row("b", "mutant", 6, ["paid"], ["failed"], 0.1), Row("c", "cheat", 5, ["paid"], [], 0.1)
    card = Scorecard("g", "v", [honest, *wrong, Row("d", "trouble", 9, [], ["failed"], 0.1)])
    assert card.quality.j == pytest.approx(7 / 8 - 2 / 10)
    assert (card.quality.tpr.total, card.quality.fpr.total) == (8, 10)
    low, high = card.quality.ends
    assert low < 7 / 8 - 2 / 10 < high


def test_no_leak_is_inferred_where_ending_early_pays() -> None:
    rows = [Row("early exit", "cheat", 2, ["os_exit_0"], [], 0.1), Row("other submissions", "cheat", 4, ["a"], [], 0.1)]
    card = Scorecard("g", "v", [*rows, Row("mutant", "mutant", 9, [], [], 0.1)])
    assert not any("can be read" in finding for finding in card.findings())
    rows[0].wrong.clear()
    assert any("other submissions can be read" in finding for finding in card.findings())


@pytest.mark.long
def test_one_that_leaves_expected_outputs_beside_the_program_is_told_apart(audit: Audit) -> None:
    leaky, careful = (audit(_planted(name)) for name in ("leaky", "careful"))
    assert any("expected outputs can be read" in finding for finding in leaky["findings"])
    assert not any("can be read" in finding for finding in careful["findings"])


@pytest.mark.long
def test_a_token_that_is_given_is_a_leak_also_where_ending_early_pays(audit: Audit) -> None:
    card = audit(_planted("leaky_and_fooled_by_exit"))
    assert any(row["wrong"] for row in card["classes"] if row["class"] == "early exit")
    assert any("token_in_files_around gave a token" in finding for finding in card["findings"])


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("failing", "no sandbox for"),
        ("not_a_number", "nan"),
        ("a_list", "not list of length 1"),
        pytest.param("speaks_oddly", r"\x1b[31mred\ud800", id="escaped on terminal and page"),
    ],
)
def test_a_failure_is_no_verdict_and_the_card_says_why(name: str, said: str, audit: Audit) -> None:
    card = audit(_planted(name))
    assert _failed(card) == [program["name"] for program in card["programs"]]
    assert not any(row["wrong"] for row in card["classes"])
    assert "most often" in card["findings"][0]
    assert said in card["findings"][0]


_FILE = """
from __future__ import annotations
import dataclasses, pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from beside import PAID

@dataclasses.dataclass
class Score:
    value: float

def score(code):
    return Score(PAID if code else 0.0)

def grade(code):
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(score, code).result().value
"""


def test_a_file_is_imported_so_that_dataclasses_pickles_and_what_lies_beside_it_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, audit: Audit
) -> None:
    (tmp_path / "beside.py").write_text("PAID = 1.0\n")
    (tmp_path / "their_grader.py").write_text(_FILE)
    monkeypatch.setenv("HOME", str(tmp_path))
    card = audit("~/their_grader.py:grade", short_programs("stdin idiom"))
    assert [program["said"] for program in card["programs"]] == ["score 1.0"]


@pytest.mark.long
def test_our_reward_runs_its_sandbox_where_it_is_confined(audit: Audit) -> None:
    assert audit(_planted("our_compute_score"))["clean"]


def test_problems_of_a_form_that_a_function_does_not_take_are_skipped() -> None:
    entries = load_corpus().share(0.2).entries
    asked = {}
    for takes in ("all", "stdin", "call"):
        grader = Function(_planted("everyone"), sys.executable, 1.0, 60.0, True, takes)
        asked[takes] = {entry.name for entry in entries if grader.takes(entry.problem)}
    assert asked["stdin"] | asked["call"] == asked["all"]
    assert asked["stdin"]
    assert asked["call"]
    assert not asked["stdin"] & asked["call"]


def test_a_card_about_no_program_at_all_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Corpus, "share", lambda *_: short_programs())  # none with calls
    assert main(["audit", f"grader={_planted('everyone')}", "takes=call"]) == 2
    one_line(capsys, "takes=")


@pytest.mark.long
def test_a_confined_grader_writes_nothing_and_reaches_nobody(audit: Audit) -> None:
    card = audit(_planted("tries_to_leave"))
    assert _failed(card) == [], "what it prints is no answer"
    assert card["findings"][0].startswith("pays no one")
    assert not PLANTED.with_name("written").exists()


@pytest.mark.parametrize("how", ["on PYTHONPATH", "in the working directory", "in /tmp itself"])
def test_a_module_in_a_temporary_folder_is_found_as_python_would(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, audit: Audit
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        folder = Path(made if how != "in /tmp itself" else "/tmp")
        name = f"pays_{os.getpid()}"
        module = folder / f"{name}.py"
        module.write_text("def grade(code, problem):\n    return 1.0\n")
        monkeypatch.chdir(tmp_path if how == "on PYTHONPATH" else folder)
        monkeypatch.setenv("PYTHONPATH", str(folder) if how == "on PYTHONPATH" else "")
        try:
            card = audit(f"{name}:grade", short_programs("stdin idiom"))
        finally:
            module.unlink()
    assert [program["said"] for program in card["programs"]] == ["score 1.0"]


def test_an_audit_that_is_killed_takes_its_graders_along() -> None:
    words = ["audit", f"grader={_planted('hangs')}", "corpus=quick", "concurrency=1"]
    audit = subprocess.Popen([sys.executable, "-m", "code_rl.cli", *words], stdout=subprocess.PIPE)
    try:
        until(lambda: len(_running("planted.py:hangs")) >= 3)  # the audit, who confines, the grader
    finally:
        audit.kill()
        audit.communicate()
    until(lambda: not _running("planted.py:hangs"))


def _running(word: str) -> list[str]:
    """Processes with this word in their command."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += [path.parent.name] if word.encode() in path.read_bytes() else []
    return found


@pytest.mark.long
def test_one_that_never_answers_is_not_asked_to_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"grader={_planted('hangs')}", "corpus=quick", "timeout=1", "concurrency=2"]
    assert main(["audit", *words]) == 2
    one_line(capsys, "planted.py:hangs", "5 programs")


def test_one_that_a_program_silences_is_asked_no_more_and_keeps_its_card() -> None:
    class Silenced(AuditedGrader):
        name, gone = "silenced", False

        def takes(self, problem: Problem) -> bool:
            return bool(problem.tests)

        async def grade(self, problem: Problem, code: str) -> GraderOutcome:
            del problem
            self.gone |= "exit(0)" in code
            return GraderOutcome(None, "no answer in 1 s", True) if self.gone else GraderOutcome(True)

    card = asyncio.run(audit_grader(Silenced(), short_programs(each=6), 1, print))
    assert card.silent == "early exit"
    assert card.findings()[0].startswith("fell silent at the class 'early exit'")
    assert not card.clean
    assert "mutant" in [row.group for row in card.rows], "what was tried before stays"


def test_our_own_judge_is_clean_on_a_sample(audit: Audit, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    card = audit("ours")
    assert (card["clean"], card["findings"], card["quality"]["j"]) == (True, [], 1)
    assert card["quality"]["summary"] in card["page"]
    assert main(["audit", "grader=ours", "executor=http://127.0.0.1:9", f"out={tmp_path}"]) in (1, 2)
    assert "127.0.0.1:9" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_refused_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["audit", f"grader={_planted('everyone')}", f"out={tmp_path / 'file' / 'card'}"]) == 2
    one_line(capsys, "file/card")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["grader=nothing"], "grader=nothing"),
        (["grader=no.such.module:grade"], "no.such.module"),
        (["grader=math:sqrt", "python=/nonexistent", "confine=false"], "python=/nonexistent"),
        (["grader=math:sqrt", "python=/nonexistent"], "python="),
        (["grader=math:pi"], "grader=math:pi"),
        (["grader=math:pow"], "pow needs x"),
        (["grader=math:sqrt", "pays_at=nan"], "pays_at=nan"),
        (["grader=ours", "takes=stdin"], "takes="),
        (["grader=ours", "concurrency=0"], "concurrency=0"),
    ],
)
def test_what_cannot_be_asked_is_one_line(words: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", *words]) == 2
    one_line(capsys, named)


@pytest.mark.long
def test_a_card_is_a_table_a_file_and_a_page(audit: Audit, capsys: pytest.CaptureFixture[str]) -> None:
    programs = load_corpus().share(0.0)  # one of each class, and those that every share has
    card = audit(_planted("everyone"), programs, corpus="quick", concurrency=os.cpu_count())
    assert "this grader is code that will run hostile programs" in capsys.readouterr().out
    assert card["corpus"] == load_corpus().version
    assert sum(row["programs"] for row in card["classes"]) == len(card["programs"]) == len(programs.entries)
    assert "pays everyone" in card["page"]
