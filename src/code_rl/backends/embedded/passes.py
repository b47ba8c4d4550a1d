"""What a forward or forward_backward request asks for, checked: a loss, its settings, and the temperature of the policy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from code_rl.algorithm import losses
from code_rl.algorithm.losses import LOSSES, Loss, Settings
from code_rl.errors import ConfigError

TEMPERATURE = "temperature"
# Below it, logits divided by the temperature leave fp32.
MIN_TEMPERATURE = 1e-5


@dataclass(frozen=True)
class Pass:
    """How a pass is computed. Logits are divided by `temperature` before the log-softmax, so that the policy that is trained
    is the one that completions were drawn from."""

    loss: Loss
    settings: Settings
    temperature: float = 1.0


def read_pass(loss_fn: str, config: Mapping[str, float | str] | None) -> Pass:
    """The pass that `loss_fn` and `loss_fn_config` ask for; every loss takes `temperature`.

    Raises ConfigError for an unknown loss, an unknown setting, or a value that cannot be.
    """
    settings = dict(config or {})
    temperature = settings.pop(TEMPERATURE, 1.0)
    check_temperature(temperature, f"loss_fn_config {TEMPERATURE}")
    if loss_fn not in LOSSES:
        raise ConfigError(f"loss_fn {loss_fn!r} is not implemented by the embedded engine; it has {', '.join(LOSSES)}")
    return Pass(LOSSES[loss_fn], losses.loss_settings(LOSSES[loss_fn], settings), float(temperature))


def check_temperature(value: object, name: str) -> None:
    """Raise ConfigError for a temperature at which there are no log-probabilities."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < MIN_TEMPERATURE:  # type: ignore[arg-type, operator]
        raise ConfigError(f"{name}={value!r} must be a finite number of at least {MIN_TEMPERATURE}")


def loss_settings() -> dict[str, frozenset[str]]:
    """Each loss of the engine with the keys that its `loss_fn_config` may have."""
    return {name: frozenset({*loss.defaults, TEMPERATURE}) for name, loss in LOSSES.items()}
