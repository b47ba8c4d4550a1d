"""A copied run directory stands for itself, whatever lies where it was trained."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from code_rl.engine.checkpoints import checkpoint_record, get_last_checkpoint
from code_rl.util.errors import CheckpointError
from tests.training.pipeline_support import rollouts, small, untimed
from tests.verbs import train_command

pytestmark = pytest.mark.long


class Runs(NamedTuple):
    """A whole run of two steps, one cut after the first and then copied, and another run in its old place."""

    whole: Path
    copy: Path
    old_place: Path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("copied")
    runs = Runs(folder / "whole", folder / "copy", folder / "old")
    assert train_command(small(runs.whole, max_steps=2, save_every=1)) == 0
    assert train_command(small(runs.old_place, max_steps=1)) == 0
    runs.old_place.rename(runs.copy)
    assert train_command(small(runs.old_place, max_steps=1, learning_rate=1e-2)) == 0
    return runs


@pytest.fixture
def copy(trained: Runs, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained.copy, tmp_path / "copy"))


def state_of(run: Path) -> Path:
    recorded = get_last_checkpoint(run)
    assert recorded is not None
    return run / "checkpoints" / Path(recorded["state_path"]).name


def test_an_evaluation_or_export_of_a_copy_reads_the_state_beside_its_log(copy):
    assert checkpoint_record(str(copy))[1]["state_path"] == str(state_of(copy))


def test_a_resumed_copy_goes_on_as_the_run_it_was_copied_from(trained, copy):
    assert train_command(small(copy, max_steps=2, save_every=1)) == 0
    assert untimed(copy) == untimed(trained.whole)
    assert rollouts(copy) == rollouts(trained.whole)


@pytest.mark.parametrize("missing", [False, True])
def test_the_state_of_another_run_is_refused(trained, copy, missing):
    state_of(copy).unlink()
    if not missing:
        shutil.copyfile(state_of(trained.old_place), state_of(copy))
    with pytest.raises(CheckpointError):
        checkpoint_record(str(copy))
