"""`code-rl judge`: files in, one verdict a line out, in order; bad files stop it before anything runs."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("chz")

from code_rl.cli.main import main
from code_rl.data import load_dataset, open_dataset
from code_rl.evaluation.programs import Judged, check_programs, judge_programs
from code_rl.grading import Compare, Problem, StdinTest, VerdictKind
from code_rl.grading.native import write_problems
from code_rl.util.errors import DataError, SandboxError
from tests.refusals import one_line, refused

from .fakes import ScriptedExecutor, printed

OLDER = json.dumps({"problem_id": "0", "program_id": "older", "verdict": "passed", "key": "k"}) + "\n"


class EchoExecutor(ScriptedExecutor):
    """Prints the program itself for every case, after a wait of its own for each program."""

    def __init__(self) -> None:
        super().__init__([])
        self.random = random.Random(0)

    async def run(self, job):
        self.jobs.append(job)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            await asyncio.sleep(self.random.random() / 1000)
            if job.code == "down":
                raise SandboxError("down")
            for _ in job.cases:
                yield printed(job.code)
        finally:
            self.open -= 1


Paths = tuple[str, str, str]


async def judge_files(problems: str, programs: str, out: str, executor: Any, **options: Any) -> Judged:
    """The verb with an executor of the test's."""
    store = await load_dataset(open_dataset(problems), executor, lambda _: None)
    check_programs(programs, store, None)
    return await judge_programs(store, programs, out, executor, **options)


@pytest.fixture
def files(tmp_path):
    problems = [Problem(str(n), "", (StdinTest("", str(n)),)) for n in range(5)]
    write_problems(tmp_path / "p.jsonl", problems)

    def make(*rows: Any) -> Paths:
        text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
        (tmp_path / "q.jsonl").write_text(text)
        return str(tmp_path / "p.jsonl"), str(tmp_path / "q.jsonl"), str(tmp_path / "v.jsonl")

    return make


def verb(paths: Paths, *more: str) -> int:
    """The exit code of the verb."""
    words = (f"{name}={path}" for name, path in zip(("dataset", "programs", "out"), paths, strict=True))
    return main(["judge", *words, *more])


def program(problem, code, key="code", name="x"):
    return {"problem_id": str(problem), "program_id": name, key: code}


def judged(paths: Paths, executor=None, **options):
    executor = executor or EchoExecutor()
    result = asyncio.run(judge_files(*paths, executor, **options))
    with open(paths[2]) as stream:
        return result, [json.loads(line) for line in stream], executor


def test_each_program_gets_a_row_with_its_verdict(files):
    rows = [
        program(1, "1", name="right"),
        program(1, "2", name="wrong"),
        program(2, "```\n2\n```", "completion", name=7),
        program(2, "no block", "completion"),
        {**program(3, "down"), "model": "ignored"},
        program(3, None),
    ]
    result, out, _ = judged(files(*rows))
    assert [(row["problem_id"], row["program_id"], row["verdict"]) for row in out] == [
        ("1", "right", "passed"),
        ("1", "wrong", "wrong_answer"),
        ("2", 7, "passed"),
        ("2", "x", "no_code"),
        ("3", "x", "sandbox_error"),
        ("3", "x", "no_code"),
    ]
    assert out[0]["failure"] is None
    assert out[1]["failure"] == {"test": 0, "public": False, "message": "line 1 differs"}
    assert {"passed", "total", "cpu_s", "wall_s", "rule"} < set(out[0])
    assert (sum(result.counts.values()), result.complete) == (6, False)
    assert result.counts[VerdictKind.NO_CODE] == 2


def test_rows_keep_the_programs_order_and_programs_in_flight_stay_bounded(files):
    numbers = random.Random(1).choices(range(5), k=400)
    rows = [program(n, str(n % 3), name=str(i)) for i, n in enumerate(numbers)]
    result, out, executor = judged(files(*rows), concurrency=3)
    assert [row["program_id"] for row in out] == [str(i) for i in range(400)]
    assert [row["verdict"] == "passed" for row in out] == [n < 3 for n in numbers]
    assert executor.most_open == 3
    assert result.complete


