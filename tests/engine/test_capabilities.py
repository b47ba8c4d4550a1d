"""Capabilities: what a back end cannot do is refused by name."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from code_rl.engine.places import BackendKind, Capabilities
from code_rl.training.assembly import trainable
from code_rl.training.config import make_config
from code_rl.training.objective import objective_of
from code_rl.util.errors import ConfigError

LIMITED = Capabilities(BackendKind.SERVER, {"ppo": frozenset({"clip_low_threshold"})}, scaled_logprobs=True)


def test_a_back_end_has_the_losses_and_settings_that_it_lists():
    assert LIMITED.has_loss("ppo", {"clip_low_threshold": 0.9})
    assert not LIMITED.has_loss("ppo", {"clip_high_threshold": 1.1})
    assert not LIMITED.has_loss("mis")


def test_a_loss_that_a_probe_found_refused_is_not_had_whatever_is_listed():
    assert not replace(LIMITED, refused_losses=frozenset({"ppo"})).has_loss("ppo")


@pytest.mark.parametrize(("loss", "by_name"), [("ppo", True), ("mis", False), ("cispo", False)])
def test_a_loss_is_sent_by_name_where_the_back_end_has_it_and_else_computed_here(loss, by_name):
    config = make_config({"loss": loss})
    backend: Any = SimpleNamespace(capabilities=LIMITED)
    said: list[str] = []
    trained = trainable(objective_of(config), backend, config, said.append)
    assert trained.loss.by_name is by_name
    assert [f"loss={loss}" in line for line in said] == [True] * (not by_name)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_scaled_logprobs_are_the_policys_own_at_these_temperatures(temperature):
    LIMITED.require_temperature(temperature)


def test_scaled_samples_need_a_trainer_that_scales():
    with pytest.raises(ConfigError, match=r"temperature=0\.7 cannot be trained with"):
        LIMITED.require_temperature(0.7)


def kind(*, scaled, trains):
    keys = frozenset({"temperature"} if trains else ())
    return Capabilities(BackendKind.SERVER, {"ppo": keys}, scaled_logprobs=scaled)


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


def test_a_custom_loss_has_a_temperature_only_in_process():
    served = kind(scaled=True, trains=True)
    with pytest.raises(ConfigError, match=r"temperature=0\.7 cannot be trained with by a loss that is computed here"):
        served.require_temperature(0.7, custom_loss=True)
    served.require_temperature(1.0, custom_loss=True)
    replace(served, kind=BackendKind.EMBEDDED).require_temperature(0.7, custom_loss=True)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("scaled", [True, False])
def test_temperature_one_and_greedy_change_nothing(temperature, scaled):
    able = kind(scaled=scaled, trains=True)
    assert able.pass_settings(temperature) == {}
    assert able.temperature_notice(temperature) is None


def test_one_loss_without_temperature_is_a_trainer_without():
    losses = {"ppo": frozenset({"temperature"}), "dro": frozenset[str]()}
    assert not Capabilities(BackendKind.SERVER, losses).trains_at_temperature
    assert not Capabilities(BackendKind.TINKER, None).trains_at_temperature


def test_losses_that_only_a_probe_can_tell_are_not_refused_beforehand():
    assert Capabilities(BackendKind.TINKER, None).has_loss("anything", {"x": 1.0})


def test_only_losses_that_a_run_can_ask_for_are_named():
    able = Capabilities(BackendKind.SERVER, {"dro": frozenset(), "ppo": frozenset(), "cross_entropy": frozenset()})
    assert able.describe().startswith("losses ppo; ")
