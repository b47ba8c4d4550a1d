"""`shard=i/n` and `merge=true`: what shards do apart is what one process does, and nothing that does not belong together is merged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from code_rl.cli import main
from code_rl.errors import ConfigError
from code_rl.problems.native import write_problems
from code_rl.problems.problem import Problem, StdinTest
from code_rl.shards import Shard, read_shard, shard_paths
from tests.preparation.planted import planted_set

RESULTS = ("train.jsonl", "test.jsonl", "manifest.json", "dropped.jsonl")


@pytest.mark.parametrize("text", ["0/4", "5/4", "4", "1/0", "a/b", "-1/4", "1/4/2", ""])
def test_what_is_no_shard_is_named(text):
    with pytest.raises(ConfigError, match="shard="):
        read_shard(text)


def test_shards_divide_everything_and_share_nothing():
    taken = [index for number in range(1, 8) for index in Shard(number, 7).taken(30)]
    assert sorted(taken) == list(range(30))


def test_a_missing_shard_and_two_divisions_are_named(tmp_path):
    stem = tmp_path / "v.jsonl"
    with pytest.raises(ConfigError, match="no shard"):
        shard_paths(stem)
    for number in (1, 2, 4):
        Shard(number, 5).path(stem).touch()
    Path(f"{Shard(3, 5).path(stem)}.partial").touch()
    with pytest.raises(ConfigError, match="shard 3/5, 5/5 is missing"):
        shard_paths(stem)
    Shard(1, 2).path(stem).touch()
    with pytest.raises(ConfigError, match=r"v.jsonl.\*-of-2 and v.jsonl.\*-of-5"):
        shard_paths(stem)


@pytest.fixture
def judging(tmp_path):
    problems = [Problem(f"p{n}", "", (StdinTest("", str(n)), StdinTest("x", str(n)))) for n in range(3)]
    write_problems(tmp_path / "p.jsonl", problems)
    programs = [{"problem_id": f"p{n % 3}", "program_id": n, "code": f"print({n % 4})"} for n in range(10)]
    programs += programs[:1]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in programs))

    def judge(out: str, *words: str) -> int:
        names = [f"{name}={tmp_path / file}" for name, file in (("problems", "p.jsonl"), ("programs", "q.jsonl"))]
        return main(["judge", *names, f"out={tmp_path / out}", "executor=embedded", *words])

    return judge


def rows(path: Path) -> list[dict]:
    """Without what differs between two runs of a program."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [{name: value for name, value in row.items() if name not in ("cpu_s", "wall_s")} for row in found]


def test_merged_verdicts_are_those_of_one_process_in_the_programs_order(judging, tmp_path):
    assert judging("whole.jsonl") == 0
    for number in range(1, 5):
        assert judging("v.jsonl", f"shard={number}/4") == 0
    assert judging("v.jsonl", "merge=true") == 0
    assert rows(tmp_path / "v.jsonl") == rows(tmp_path / "whole.jsonl")
    lines = (tmp_path / "v.jsonl").read_text().splitlines()
    for number in range(4):  # each row as its shard wrote it, byte for byte
        assert lines[number::4] == (tmp_path / f"v.jsonl.{number + 1}-of-4").read_text().splitlines()


def test_shards_that_do_not_belong_together_are_refused_by_name(judging, tmp_path, capsys):
    def refused(*words: str) -> str:
        assert judging("v.jsonl", "merge=true", *words) == 2
        assert not (tmp_path / "v.jsonl").exists()
        (line,) = capsys.readouterr().err.splitlines()
        return line

    assert judging("v.jsonl", "shard=1/2") == 0
    assert "shard 2/2 is missing" in refused()
    shutil.copy(tmp_path / "v.jsonl.1-of-2", tmp_path / "v.jsonl.2-of-2")
    assert "v.jsonl.2-of-2 holds what belongs to shard 1/2" in refused()
    assert judging("v.jsonl", "shard=2/2", "reward_timeout=5") == 0
    assert "v.jsonl.2-of-2 holds other verdicts" in refused()
    assert judging("v.jsonl", "shard=2/2") == 0
    whole = (tmp_path / "v.jsonl.2-of-2").read_bytes()
    (tmp_path / "v.jsonl.2-of-2").write_bytes(whole[: whole.index(b"\n") + 1])
    assert "v.jsonl.2-of-2 ends too early" in refused()
    (tmp_path / "v.jsonl.2-of-2").write_bytes(whole + whole)
    assert "shard 2/2 judged more programs" in refused()
    assert "exclude each other" in refused("shard=1/2")
    (tmp_path / "v.jsonl.2-of-2").write_bytes(whole)
    assert judging("v.jsonl", "merge=true") == 0


@pytest.fixture
def preparing(tmp_path):
    planted, exams = planted_set(20, 10)
    write_problems(tmp_path / "noisy.jsonl", [one.problem for one in planted])
    write_problems(tmp_path / "exams.jsonl", exams)

    def prepare(out: str, *words: str) -> int:
        names = [f"dataset={tmp_path / 'noisy.jsonl'}", f"decontaminate={tmp_path / 'exams.jsonl'}"]
        return main(
            ["prepare", *names, f"out={tmp_path / out}", "mutants=0", "test_share=0.3", "executor=embedded", *words]
        )

    return prepare


@pytest.mark.slow
def test_a_merged_prepare_has_the_bytes_of_a_whole_one(preparing, tmp_path, monkeypatch):
    assert preparing("whole") == 0
    assert preparing("parts", "stop_after=decontaminate") == 0
    for number in (1, 2):
        assert preparing("parts", f"shard={number}/2") == 0

    def nothing_runs(*_: object, **__: object) -> None:
        raise AssertionError("a merge verifies nothing")

    monkeypatch.setattr("code_rl.preparation.verification.verify.Verifier", nothing_runs)
    assert preparing("parts", "merge=true") == 0
    for name in RESULTS:
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


@pytest.mark.slow
def test_shards_of_a_prepare_that_do_not_belong_together_are_refused_by_name(preparing, tmp_path, capsys):
    def refused(*words: str) -> str:
        assert preparing("parts", *words) == 2
        return capsys.readouterr().err.splitlines()[-1]

    assert "stop_after=decontaminate" in refused("shard=1/2")
    assert preparing("parts", "stop_after=decontaminate") == 0
    assert preparing("parts", "shard=1/2") == 0
    assert "shard 2/2 is missing" in refused("merge=true")
    work = tmp_path / "parts" / "work"
    shutil.copytree(work / "shard.1-of-2", work / "shard.2-of-2")
    assert "shard 2/2" in (line := refused("merge=true"))
    assert "shard=1/2, not 2/2" in line
    shutil.rmtree(work / "shard.2-of-2")
    assert preparing("parts", "shard=2/2", "repeats=0") == 0
    assert "repeats=0, not 1" in refused("merge=true")
    report = work / "shard.2-of-2" / "report.json"
    report.write_text((whole := report.read_text()).replace('"sha256": "', '"sha256": "0'))
    assert "its data were others" in (line := refused("merge=true"))
    assert "licence" not in line
    report.write_text(whole)
    report.write_text(report.read_text().replace('"finished": true', '"finished": false'))
    assert "finished is False" in refused("merge=true")
    assert not (tmp_path / "parts" / "train.jsonl").exists()
