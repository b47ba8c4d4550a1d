"""Trackers, each against its real library, offline; a library that is not installed is skipped."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from code_rl.training.runs.metrics_log import MAX_FAILURES, TRACKERS, Guarded, read_log_to, setup_logging
from tests.refusals import refused

CONFIG = {"seed": 7, "model_name": "tiny", "learning_rate": 0.002, "resolved": {"prompts": 8, "id": "ab12"}}
STEPS = [(-1, {"eval/pass@1": 0.25}), (0, {"loss": -0.5, "broken": float("nan"), "none": None}), (1, {"loss": -0.75})]


def log_in_a_process(log_dir: Path, name: str, **environment: str) -> None:
    """Write the same small run through `setup_logging` as a run would, in a process of its own without a network."""
    code = (
        "import json, sys; from code_rl.training.runs.metrics_log import setup_logging\n"
        "config, steps = json.loads(sys.argv[3])\n"
        "logger = setup_logging(sys.argv[1], config, log_to=[sys.argv[2]])\n"
        "for step, metrics in steps: logger.log_metrics(metrics, step)\n"
        "logger.close(); sys.exit(sum(each.failures for each in logger.loggers[2:]))"
    )
    given = json.dumps([CONFIG, STEPS])
    hidden = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(log_dir), name, given],
        env={**os.environ, **hidden, **environment},
        capture_output=True,
        text=True,
        timeout=280,
    )
    log = (log_dir / "logs.log").read_text() if (log_dir / "logs.log").exists() else ""
    assert done.returncode == 0, done.stderr + log


def test_tensorboard_events_hold_the_metrics_and_the_settings(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log_in_a_process(tmp_path / "run", "tensorboard")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(0, -0.5), (1, -0.75)]
    assert [(event.step, event.value) for event in events.Scalars("eval/pass@1")] == [(-1, 0.25)]
    assert b'"seed": 7' in events.Tensors("settings")[0].tensor_proto.string_val[0]
    assert "broken" not in events.Tags()["scalars"]


@pytest.mark.slow
def test_wandb_records_offline_what_it_would_send(tmp_path):
    pytest.importorskip("wandb")
    log_in_a_process(tmp_path / "run", "wandb", WANDB_MODE="offline")
    (record,) = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
    assert record.name == "run-ab12.wandb"
    raw = record.read_bytes()
    for expected in (b"eval/pass@1", b"loss", b"-0.75", b"learning_rate", b"0.002"):
        assert expected in raw, expected


def test_a_tracker_that_fails_is_counted_and_left_alone_and_the_run_goes_on(tmp_path, caplog, monkeypatch):
    asked = []

    def log(*given: object) -> None:
        asked.append(given)
        raise ConnectionError("the service is away")

    monkeypatch.setitem(TRACKERS, "wandb", lambda *_: (log, lambda: log("close")))
    logger = setup_logging(tmp_path, CONFIG, log_to=["wandb"])
    logging.getLogger("code_rl").propagate = True
    guarded = logger.loggers[-1]
    assert isinstance(guarded, Guarded)
    for step in range(MAX_FAILURES + 3):
        logger.log_metrics({"loss": 1.0}, step)
    assert len(asked) == guarded.failures == MAX_FAILURES
    logger.close()
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == MAX_FAILURES + 3
    assert "log_to=wandb failed" in (tmp_path / "logs.log").read_text()
    assert "left alone" in caplog.text


@pytest.mark.parametrize(
    ("log_to", "named"), [("wandbb", "'wandb'"), ("tensorboard,tensorboard", "tensorboard"), ("wandb", "[wandb]")]
)
def test_names_that_cannot_be_honoured_are_refused(log_to, named, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if log_to == "wandb" else object())
    with refused(named):
        read_log_to(log_to)
