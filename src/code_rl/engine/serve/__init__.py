"""`code-rl serve`: the embedded engine behind the Tinker SDK's wire protocol.

`application` routes requests (`wire`) to calls. `core` holds shared state and orders operations,
and `promises` are their results. The embedded engine trains and samples. `store` is the state that
survives a restart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from code_rl.util.door import door

if TYPE_CHECKING:
    from code_rl.engine.serve.application import TinkerApplication
    from code_rl.engine.serve.core import Core, read_models
    from code_rl.engine.serve.promises import ServiceLimits
    from code_rl.engine.serve.store import StateStore
else:  # a type checker would take any name for one of ours
    __getattr__ = door(__name__)
