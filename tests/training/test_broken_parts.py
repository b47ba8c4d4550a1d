"""A part of a user's own that is wrong ends the run with one line that names it: at the start wherever it can be seen there."""

from __future__ import annotations

import pytest

from tests.refusals import refused
from tests.training import broken_parts
from tests.training.pipeline_support import rollouts, small
from tests.verbs import train_command


@pytest.mark.long
@pytest.mark.parametrize(
    ("setting", "name"),
    [
        *(("advantage", name) for name in ("few", "huge")),
        *(("reward", name) for name in ("nan", "text", "later", "leaves")),
        ("prompt", "sentence"),
        *(("environment", name) for name in ("Mute", "Unready", "Hasty", "Numbered", "Halved")),
        *(("loss", name) for name in ("SHORT", "NOT_FINITE", "TORCH_ONLY", "FLAT", "STRANGE", "UNSET")),
        *(("loss", name) for name in ("LATE_FLAT", "LATE_NAN")),
    ],
)
@pytest.mark.filterwarnings("ignore:coroutine")
def test_a_broken_part_is_named_in_one_line(tmp_path, setting, name):
    with refused(f"{setting}="):
        train_command(small(tmp_path / "run", max_steps=1, **{setting: f"tests.training.broken_parts:{name}"}))
    if setting == "loss" and not name.startswith("LATE"):
        assert not (tmp_path / "run" / "rollouts.jsonl").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("setting", "name"), [("advantage", "raises"), ("reward", "raises"), ("environment", "Failing"), ("loss", "LATE")]
)
def test_a_part_that_raises_names_its_file_and_line_and_the_log_has_the_traceback(tmp_path, setting, name):
    with refused(f"{setting}=", f"{broken_parts.__file__}:"):
        train_command(small(tmp_path / "run", max_steps=1, **{setting: f"tests.training.broken_parts:{name}"}))
    assert "Traceback" in (tmp_path / "run" / "logs.log").read_text()


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        *(("reward", name) for name in ("later", "LATER", "LATER_TOO", "Later", "three")),
        *(("advantage", name) for name in ("later", "LATER", "three")),
    ],
)
def test_a_function_that_cannot_be_called_as_its_part_is_refused_before_anything_is_written(tmp_path, setting, name):
    with refused(f"{setting}="):
        train_command(small(tmp_path / "run", **{setting: f"tests.training.broken_parts:{name}"}))
    assert not (tmp_path / "run").exists()


def test_a_module_that_fails_as_it_is_imported_is_named_by_file_and_line(tmp_path, monkeypatch):
    (tmp_path / "fails_at_once.py").write_text("import json\n\njson.loads('{')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with refused("reward=", "fails_at_once.py:3"):
        train_command(small(tmp_path / "run", reward="fails_at_once:reward"))


def test_a_clip_range_that_a_loss_does_not_take_is_refused_before_anything_is_sampled(tmp_path):
    with refused("clip_low=", "loss="):
        train_command(small(tmp_path / "run", loss="tests.training.broken_parts:PLAIN", clip_low=0.1))
    assert not (tmp_path / "run" / "rollouts.jsonl").exists()


def test_an_environment_that_never_ends_is_ended_at_its_max_turns(tmp_path):
    assert (
        train_command(small(tmp_path, max_steps=1, environment="tests.training.broken_parts:Endless", save_every=0))
        == 0
    )
    rows = [row for group in rollouts(tmp_path) for row in group["completions"]]
    assert not any("turns" in row for row in rows)