class Held(EchoExecutor):
    """Holds the program `slow` until `released` others have run."""

    def __init__(self, released: int) -> None:
        super().__init__()
        self.released, self.done = released, asyncio.Event()

    async def run(self, job):
        self.jobs.append(job)
        if len(self.jobs) == self.released:
            self.done.set()
        if job.code == "slow":
            await self.done.wait()
        yield printed("1")


def test_a_slow_program_at_the_head_leaves_no_place_idle_and_rows_keep_their_order(files, tmp_path):
    rows = [program(1, "1", name="0"), program(1, "slow", name="1")]
    rows += [program(1, "1", name=str(n)) for n in range(2, 2000)]
    _, out, executor = judged(files(*rows), Held(2000), concurrency=2)
    assert [row["program_id"] for row in out] == [str(n) for n in range(2000)]
    assert len(executor.jobs) == 2000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.jsonl", "q.jsonl", "v.jsonl"]


def cut_short(paths: Paths, executor):
    async def go():
        task = asyncio.create_task(judge_files(*paths, executor, concurrency=2))
        while len(executor.jobs) < 300:  # noqa: ASYNC110 - what it waits for is the other tasks, turn by turn
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(go())


def test_a_cut_run_keeps_its_verdicts_and_the_same_command_gives_the_rest(files, tmp_path):
    rows = [program(1, "slow", name="slow"), *(program(1, "1", name=str(n % 3)) for n in range(400))]
    paths = files(*rows)
    cut_short(paths, Held(10_000))
    kept = (tmp_path / "v.jsonl").read_bytes()
    (tmp_path / "v.jsonl").write_bytes(kept + b'{"problem_id": "1", "torn')
    _, out, executor = judged(paths, Held(1))
    assert [row["program_id"] for row in out] == ["slow", *(str(n % 3) for n in range(400))]
    assert len(executor.jobs) == 401 - kept.count(b"\n")


def test_programs_that_are_added_are_appended_and_only_what_changed_is_judged(files):
    first = [program(1, "1", name="a"), program(2, "2", name="b"), program(3, "down", name="c")]
    judged(files(*first))
    changed = [first[0], program(2, "3", name="b"), first[2], program(4, "4", name="d")]
    _, out, executor = judged(files(*changed))
    assert [row["verdict"] for row in out] == ["passed", "wrong_answer", "sandbox_error", "passed"]
    assert [job.code for job in executor.jobs] == ["3", "down", "4"]
    assert judged(files(*changed), cpu_limit_s=1.0)[2].jobs  # another limit is another question


def test_verdicts_of_other_programs_stay_those_of_a_cut_run_too(files, tmp_path):
    judged(files(*(program(1, "1", name=str(n)) for n in range(5))))
    _, out, _ = judged(files(program(1, "2", name="3"), program(1, "1", name="new")))
    assert [(row["program_id"], row["verdict"]) for row in out[:2]] == [("3", "wrong_answer"), ("new", "passed")]
    assert [row["program_id"] for row in out[2:]] == ["0", "1", "2", "4"]
    assert len(judged(files(program(1, "1", name="0")))[1]) == 6
    (tmp_path / "v.jsonl").unlink()
    cut_short(files(program(1, "slow"), *(program(1, "1", name=str(n)) for n in range(400))), Held(10_000))
    kept = (tmp_path / "v.jsonl").read_bytes().count(b"\n")
    assert len(judged(files(program(2, "2", name="new")))[1]) == 1 + kept


@pytest.mark.parametrize("held", ["my notes\n", '{"id": "p", "statement": "x"}\n', '{"verdict": "passed", "key": "x", "problem_id": "1"}\n', "[]\n"])  # fmt: skip
def test_a_file_that_holds_anything_else_is_never_replaced(files, tmp_path, held):
    (tmp_path / "v.jsonl").write_text(held)
    executor = EchoExecutor()
    with refused("v.jsonl", kind=DataError):
        judged(files(program(1, "1")), executor)
    assert (executor.jobs, (tmp_path / "v.jsonl").read_text()) == ([], held)


@pytest.mark.parametrize("out", ["{tmp}", ""], ids=["directory", "empty"])
def test_an_output_that_is_no_file_is_refused_before_anything_runs(files, tmp_path, out):
    executor, (problems, programs, _) = EchoExecutor(), files(program(1, "1"))
    with refused("out=", kind=DataError):
        judged((problems, programs, out.format(tmp=tmp_path)), executor)
    assert executor.jobs == []


