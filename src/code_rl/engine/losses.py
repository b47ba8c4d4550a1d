"""L(θ): each loss once, for the engine that trains (torch) and for metrics computed without one
(NumPy).

With p the probability of a token under the weights in training, q the one it was sampled with, A
its advantage and ρ = p / q, the loss of a token is what `about` says in `LOSSES`: the formula, and
a line with its source. In gspo, s is the geometric mean of ρ over the tokens that
`sequence_ratio_mask` marks, as a constant, times p / stop_gradient(p). `POLICY_LOSSES` are those of
a run's `loss=`; the others are for servers.

Losses are summed over tokens and datums, never averaged, as Tinker defines it. A position whose
advantage (or weight) is zero contributes nothing, whatever the loss; to `dro` it does where it was
sampled: where log q is not 0.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from code_rl.util.errors import ConfigError
from code_rl.util.registry import attribute_errors_to, find

Tokens = Any
"""A torch tensor or a NumPy array with one number per token, [T]."""
Inputs = Mapping[str, Tokens]
Settings = Mapping[str, float]
LOW, HIGH = "clip_low_threshold", "clip_high_threshold"
"""Tinker's names of the interval that ratios are clipped to."""


@dataclass(frozen=True)
class Loss:
    """A loss: `formula(ops, logprobs_T, inputs, settings)` gives one number per token, where `ops`
    is the module numpy or torch.

    `inputs` are the fields of a datum that it reads beside `target_tokens`; where all of `signal`
    are zero a position does not count. `defaults` are its settings, in Tinker's `loss_fn_config`;
    None: it must be given. A formula for a `whole` sequence is given one at a time, any other all
    tokens of several. `about` is for help and documents.
    """

    name: str
    formula: Callable[[ModuleType, Tokens, Inputs, Settings], Tokens]
    defaults: Mapping[str, float | None]
    inputs: tuple[str, ...] = ("logprobs", "advantages")
    signal: tuple[str, ...] = ("advantages",)
    whole: bool = False
    about: str = ""

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
        if not bool(ops.isfinite(losses).all()):
            raise ValueError(f"with {ops.__name__} its formula gives {losses}")
        return losses


def _importance_sampling(
    ops: ModuleType, logprobs: Tokens, inputs: Inputs, settings: Settings
) -> Tokens:
    del settings
    return -(_ratio(ops, logprobs, inputs) * inputs["advantages"])


def _ppo(ops: ModuleType, logprobs: Tokens, inputs: Inputs, settings: Settings) -> Tokens:
    return _surrogate(ops, _ratio(ops, logprobs, inputs), inputs["advantages"], settings)


def _surrogate(ops: ModuleType, ratio: Tokens, advantages: Tokens, settings: Settings) -> Tokens:
    """Holds back only those that would go further in the direction of their advantage."""
    return -ops.minimum(
        ratio * advantages, ops.clip(ratio, settings[LOW], settings[HIGH]) * advantages
    )


def _cispo(ops: ModuleType, logprobs: Tokens, inputs: Inputs, settings: Settings) -> Tokens:
    clipped = ops.clip(_ratio(ops, _constant(logprobs), inputs), settings[LOW], settings[HIGH])
    return -(clipped * inputs["advantages"] * logprobs)


def _cross_entropy(ops: ModuleType, logprobs: Tokens, inputs: Inputs, settings: Settings) -> Tokens:
    del ops, settings
    return -(inputs["weights"] * logprobs)


def _dro(ops: ModuleType, logprobs: Tokens, inputs: Inputs, settings: Settings) -> Tokens:
    sampled, advantages = inputs["logprobs"], inputs["advantages"]
    losses = 0.5 * settings["beta"] * (logprobs - sampled) ** 2 - logprobs * advantages
    return ops.where((sampled != 0) | (advantages != 0), losses, 0 * logprobs)


def _gspo(ops: ModuleType, logprobs: Tokens, inputs: Inputs, settings: Settings) -> Tokens:
    constant, mask = _constant(logprobs), inputs["sequence_ratio_mask"] != 0
    gap = ops.where(mask, constant - inputs["logprobs"], 0 * constant).sum() / max(
        int(mask.sum()), 1
    )
    return _surrogate(ops, ops.exp(gap + logprobs - constant), inputs["advantages"], settings)


def _constant(logprobs: Tokens) -> Tokens:
    return logprobs.detach() if hasattr(logprobs, "detach") else logprobs


def _ratio(ops: ModuleType, logprobs: Tokens, inputs: Inputs) -> Tokens:
    return ops.exp(logprobs - inputs["logprobs"])


POLICY_LOSSES: Mapping[str, Loss] = {
    loss.name: loss
    for loss in (
        Loss("importance_sampling", _importance_sampling, {}, about="−ρ · A\nTinker"),
        Loss(
            "ppo",
            _ppo,
            {LOW: 0.8, HIGH: 1.2},
            about="−min(ρ · A, clip(ρ) · A)\nSchulman et al. 2017, arXiv 1707.06347",
        ),
        Loss(
            "cispo",
            _cispo,
            {LOW: 0.0, HIGH: 4.0},
            about="−stop_gradient(clip(ρ)) · A · log p\nMiniMax 2025, arXiv 2506.13585",
        ),
    )
}
LOSSES: Mapping[str, Loss] = {
    "cross_entropy": Loss(
        "cross_entropy", _cross_entropy, {}, ("weights",), ("weights",), about="−w · log p"
    ),
    **POLICY_LOSSES,
    "dro": Loss(
        "dro",
        _dro,
        {"beta": None},
        signal=("advantages", "logprobs"),
        about="−(log p · A − ½ · beta · (log p − log q)²)\nRichemond et al. 2024, arXiv 2405.19107",
    ),
    "gspo": Loss(
        "gspo",
        _gspo,
        {LOW: 1 - 3e-4, HIGH: 1 + 4e-4},
        ("logprobs", "advantages", "sequence_ratio_mask"),
        ("advantages", "sequence_ratio_mask"),
        whole=True,
        about="−min(s · A, clip(s) · A)\nZheng et al. 2025, arXiv 2507.18071",
    ),
}


def get_loss(name: str) -> Loss:
    """The policy loss called `name`, or the `Loss` that `package.module:object` is, under that
    name. Raises ConfigError."""
    loss = find("loss", name, POLICY_LOSSES)
    if not isinstance(loss, Loss):
        raise ConfigError(
            f"loss={name} is no Loss; wrap its formula: code_rl.Loss('name', formula, {{}})"
        )
    return loss if name in POLICY_LOSSES else replace(loss, name=name)


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
    unknown = sorted(set(loss.inputs) - {"logprobs", "advantages"})
    if unknown:
        raise ConfigError(
            f"loss={loss.name} reads {', '.join(unknown)}; datums have logprobs and advantages"
        )
    for ops in (importlib.import_module("numpy"), importlib.import_module("torch")):
        make = ops.asarray([-1.0, -2.0])
        now = make.requires_grad_() if hasattr(make, "requires_grad_") else make
        inputs = {"logprobs": ops.asarray([-1.5, -1.0]), "advantages": ops.asarray([1.0, -1.0])}
        with attribute_errors_to("loss", loss.name):
            losses = loss.checked(ops, now, {name: inputs[name] for name in loss.inputs}, settings)
            if ops.__name__ == "torch" and not losses.requires_grad:
                raise ValueError("its formula has no gradient: nothing would be learned")
