"""The losses that the engine trains with: those of `algorithm.losses`, whose formulas it computes in torch."""

from __future__ import annotations

from collections.abc import Mapping

from code_rl.algorithm.losses import LOSSES, Loss, Settings, loss_settings
from code_rl.errors import ConfigError

__all__ = ["LOSSES", "Loss", "Settings", "resolve_loss"]


def resolve_loss(name: str, config: Mapping[str, float | str] | None) -> tuple[Loss, Settings]:
    """Return the loss and its complete settings.

    Raises ConfigError for an unknown loss, an unknown setting, or a value that is not a finite number.
    """
    if name not in LOSSES:
        raise ConfigError(f"loss_fn {name!r} is not implemented by the embedded engine; it has {', '.join(LOSSES)}")
    return LOSSES[name], loss_settings(LOSSES[name], config)
