"""Capabilities: a back end refuses by name the settings that it lacks."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from code_rl.engine import BackendKind, TrainingOptions, connect
from code_rl.training.assembly import trainable
from code_rl.training.config import make_config
from code_rl.training.objective import objective_of
from tests.refusals import refused


@cache
def embedded() -> Any:
    """The capabilities of the embedded engine, of which others differ in what a test says."""
    backend = asyncio.run(connect(make_config({"backend": "embedded"}), TrainingOptions(), Path("unused")))
    backend.close()
    return backend.capabilities


def limited(**facts: Any) -> Any:
    listed = {"ppo": frozenset({"clip_low_threshold"})}
    return replace(embedded(), **{"kind": BackendKind.SERVER, "losses": listed, **facts})


def test_a_back_end_has_the_losses_and_settings_that_it_lists_unless_a_probe_found_them_refused():
    assert limited().has_loss("ppo", {"clip_low_threshold": 0.9})
    assert not limited().has_loss("ppo", {"clip_high_threshold": 1.1})
    assert not limited().has_loss("mis")
    assert limited(losses=None).has_loss("mis")
    assert not limited(refused_losses=frozenset({"ppo"})).has_loss("ppo")


@pytest.mark.parametrize(("loss", "by_name"), [("ppo", True), ("mis", False), ("cispo", False)])
def test_a_loss_is_sent_by_name_where_the_back_end_has_it_and_else_computed_here(loss, by_name):
    config = make_config({"loss": loss})
    backend: Any = SimpleNamespace(capabilities=limited())
    said: list[str] = []
    trained = trainable(objective_of(config), backend, config, said.append)
    assert trained.loss.by_name is by_name
    assert [f"loss={loss}" in line for line in said] == [True] * (not by_name)


def kind(*, scaled, trains):
    keys = frozenset({"temperature"} if trains else ())
    return limited(losses={"ppo": keys}, scaled_logprobs=scaled)


@pytest.mark.parametrize(
    ("scaled", "trains", "at", "noticed"),
    [(True, True, {"temperature": 0.7}, False), (False, True, {}, True), (False, False, {}, True)],
)
def test_passes_are_at_the_temperature_of_the_samples_or_the_run_says_so(scaled, trains, at, noticed):
    able = kind(scaled=scaled, trains=trains)
    able.require_temperature(0.7)
    assert able.pass_settings(0.7) == at
    assert able.pass_temperature(0.7) == at.get("temperature", 1.0)
    assert (able.temperature_notice(0.7) is not None) == noticed


def test_samples_that_are_scaled_need_passes_that_are_and_the_head_of_a_run_says_which():
    with refused("temperature="):
        kind(scaled=True, trains=False).require_temperature(0.7)
    assert "trained at the same temperature" in kind(scaled=True, trains=True).describe()
    assert "trained at" not in kind(scaled=True, trains=False).describe()


def test_a_custom_loss_has_a_temperature_only_in_process():
    served = kind(scaled=True, trains=True)
    with refused("temperature="):
        served.require_temperature(0.7, custom_loss=True)
    served.require_temperature(1.0, custom_loss=True)
    replace(served, kind=BackendKind.EMBEDDED).require_temperature(0.7, custom_loss=True)


def test_one_loss_without_temperature_is_a_trainer_without():
    losses = {"ppo": frozenset({"temperature"}), "dro": frozenset[str]()}
    assert not limited(losses=losses).trains_at_temperature
    assert not limited(losses=None).trains_at_temperature