def test_problems_are_rows_of_any_shape(files, tmp_path):
    (tmp_path / "rows.jsonl").write_text(
        json.dumps({"id": 7, "problem": "Print 5.", "tests": {"inputs": ["1"], "outputs": ["5"]}}) + "\n"
    )
    _, programs, out = files({**program(0, "5"), "problem_id": "rows/7"})
    assert judged((str(tmp_path / "rows.jsonl"), programs, out))[1][0]["verdict"] == "passed"


def test_programs_in_flight_fill_the_places_of_the_executor(files):
    executor: Any = EchoExecutor()
    executor.slots = 40
    judged(files(*(program(1, "1") for _ in range(300))), executor)
    assert 40 <= executor.most_open <= 80


@pytest.mark.parametrize("older", [None, OLDER])
def test_a_bad_file_or_a_failure_at_once_leaves_the_output_as_it_was(files: Callable[..., Paths], tmp_path, older):
    class Broken(EchoExecutor):
        async def run(self, job):
            raise ZeroDivisionError
            yield

    if older:
        (tmp_path / "v.jsonl").write_text(older)
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(DataError):
        asyncio.run(judge_files(*files(program(9, "x")), EchoExecutor()))
    with pytest.raises(ZeroDivisionError):
        asyncio.run(judge_files(*files(program(1, "x")), Broken()))
    assert sorted({*before, "q.jsonl"}) == sorted(path.name for path in tmp_path.iterdir())
    assert not older or (tmp_path / "v.jsonl").read_text() == older


BAD_ROWS = {
    "unknown problem": program(9, "x"),
    "problem_id missing": {"program_id": "x", "code": ""},
    "program_id missing": {"problem_id": "1", "code": ""},
    "program_id a list": {"problem_id": "1", "program_id": [], "code": ""},
    "neither": {"problem_id": "1", "program_id": "x"},
    "both": {"problem_id": "1", "program_id": "x", "code": "", "completion": ""},
    "code a number": program(1, 5),
}


@pytest.mark.parametrize("bad", BAD_ROWS.values(), ids=BAD_ROWS.keys())
def test_a_bad_row_stops_everything_before_anything_runs(files, bad):
    paths = files(program(1, "1"), bad)
    executor = EchoExecutor()
    with refused("q.jsonl, line 2", kind=DataError):
        judged(paths, executor)
    assert executor.jobs == []


def test_programs_in_another_language_than_they_would_be_judged_in_are_refused(files, capsys):
    assert verb(files({**program(1, "1"), "language": "cpp"})) == 2
    one_line(capsys, "cpp", "python", "language=")


def test_a_place_that_can_have_no_file_is_not_said_to_be_in_use(files, capsys):
    assert verb((*files(program(1, "1"))[:2], "/proc/none.jsonl")) == 2
    assert "in use" not in one_line(capsys, "/proc/none.jsonl")


def test_a_compressed_programs_file_is_read_and_one_without_programs_refused(files, tmp_path):
    problems, programs, out = files()
    with refused("programs=", kind=DataError):
        judged((problems, programs, out))
    packed = tmp_path / "q.jsonl.gz"
    packed.write_bytes(gzip.compress(json.dumps(program(1, "1")).encode()))
    assert judged((problems, str(packed), out))[1][0]["verdict"] == "passed"


def test_other_failures_cancel_what_is_in_flight(files):
    class Broken(EchoExecutor):
        async def run(self, job):
            if job.code == "broken":
                raise ZeroDivisionError
            await asyncio.sleep(3600)
            yield

    with pytest.raises(ZeroDivisionError):
        judged(files(program(1, "broken"), program(1, "1")), Broken())


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["dataset=P", "programs=Q"], "out"),
        (["dataset=P", "programs=Q", "out=V", "excutor=embedded"], "executor"),
        (["dataset=P", "programs=Q", "out=Q"], "out="),
        (["dataset=absent", "programs=Q", "out=V"], "dataset='absent'"),
        (["dataset=P", "programs=Q", "out=V", "sandbox_concurrency=0"], "sandbox_concurrency=0"),
        (["dataset=P", "programs=Q", "out=V", "executor=ftp://x"], "ftp://x"),
        (["stray"], "stray"),
    ],
)
def test_bad_settings_are_one_line_and_exit_code_2(files, capsys, words, named):
    names = dict(zip("PQV", files(program(1, "1")), strict=True))
    argv = [f"{key}={names.get(value, value)}" if value else key for key, _, value in (w.partition("=") for w in words)]
    assert main(["judge", *argv]) == 2
    one_line(capsys, named)


