"""The record of a loss, its settings and their checks, and the ratios that formulas share."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from code_rl.util.errors import ConfigError
from code_rl.util.registry import attribute_errors_to

Tokens = Any
"""A torch tensor or a NumPy array with one number per token, [T]."""
Inputs = Mapping[str, Tokens]
Settings = Mapping[str, float]
LOW, HIGH = "clip_low_threshold", "clip_high_threshold"
"""Tinker's names of the interval that ratios are clipped to."""
MOST_LOG_RATIO = 60.0
SEQUENCE = "sequence_ratio_mask"
"""Tinker's name of the field that marks the tokens of a sequence's ratio."""


@dataclass(frozen=True)
class Loss:
    """A loss: `formula(ops, logprobs_T, inputs, settings)` gives one number per token, where `ops`
    is the module numpy or torch.

    `inputs` are the fields of a datum that it reads beside `target_tokens`; where all of `signal`
    are zero a position does not count. `defaults` are its settings, in Tinker's `loss_fn_config`;
    None: it must be given. A formula for a `whole` sequence is given one at a time, any other all
    tokens of several. `limits` are settings at which nothing is clipped or masked: a token whose
    loss they change is held back. `by_name`: back ends have it under its name; else it is computed
    through `forward_backward_custom`. `about` is for help and documents.
    """

    name: str
    formula: Callable[[ModuleType, Tokens, Inputs, Settings], Tokens]
    defaults: Mapping[str, float | None]
    inputs: tuple[str, ...] = ("logprobs", "advantages")
    signal: tuple[str, ...] = ("advantages",)
    whole: bool = False
    about: str = ""
    limits: Mapping[str, float] = field(default_factory=lambda: {LOW: -math.inf, HIGH: math.inf})
    by_name: bool = False

    def unlimited(self, settings: Settings) -> Settings | None:
        """The same settings where nothing is held back; None for a loss that never does that."""
        open_ended = {key: value for key, value in self.limits.items() if key in settings}
        return {**settings, **open_ended} if open_ended else None

    def held_back(
        self, ops: ModuleType, logprobs: Tokens, inputs: Inputs, settings: Settings
    ) -> Tokens | None:
        """Which tokens the loss clips or masks; None for a loss that never does that."""
        unlimited = self.unlimited(settings)
        if unlimited is None:
            return None
        losses = self.formula(ops, logprobs, inputs, settings)
        return losses != self.formula(ops, logprobs, inputs, unlimited)

    def checked(
        self, ops: ModuleType, logprobs: Tokens, inputs: Inputs, settings: Settings
    ) -> Tokens:
        """The formula's losses_T. Raises ValueError unless they are one finite number a token."""
        losses = self.formula(ops, logprobs, inputs, settings)
        count, shape = len(logprobs), tuple(losses.shape)
        if shape != (count,):
            raise ValueError(
                f"with {ops.__name__} its formula gives shape {shape} for {count} tokens; it "
                "must give one loss a token"
            )
        finite = ops.isfinite(losses)
        if not bool(finite.all()):
            first = float(losses[~finite][0])
            raise ValueError(f"with {ops.__name__} its formula gives {first} for a token")
        return losses


def constant(logprobs: Tokens) -> Tokens:
    """The same numbers, through which no gradient flows."""
    return logprobs.detach() if hasattr(logprobs, "detach") else logprobs


def ratio(ops: ModuleType, logprobs: Tokens, inputs: Inputs) -> Tokens:
    """ρ = p / q of each token, within e^±60 so that its float32 stays finite."""
    return ops.exp(ops.clip(logprobs - inputs["logprobs"], -MOST_LOG_RATIO, MOST_LOG_RATIO))


def sequence_ratio(ops: ModuleType, logprobs: Tokens, inputs: Inputs) -> Tokens:
    """log s: the mean of log ρ over the marked tokens of one sequence, as a constant, [1]."""
    now, mask = constant(logprobs), inputs[SEQUENCE] != 0
    total = ops.where(mask, now - inputs["logprobs"], 0 * now).sum()
    return ops.clip(total / max(int(mask.sum()), 1), -MOST_LOG_RATIO, MOST_LOG_RATIO)


def surrogate(ops: ModuleType, ratios: Tokens, advantages: Tokens, settings: Settings) -> Tokens:
    """PPO's clipped objective: hold back only those tokens that would go further in the direction
    of their advantage."""
    return -ops.minimum(
        ratios * advantages, ops.clip(ratios, settings[LOW], settings[HIGH]) * advantages
    )


def loss_settings(loss: Loss, given: Mapping[str, float | str] | None) -> Settings:
    """The complete settings of `loss`, its defaults where nothing is `given`.

    Raises ConfigError for an unknown setting, one that is missing, a value that is not a finite
    number, or an interval that is none.
    """
    settings = {key: value for key, value in loss.defaults.items() if value is not None}
    for key, value in (given or {}).items():
        if key not in loss.defaults:
            known = ", ".join(loss.defaults) or "none"
            raise ConfigError(
                f"loss_fn_config key {key!r} is not a setting of {loss.name!r}; its settings: "
                f"{known}"
            )
        if isinstance(value, (bool, str)) or not math.isfinite(value):
            raise ConfigError(f"loss_fn_config {key}={value!r} must be a finite number")
        settings[key] = float(value)
    for key in loss.defaults.keys() - settings.keys():
        raise ConfigError(f"{loss.name!r} has no default of {key!r}: give it in loss_fn_config")
    low, high = settings.get(LOW), settings.get(HIGH)
    if low is not None and high is not None and low > high:
        raise ConfigError(f"{LOW}={low} is above {HIGH}={high}")
    return settings


def check_loss(loss: Loss, given: Mapping[str, float] | None) -> None:
    """Compute a loss of the user's on two tokens, as metrics (NumPy) and training (torch) will.
    Raises ConfigError, naming it, where it cannot be."""
    for key in [
        key for key, value in loss.defaults.items() if value is None and key not in (given or {})
    ]:
        raise ConfigError(
            f"loss={loss.name} has no default of its setting {key!r}; give it one: a run sets "
            f"{LOW} and {HIGH} alone"
        )
    settings = loss_settings(loss, given)
    unknown = sorted(set(loss.inputs) - {"logprobs", "advantages", SEQUENCE})
    if unknown:
        raise ConfigError(
            f"loss={loss.name} reads {', '.join(unknown)}; datums have logprobs and advantages"
        )
    for ops in (importlib.import_module("numpy"), importlib.import_module("torch")):
        make = ops.asarray([-1.0, -2.0])
        now = make.requires_grad_() if hasattr(make, "requires_grad_") else make
        inputs = {"logprobs": ops.asarray([-1.5, -1.0]), "advantages": ops.asarray([1.0, -1.0])}
        inputs[SEQUENCE] = ops.asarray([1.0, 1.0])
        with attribute_errors_to("loss", loss.name):
            losses = loss.checked(ops, now, {name: inputs[name] for name in loss.inputs}, settings)
            if ops.__name__ == "torch" and not losses.requires_grad:
                raise ValueError("its formula has no gradient: nothing would be learned")
