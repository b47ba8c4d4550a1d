"""The embedded sandbox: `pool` is the executor, `launcher` starts the zygote, whose code is in `guest`, `link` speaks to a worker.

Others import `EmbeddedSandbox` from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from code_rl.sandbox.embedded.pool import EmbeddedSandbox

__all__ = ["EmbeddedSandbox"]


def __getattr__(name: str) -> Any:
    # The zygote imports its half of this package and must stay small: the host's half is loaded on use.
    if name == "EmbeddedSandbox":
        from code_rl.sandbox.embedded.pool import EmbeddedSandbox

        return EmbeddedSandbox
    raise AttributeError(name)