def test_help_and_dry_run_run_nothing(files, capsys):
    assert main(["judge", "--help"]) == 0
    assert "programs=required" in capsys.readouterr().out
    problems, programs, out = files(program(1, "1"))
    assert main(["judge", "--dataset", problems, f"--programs={programs}", f"out={out}", "dry_run=true"]) == 0
    assert "1 programs on 5 problems" in capsys.readouterr().out


def test_the_verb_shows_a_table_and_a_rate(files, capsys, monkeypatch):
    monkeypatch.setattr("code_rl.cli.judge.connect_executor", lambda *_, **__: EchoExecutor())
    paths = files(program(1, "1"), program(1, "2"))
    assert verb(paths) == 0
    shown = capsys.readouterr().out
    for part in ("passed", "wrong_answer", "50.0%", "programs per second", paths[2]):
        assert part in shown
    assert verb(files(program(1, "down"))) == 1
    assert "sandbox_error" in capsys.readouterr().out


def test_a_broken_checker_is_spoken_of_and_nothing_is_to_be_run_again(files, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("code_rl.cli.judge.connect_executor", lambda *_, **__: EchoExecutor())
    checker = Compare("checker", checker="def check(input, output, expected): ...")
    paths = files(program(1, "1"))
    write_problems(Path(paths[0]), [Problem("1", "", (StdinTest("", "1"),), compare=checker, solutions=("1",))])
    assert verb(paths) == 1
    shown = capsys.readouterr().out
    assert "checker_error" in shown
    assert "again" not in shown
    assert json.loads((tmp_path / "v.jsonl").read_text())["verdict"] == "checker_error"


def test_a_server_that_does_not_answer_is_one_line_and_nothing_is_written(files, capsys, tmp_path):
    assert verb(files(program(1, "1")), "executor=http://127.0.0.1:1/run_code") == 2
    one_line(capsys, "127.0.0.1:1")
    assert not (tmp_path / "v.jsonl").exists()


def test_programs_may_be_a_json_array(files, tmp_path):
    problems, programs, out = files(program(1, "1"), program(1, "2"))
    array = tmp_path / "Q.json"
    array.write_text("[" + ",".join(Path(programs).read_text().splitlines()) + "]")
    assert [row["verdict"] for row in judged((problems, str(array), out))[1]] == ["passed", "wrong_answer"]


def test_all_lines_that_cannot_be_read_are_named_before_anything_runs(files):
    paths = files(program(1, "1"))
    with open(paths[1], "a") as stream:
        stream.write("{\n[1]\n")
    executor = EchoExecutor()
    with refused("line 2", "line 3", kind=DataError):
        judged(paths, executor)
    assert not executor.jobs


def test_the_rollouts_of_a_run_are_judged_completion_by_completion(files):
    member = {"text": "```python\n1\n```"}
    group = {"step": 3, "group": 0, "attempt": 1, "problem_id": "1", "completions": [member, {**member, "code": "2"}]}
    rows = judged(files(group))[1]
    assert [(row["program_id"], row["verdict"]) for row in rows] == [("3/0/1/0", "passed"), ("3/0/1/1", "wrong_answer")]


def test_a_command_whose_streams_are_closed_does_its_work(tmp_path):
    write_problems(tmp_path / "p.jsonl", [Problem("p", "Print 1.", (StdinTest("", "1\n"),))])
    (tmp_path / "q.jsonl").write_text('{"problem_id": "p", "program_id": 0, "code": "print(1)"}\n')
    words = f"judge dataset={tmp_path}/p.jsonl programs={tmp_path}/q.jsonl out={tmp_path}/v.jsonl executor=embedded"
    done = subprocess.run(f"{sys.executable} -m code_rl.cli {words} <&- >&- 2>&-", shell=True, timeout=120)
    assert done.returncode == 0
    assert '"passed"' in (tmp_path / "v.jsonl").read_text()
