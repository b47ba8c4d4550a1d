"""Where a run goes on: the last checkpoint whose files are whole, with the completions that were kept; one process at a time."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from code_rl.engine.checkpoints import append_checkpoint, read_checkpoints
from code_rl.grading import Problem, StdinTest, Verdict, VerdictKind, judge_async
from code_rl.policy.completion_log import InFlight, SampledAnswer, SampledAnswers, SamplingRequest
from code_rl.training.runs.directory import METRICS, ROLLOUTS
from code_rl.training.runs.resume import Start, choose_start, go_back
from code_rl.util.errors import CheckpointError, DataError
from code_rl.util.files import JsonLines, read_lines, read_record
from tests.boxes import shared_box
from tests.refusals import refused
from tests.training.pipeline_support import small
from tests.verbs import train_command

REQUEST = SamplingRequest((1, 2, 3), count=2, max_tokens=8, temperature=1.0, seed=5)
PASSED = Verdict(VerdictKind.PASSED, 1, 1, "lcb")


def sampled(*tokens: int) -> SampledAnswers:
    return SampledAnswers((SampledAnswer(tokens, tuple(-0.5 for _ in tokens), "stop"),), 0.25, 2)


def a_run(folder: Path, steps: int = 6) -> Path:
    """A run directory as a run of so many steps leaves it, with a checkpoint every second one."""
    folder.mkdir(exist_ok=True)
    logs = [JsonLines(folder / METRICS), JsonLines(folder / ROLLOUTS)]
    for step in range(steps):
        for log in logs:
            log.append({"step": step, "loss": step / 7})
        if step % 2:
            record = {"name": f"{step + 1:06d}", "step": step + 1, "offset": step, "state_path": f"s{step + 1}"}
            lengths = {name: (folder / name).stat().st_size for name in (METRICS, ROLLOUTS)}
            append_checkpoint(folder, {**record, "lengths": lengths})
    for log in logs:
        log.close()
    return folder


def chosen(folder: Path, broken: tuple[str, ...] = ()) -> tuple[Start, list[str]]:
    """Where a resume of the run would go on, and its message."""
    said: list[str] = []

    async def load(start: Start) -> None:
        state_path = start.state_path(folder)
        if state_path in broken:
            raise CheckpointError(f"{state_path} is damaged")

    return asyncio.run(choose_start(folder, said.append, load))[0], said


def test_the_newest_state_that_can_be_used_is_taken_and_each_that_cannot_is_named(tmp_path):
    assert chosen(a_run(tmp_path)) == (Start(6, read_checkpoints(tmp_path)[-1]), [])
    start, said = chosen(tmp_path, broken=("s6",))
    assert start.step == 4
    assert len(said) == 1
    assert "000006" in said[0]
    with refused("000006", "s6", kind=CheckpointError):
        chosen(tmp_path, broken=("s2", "s4", "s6"))


def test_while_everything_since_the_beginning_is_kept_the_beginning_is_the_last_resort(tmp_path):
    a_run(tmp_path)
    InFlight(tmp_path / "inflight").group_log(0, "0.0").keep_sampled(REQUEST, sampled(1))
    assert chosen(tmp_path, broken=("s2", "s4", "s6"))[0] == Start()


@given(at=st.integers(0, 10_000), bit=st.integers(0, 7), name=st.sampled_from([METRICS, ROLLOUTS]))
def test_a_record_that_is_altered_is_read_past_and_the_newest_weights_are_used(tmp_path_factory, at, bit, name):
    folder = a_run(tmp_path_factory.mktemp("run"))
    data = bytearray((folder / name).read_bytes())
    before = list(read_lines(folder / name))
    data[at % len(data)] ^= 1 << bit
    (folder / name).write_bytes(data)
    kept, _ = resumed(folder, name)
    assert sum(row in before for row in kept) >= len(before) - 2


def resumed(folder: Path, name: str) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of a record that a resume from the newest checkpoint keeps, before its own; and its message."""
    start, said = chosen(folder)
    assert start.step == 6
    go_back(folder, start, said.append)
    lines = JsonLines(folder / name)
    lines.append({"step": 6})
    lines.close()
    *kept, last = read_record(folder / name)
    assert last == {"step": 6}
    return kept, said


@pytest.mark.long
@given(size=st.integers(0, 10_000))
def test_a_record_that_lost_its_end_keeps_its_whole_lines(tmp_path_factory, size):
    folder = a_run(tmp_path_factory.mktemp("run"))
    whole = (folder / ROLLOUTS).read_bytes()
    before = list(read_lines(folder / ROLLOUTS))
    size %= len(whole)
    os.truncate(folder / ROLLOUTS, size)
    kept, said = resumed(folder, ROLLOUTS)
    assert kept == before[: whole[:size].count(b"\n")]
    assert ROLLOUTS in said[0]


