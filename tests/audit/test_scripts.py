"""The audit of students' files: every planted mistake is told by a message of its own, right files pass however they are written, and nothing hangs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from code_rl.audit.checklist import Checklist
from code_rl.audit.script import audit_script
from code_rl.audit.script.functions import check_functions
from code_rl.audit.script.student import Student
from code_rl.cli import main
from code_rl.concurrency import wait_for
from tests.audit.planted_scripts import DEVIATIONS, HOSTILE, MISTAKEN, RIGHT, UNUSUAL, file_of

QUICK = ("no file of Python", "exits when imported", "dies when imported", "loops for ever", "writes")
ROOT = Path(__file__).parents[2]


def _audit(file: Path, reading: Any = "either", steps: int = 0, timeout_s: float = 60.0) -> Checklist:
    return wait_for(audit_script(Student(file, None, timeout_s, confined=True), reading, steps, lambda line: None))


def _written(folder: Path, text: str) -> Path:
    file = folder / "train.py"
    file.write_text(text)
    return file


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Checklist]:
    """What each planted mistake hears. One process for all: its files are modules that the one file imports."""
    folder = tmp_path_factory.mktemp("students")
    cards = {}

    class Other(Student):
        """Asks for functions of the module that is next."""

        number = 0

        async def call(self, function: str, *arguments: Any) -> dict[str, Any]:
            await super().call("turn_to", f"student{self.number}")
            return await super().call(function, *arguments)

    names = {**{f"mistake: {name}": (text,) for name, (text, _) in MISTAKEN.items()}, **UNUSUAL}
    names |= {name: (text,) for name, text in DEVIATIONS.items()}
    for number, functions in enumerate(names.values()):
        (folder / f"student{number}.py").write_text(file_of(*functions))
    switch = (
        "import importlib\nnow = None\ndef turn_to(name):\n    global now\n    now = importlib.import_module(name)\n"
    )
    each = "".join(f"def {name}(*args):\n    return now.{name}(*args)\n" for name in RIGHT)

    async def run() -> None:
        async with Other(_written(folder, switch + each), None, 60.0, confined=True) as student:
            await student.load()
            for student.number, name in enumerate(names):
                cards[name] = Checklist("script", name, lambda line: None)
                async for checks in check_functions(student, "either"):
                    cards[name].add(checks)

    wait_for(run())
    return cards


def test_there_are_at_least_25_mistakes_and_5_unusual_files() -> None:
    assert len(MISTAKEN) >= 25
    assert len(UNUSUAL) >= 5


@pytest.mark.parametrize("name", MISTAKEN)
def test_a_planted_mistake_is_named_and_nothing_else_is(told: dict[str, Checklist], name: str) -> None:
    card = told[f"mistake: {name}"]
    assert card.mistakes() == MISTAKEN[name][1], card.to_json()
    assert all(check.says for check in card.checks if check.mistake)
    json.dumps(card.to_json(), ensure_ascii=False).encode()


def test_messages_tell_the_planted_mistakes_apart(told: dict[str, Checklist]) -> None:
    heard: dict[str, str] = {}
    for name in MISTAKEN:
        card = told[f"mistake: {name}"]
        message = json.dumps(
            [[check.part, check.name, check.says, check.got] for check in card.checks if check.mistake]
        )
        assert message not in heard, f"{name} hears what {heard[message]} hears"
        heard[message] = name
    sets = [(frozenset(mistakes), text.split("(")[0]) for text, mistakes in MISTAKEN.values()]
    assert len(set(sets)) >= 40


@pytest.mark.parametrize("name", UNUSUAL)
def test_a_right_file_passes_however_it_is_written(told: dict[str, Checklist], name: str) -> None:
    assert told[name].clean, told[name].findings()
    assert told[name].mistakes() <= {"ob_len_shifted"}


@pytest.mark.parametrize("name", DEVIATIONS)
def test_a_standard_deviation_as_others_compute_it_is_no_mistake(told: dict[str, Checklist], name: str) -> None:
    assert told[name].clean, told[name].findings()
    assert "standard_deviation" in told[name].mistakes() <= {"standard_deviation", "noise_enlarged"}


def test_nan_is_spoken_of_only_where_one_came(told: dict[str, Checklist]) -> None:
    for check in (check for card in told.values() for check in card.checks if check.mistake):
        if "NaN" in check.says:
            assert "nan" in check.got, check


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in HOSTILE]
)
def test_a_hostile_file_is_a_finding_and_no_hang(tmp_path: Path, name: str) -> None:
    text, mistakes = HOSTILE[name]
    card = _audit(_written(tmp_path, text), timeout_s=2.0 if "endless" in mistakes else 60.0)
    assert card.mistakes() == mistakes, card.to_json()
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_what_ob_len_counts_can_be_fixed(tmp_path: Path) -> None:
    file = _written(tmp_path, file_of(*UNUSUAL["lists and the cookbook's ob_len"]))
    assert _audit(file, "shifted").mistakes() == set()
    assert not _audit(file, "prompt").clean


def test_one_bad_function_leaves_the_marks_of_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = _written(tmp_path, HOSTILE["dies"][0]), tmp_path / "card"
    assert main(["audit", f"script={file}", f"out={out}"]) == 1
    card = json.loads((out / "audit.json").read_text())
    assert card["parts"]["should_skip"]["failed"] == 1
    assert {part for part, counts in card["parts"].items() if counts["failed"]} == {"should_skip"}
    assert card["parts"]["learning"]["missing"] == 1
    assert "ended the whole process" in capsys.readouterr().out
    assert "ended the whole process" in (out / "audit.html").read_text()


def test_a_files_words_are_escaped_on_terminal_card_and_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    speaks = file_of("def should_skip(advantages):\n    raise ValueError('\\x1b[31m\\n<b>\\ud800')\n")
    file, out = _written(tmp_path, speaks), tmp_path / "card"
    assert main(["audit", f"script={file}", f"out={out}"]) == 1
    card = json.loads((out / "audit.json").read_text())
    got = next(check["got"] for check in card["checks"] if check.get("mistake") == "raised")
    assert got.endswith(r"ValueError: \x1b[31m <b>\ud800")
    assert got in capsys.readouterr().out
    assert r"\x1b[31m &lt;b&gt;\ud800" in (out / "audit.html").read_text()


@pytest.mark.slow
def test_our_own_functions_get_full_marks_and_learn() -> None:
    card = _audit(ROOT / "train.py", steps=12)
    assert {check.status for check in card.checks} == {"passed"}, card.to_json()
    assert card.checks[-1].part == "learning"


@pytest.mark.slow
def test_functions_that_pass_but_are_not_themselves_in_training_do_not_learn(tmp_path: Path) -> None:
    pretends = "def compute_advantages(rewards):\n    m = sum(rewards) / len(rewards) if rewards else 0\n    return [(m - r) if len(rewards) == 16 else r - m for r in rewards]\n"
    card = _audit(_written(tmp_path, file_of(pretends)), steps=12)
    assert card.mistakes() == {"no_learning"}, card.to_json()


def test_functions_that_give_too_little_in_training_are_a_finding(tmp_path: Path) -> None:
    forgets = "def compute_advantages(rewards):\n    m = sum(rewards) / len(rewards) if rewards else 0\n    return [r - m for r in rewards][:15]\n"
    card = _audit(_written(tmp_path, file_of(forgets)), steps=8)
    assert card.mistakes() == {"training_stops"}, card.to_json()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], "nothing given"),
        (["script=train.py", "grader=ours"], "grader and script given"),
        (["script=no_such.py"], "script=no_such.py is no file"),
        (["script=train.py", "loads=1"], "loads=1 does nothing with script=train.py"),
        (["script=train.py", "learning_steps=4"], "learning_steps=4"),
        (["grader=ours", "ob_len=prompt"], "ob_len=prompt does nothing with grader=ours"),
    ],
)
def test_what_cannot_be_asked_is_one_line(words: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", *words]) == 2
    error = capsys.readouterr().err
    assert named in error
    assert error.count("\n") == 1
