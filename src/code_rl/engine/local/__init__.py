"""The in-process PyTorch engine with Tinker's client interface.

`EmbeddedService` is imported on first use, so that the built-in model's files can be found without
loading torch.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .service import EmbeddedService

__all__ = ["EmbeddedService"]


def share_cores() -> None:
    """Make OpenMP's threads sleep soon after they run out of work. Call it before torch is loaded,
    which reads this setting once.

    The sandbox shares the cores with these threads and would starve if they kept spinning as long
    as they do by default. Threads that sleep at once would halve the speed of sampling: a step has
    hundreds of short operations, and each would wake them.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def __getattr__(name: str) -> object:
    if name != "EmbeddedService":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    share_cores()
    from .service import EmbeddedService

    return EmbeddedService
