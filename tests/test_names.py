"""Names that users' scripts, files and dashboards have: `published_names.toml` lists those of the releases, and each is still in use."""

from __future__ import annotations

import json
import tomllib

import pytest

pytest.importorskip("chz")

import chz

from code_rl.cli.main import VERBS
from code_rl.engine.losses import LOSSES
from code_rl.grading import VerdictKind
from code_rl.policy.environments import ENVIRONMENTS
from code_rl.policy.prompt_templates import PROMPTS
from code_rl.policy.rewards import REWARDS
from code_rl.training.algorithm.advantages import ESTIMATORS
from code_rl.training.algorithm.metrics import METRICS
from code_rl.training.config import make_config
from tests.paths import ROOT
from tests.training.pipeline_support import small
from tests.verbs import train_command

PUBLISHED = tomllib.loads((ROOT / "tests" / "published_names.toml").read_text())
REGISTRIES = {
    "loss": LOSSES,
    "advantage": ESTIMATORS,
    "reward": REWARDS,
    "environment": ENVIRONMENTS,
    "prompt": PROMPTS,
    "verdict": {kind.value for kind in VerdictKind},
}


@pytest.mark.parametrize("verb", PUBLISHED["settings"])
def test_a_verb_has_all_its_published_settings(verb):
    assert {*PUBLISHED["settings"][verb]} <= {*chz.chz_fields(VERBS[verb].settings_class())}


@pytest.mark.parametrize("setting", REGISTRIES)
def test_a_published_value_is_still_known(setting):
    assert {*PUBLISHED["values"][setting]} <= {*REGISTRIES[setting]}


@pytest.mark.parametrize("recipe", PUBLISHED["values"]["recipe"])
def test_a_published_recipe_can_be_read(recipe):
    assert make_config({"recipe": recipe}).recipe == recipe


def test_every_published_metric_is_declared():
    assert {*PUBLISHED["run"]["metrics"]} <= {metric.name for metric in METRICS}


@pytest.mark.long
def test_a_run_writes_the_published_files_and_fields(tmp_path):
    assert train_command(small(tmp_path, max_steps=2)) == 0
    published = PUBLISHED["run"]
    assert {*published["files"]} <= {path.name for path in tmp_path.iterdir()}
    checkpoint = json.loads((tmp_path / "checkpoints.jsonl").open().readline())
    assert {*published["checkpoint"]} <= checkpoint.keys()
    group = json.loads((tmp_path / "rollouts.jsonl").open().readline())
    assert {*published["group"]} <= group.keys()
    assert {*published["completion"]} <= group["completions"][0].keys()
