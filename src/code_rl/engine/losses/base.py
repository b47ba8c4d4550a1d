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
"""Tinker's name of the field that marks the tokens over which a sequence's ratio is computed."""


@dataclass(frozen=True)
class Loss:
    """A loss: `formula(ops, logprobs_T, inputs, settings)` returns one number per token, where
    `ops` is the module numpy or torch.

    `inputs` are the datum's fields that it reads besides `target_tokens`. A position does not count
    if all fields of `signal` are zero there. `defaults` are its settings, in Tinker's
    `loss_fn_config`; None means that the setting is required. A `whole` formula gets one sequence
    at a time, others get the tokens of several. `limits` are settings at which nothing is clipped
    or masked: a token whose loss they change is held back. `by_name` means that back ends know the
    loss by its name; otherwise it is computed through `forward_backward_custom`. `about` is for
    help and documents.
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
        """Return a copy of the settings without clipping or masking, or None for a loss that never
        does either."""
        open_ended = {key: value for key, value in self.limits.items() if key in settings}
        return {**settings, **open_ended} if open_ended else None

    def held_back(
        self, ops: ModuleType, logprobs: Tokens, inputs: Inputs, settings: Settings
    ) -> Tokens | None:
        """Return booleans, [T]: True for each token whose loss the settings clip or mask. None for
        a loss that never does either. The formula runs twice, unchecked."""
        unlimited = self.unlimited(settings)
        if unlimited is None:
            return None
        losses = self.formula(ops, logprobs, inputs, settings)
        return losses != self.formula(ops, logprobs, inputs, unlimited)

    def checked(
        self, ops: ModuleType, logprobs: Tokens, inputs: Inputs, settings: Settings
    ) -> Tokens:
        """Return the formula's losses_T, with the gradient of `logprobs` in torch. Raises
        ValueError unless there is one finite number per token."""
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
    """Return the same numbers without a gradient. A NumPy array is returned unchanged."""
    return logprobs.detach() if hasattr(logprobs, "detach") else logprobs


def ratio(ops: ModuleType, logprobs: Tokens, inputs: Inputs) -> Tokens:
    """Return ρ = p / q of each token, [T], within e^±60 so that its float32 stays finite. p are the
    current log-probabilities, with their gradient, and q those of `inputs["logprobs"]`, at
    sampling."""
    return ops.exp(ops.clip(logprobs - inputs["logprobs"], -MOST_LOG_RATIO, MOST_LOG_RATIO))


def sequence_ratio(ops: ModuleType, logprobs: Tokens, inputs: Inputs) -> Tokens:
    """Return log s, one number without a gradient, within ±60: the mean of log ρ over the tokens of
    one sequence that `sequence_ratio_mask` marks. It is 0 if none is marked. A whole batch would be
    taken for one sequence."""
    now, mask = constant(logprobs), inputs[SEQUENCE] != 0
    total = ops.where(mask, now - inputs["logprobs"], 0 * now).sum()
    # A float of the same type, left where it is: the host would wait for a device's answer.
    count = ops.clip(mask.sum(dtype=now.dtype), 1, None)
    return ops.clip(total / count, -MOST_LOG_RATIO, MOST_LOG_RATIO)


def surrogate(ops: ModuleType, ratios: Tokens, advantages: Tokens, settings: Settings) -> Tokens:
    """Return PPO's clipped loss −min(ρ · A, clip(ρ) · A) of each token, [T]. It clips only tokens
    that would move further in the direction of their advantage. `settings` has both bounds."""
    return -ops.minimum(
        ratios * advantages, ops.clip(ratios, settings[LOW], settings[HIGH]) * advantages
    )


def loss_settings(loss: Loss, given: Mapping[str, float | str] | None) -> Settings:
    """Return the complete settings of `loss`: the `given` values, else its defaults. None: the
    defaults alone.

    Raises ConfigError if a setting is unknown or missing, a value is not a finite number, or an
    interval is empty.
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
        raise ConfigError(
            f"loss={loss.name} has no default of {key!r}: give it one, or the value in "
            f"loss_fn_config (a run sets {LOW} and {HIGH} alone)"
        )
    low, high = settings.get(LOW), settings.get(HIGH)
    if low is not None and high is not None and low > high:
        raise ConfigError(f"{LOW}={low} is above {HIGH}={high}")
    return settings


def check_loss(loss: Loss, given: Mapping[str, float] | None) -> None:
    """Compute a custom loss on two tokens, as metrics (NumPy) and training (torch) will, before a
    run begins. `given` are its settings (None: its defaults). Raises ConfigError, naming the loss,
    if it fails, has no gradient, or reads a field that datums do not have."""
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