def test_a_damaged_line_of_the_checkpoints_is_refused_by_name_and_a_torn_last_one_was_never_written(tmp_path):
    path = a_run(tmp_path) / "checkpoints.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    assert chosen(tmp_path)[0].step == 4
    path.write_bytes(whole.replace(b'"step": 4', b'"step": \x00'))
    with refused("checkpoints.jsonl", "line 2", kind=DataError):
        chosen(tmp_path)
    first, _, last = whole.splitlines(keepends=True)
    path.write_bytes(first + last)
    assert chosen(tmp_path)[0].step == 6


@pytest.mark.parametrize("text", ["", '{"state_path": "s2"}\n'])
def test_checkpoints_that_are_gone_or_name_no_step_begin_no_run_anew(tmp_path, text):
    (a_run(tmp_path) / "checkpoints.jsonl").write_text(text)
    with refused("checkpoints.jsonl", kind=CheckpointError):
        chosen(tmp_path)


def test_going_back_leaves_each_step_once(tmp_path):
    a_run(tmp_path)
    start, _ = chosen(tmp_path, broken=("s6",))
    go_back(tmp_path, start, print)
    for name in (METRICS, ROLLOUTS):
        assert [json.loads(line)["step"] for line in (tmp_path / name).read_text().splitlines()] == [0, 1, 2, 3]
    assert [record["step"] for record in read_checkpoints(tmp_path)] == [2, 4]


def test_a_checkpoint_whose_completions_sampled_ahead_are_missing_is_not_used(tmp_path):
    a_run(tmp_path)
    inflight = InFlight(tmp_path / "inflight")
    inflight.group_log(6, "0.0").keep_sampled(REQUEST, sampled(7))
    newest = read_checkpoints(tmp_path)[-1]
    append_checkpoint(tmp_path, {**newest, "lengths": {**newest["lengths"], **inflight.sync([6])}})
    assert chosen(tmp_path)[0].step == 6
    path = tmp_path / "inflight" / "000006.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    start, said = chosen(tmp_path)
    assert start.step == 4
    assert "000006.jsonl" in said[0]
    with refused("000006.jsonl", "init_from=", kind=CheckpointError):
        chosen(tmp_path, broken=("s2", "s4"))


def test_a_checkpoint_without_lengths_is_not_used_and_no_record_is_cut(tmp_path):
    a_run(tmp_path)
    path = tmp_path / "checkpoints.jsonl"
    rows = [{name: row[name] for name in row if name != "lengths"} for row in read_checkpoints(tmp_path)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    before = (tmp_path / METRICS).read_bytes()
    with refused("lengths", "init_from=", kind=CheckpointError):
        chosen(tmp_path)
    assert (tmp_path / METRICS).read_bytes() == before


@pytest.mark.long
def test_only_the_newest_checkpoints_are_kept_and_what_the_last_two_need(tmp_path):
    sizes = {"batch_size": 4, "group_size": 2, "max_tokens": 8, "eval_samples": 1, "eval_limit": 1}
    given = small(tmp_path, max_steps=4, save_every=1, eval_every=1, keep_checkpoints=2, **sizes)
    assert train_command(given) == 0
    assert [record["step"] for record in read_checkpoints(tmp_path)] == [3, 4]
    left = sorted(path.name.removesuffix(".safetensors") for path in (tmp_path / "checkpoints").iterdir())
    assert left == ["000003.sampler", "000003.state", "000004.sampler", "000004.state"]
    assert [path.name for path in (tmp_path / "inflight").glob("*.jsonl")] == ["000003.jsonl"]
    assert [path.name for path in (tmp_path / "inflight" / "evaluations").iterdir()] == ["000004.jsonl"]


# Completions in flight


def test_completions_and_verdicts_of_the_same_request_come_back(tmp_path):
    problem = Problem("echo", "Print the line.", (StdinTest("a", "a"), StdinTest("b", "b", public=True)))
    failed = asyncio.run(judge_async(problem, "input()\nprint('a')", shared_box()))
    assert failed.failure is not None
    log = InFlight(tmp_path / "inflight").group_log(3, "1.0")
    log.keep_sampled(REQUEST, sampled(7, 8))
    log.keep_verdict((False, "pass"), PASSED)
    log.keep_verdict((True, "pass"), failed)
    log.keep_verdict((False, "lost"), Verdict(VerdictKind.SANDBOX_ERROR, 0, 1, "lcb"))
    again = InFlight(tmp_path / "inflight").group_log(3, "1.0")
    assert again.sampled(REQUEST) == sampled(7, 8)
    assert (again.verdict((False, "pass")), again.verdict((True, "pass"))) == (PASSED, failed)
    assert again.verdict((False, "lost")) is None  # it is judged again
    assert again.verdict((False, None)) is None
    for other in ((3, "1.1"), (4, "1.0")):
        assert InFlight(tmp_path / "inflight").group_log(*other).sampled(REQUEST) is None


@pytest.mark.parametrize(
    "other", [{"seed": 6}, {"max_tokens": 9}, {"prompt_tokens": (1, 2, 4)}, {"temperature": 0.0}, {"count": 3}]
)
def test_completions_of_another_request_do_not(tmp_path, other):
    log = InFlight(tmp_path / "inflight").group_log(3, "1.0")
    log.keep_sampled(REQUEST, sampled(7))
    assert log.sampled(replace(REQUEST, **other)) is None
