"""The in-process PyTorch engine with Tinker's client interface.

`EmbeddedService` is imported on first use, so that the built-in model's files can be found without
loading torch.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

from code_rl.util.errors import ConfigError

if TYPE_CHECKING:
    from code_rl.engine.places import TrainingOptions
    from code_rl.util.options import SamplingOptions

    from .service import EmbeddedService

__all__ = ["EmbeddedService", "memory_lines"]


def share_cores() -> None:
    """Make OpenMP's threads sleep soon after they run out of work, unless OMP_WAIT_POLICY or
    GOMP_SPINCOUNT is set. Call it before torch is loaded, which reads this setting once.

    The sandbox shares the cores with these threads and would starve if they kept spinning as long
    as they do by default. Threads that sleep at once would halve the speed of sampling: a step has
    hundreds of short operations, and each would wake them.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def memory_lines(options: SamplingOptions, training: TrainingOptions) -> list[str]:
    """Return the memory plan for these settings as lines for a reader, or the reason that the model
    does not fit, as a line too. No weights are loaded. Without torch, or for a model whose pass
    cannot be traced, there are no lines."""
    if find_spec("torch") is None:
        return []
    from .device import Device
    from .memory import plan_of
    from .service import resolve_device, resolve_dtype

    try:
        place = resolve_device(options.device)
        plan = plan_of(options, training, Device(place), resolve_dtype(options.dtype, place))
    except ConfigError as error:
        return [f"memory: {error}"]
    return [] if plan is None else [str(plan)]


def __getattr__(name: str) -> object:
    """Import `EmbeddedService`, and torch with it, on first use, after `share_cores`. Raises
    AttributeError for any other name."""
    if name != "EmbeddedService":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    share_cores()
    from .service import EmbeddedService

    return EmbeddedService
