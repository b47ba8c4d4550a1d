"""The loop on the embedded default, at reduced size: real model, real programs, real verdicts."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from code_rl.engine.checkpoints import read_checkpoints
from code_rl.grading.sandbox.executor import Execution, Executor, Job
from code_rl.training import prepare, read_metrics
from code_rl.util.errors import SandboxError
from tests.refusals import refused
from tests.stand_in import StandIn
from tests.training.pipeline_support import rollouts, untimed
from tests.training.pipeline_support import small as make
from tests.verbs import train_command


def small(log_path: Path, **changes: str) -> dict[str, str]:
    return make(log_path, **{"max_steps": "3", "save_every": "1", "eval_every": "2", **changes})


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    log_path = tmp_path_factory.mktemp("runs") / "finished"
    assert train_command(small(log_path)) == 0
    return log_path


def test_metrics_have_a_baseline_one_line_a_step_and_a_closing_evaluation(finished):
    records = read_metrics(finished)
    assert [record["step"] for record in records] == [-1, 0, 1, 2]
    for record in (records[0], records[-1]):
        for key in ("eval/mean_correct", "eval/pass@1", "eval/pass@k", "eval/pass@2", "eval/format_rate"):
            assert 0 <= record[key] <= 1
    assert "eval/mean_correct" in records[2]
    assert "eval/pass@1" not in records[2]
    for record in records[1:]:
        assert record["groups_total"] == 4
        assert sum(value for key, value in record.items() if key.startswith("verdicts/")) == 16
        assert record["tokens/completion"] > 0
        assert {"mean_reward", "mean_correct", "format_rate", "groups_skipped", "n_datums", "loss"} <= set(record)
        assert {"time/sample", "time/score", "time/train", "time/step"} <= set(record)


def test_sampler_and_trainer_agree_on_every_token_trained_on(finished):
    ratios = [record["ratio_max"] for record in read_metrics(finished) if record.get("ratio_max") is not None]
    assert ratios
    assert max(ratios) < 1e-3


def test_rollouts_hold_what_was_rewarded_and_why(finished):
    groups = rollouts(finished)
    assert len(groups) == 12
    for group in groups:
        rewards = [completion["reward"] for completion in group["completions"]]
        assert len(rewards) == 4
        for completion in group["completions"]:
            assert completion["advantage"] == pytest.approx(completion["reward"] - sum(rewards) / 4)
            assert (completion["reward"] == 1.0) == (completion["verdict"] == "passed")
            assert (completion["reward"] == pytest.approx(-0.1)) == (completion["verdict"] == "no_code")
            assert len(completion["tokens"]) == len(completion["logprobs"])


def test_resumed_run_equals_the_uninterrupted_one(finished, tmp_path):
    log_path = tmp_path / "resumed"
    assert train_command(small(log_path, max_steps="1")) == 0
    assert train_command({"log_path": str(log_path), "max_steps": "3"}) == 0
    resumed, whole = untimed(log_path), untimed(finished)
    assert resumed[2:] == whole[2:]
    assert [record["step"] for record in resumed] == [-1, 0, 1, 2]
    assert rollouts(log_path) == rollouts(finished)


class FailingSometimes(StandIn):
    """An executor that loses every third submission."""

    def __init__(self, inner: Executor) -> None:
        self.inner, self.calls = inner, 0

    async def run(self, job: Job) -> AsyncIterator[Execution]:
        self.calls += 1
        if self.calls % 3 == 0:
            raise SandboxError("lost")
        async for execution in self.inner.run(job):
            yield execution

    async def aclose(self) -> None:
        await self.inner.aclose()


@pytest.mark.long
def test_completions_that_the_sandbox_lost_are_masked_counted_and_no_part_of_a_baseline(tmp_path, monkeypatch):
    import code_rl.training.assembly

    connect = vars(code_rl.training.assembly)["connect_executor"]
    monkeypatch.setattr(
        code_rl.training.assembly,
        "connect_executor",
        lambda *args, **kwargs: FailingSometimes(connect(*args, **kwargs)),
    )
    assert train_command(small(tmp_path, max_steps="2", eval_every="-1")) == 0
    lost = [record["verdicts/sandbox_error"] for record in read_metrics(tmp_path) if "verdicts/sandbox_error" in record]
    groups = rollouts(tmp_path)
    masked = 0
    for group in groups:
        known = [c["reward"] for c in group["completions"] if c["reward"] is not None]
        for completion in group["completions"]:
            if completion["verdict"] == "sandbox_error":
                masked += 1
                assert completion["reward"] is None
                assert completion["advantage"] is None
            else:
                assert completion["advantage"] == pytest.approx(completion["reward"] - sum(known) / len(known))
    assert masked == sum(lost) > 0


def test_max_tokens_beyond_the_context_is_capped_and_said(tmp_path, capsys):
    assert train_command(small(tmp_path, max_tokens="4096", max_steps="1", eval_every="-1", save_every="0")) == 0
    assert "max_tokens=4096 capped to" in capsys.readouterr().out
    assert not (tmp_path / "checkpoints.jsonl").exists()


@pytest.fixture
def handlers():
    """A run that was interrupted is followed by the end of its process; not so here."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
def test_interrupt_finishes_the_step_saves_and_says_how_to_resume(tmp_path, capsys):
    run = tmp_path / "run"

    def interrupt() -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not ((run / "metrics.jsonl").exists() and read_metrics(run)):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    given = small(run, batch_size="8", max_tokens="24", max_steps="-1", eval_every="-1")
    assert train_command(given) == 128 + signal.SIGINT
    assert re.search(rf"to resume: .+ log_path={run}", capsys.readouterr().out)
    assert read_checkpoints(run)[-1]["step"] == read_metrics(run)[-1]["step"] + 1


@pytest.mark.parametrize(
    ("name", "value"), [("learning_rate", "0.5"), ("max_steps_off_policy", "1"), ("recipe", "qwen3-4b")]
)
def test_resuming_with_another_value_is_refused_by_name(finished, name, value):
    with refused(f"{name}={value}"):
        prepare({"log_path": str(finished), name: value})
