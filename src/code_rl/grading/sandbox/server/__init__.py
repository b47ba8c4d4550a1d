"""Our Sandbox Fusion server: `run_code`, `jobs` and `boxes`, and `application`, which has all.

The verb imports `application`, and `run_code` for its limits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from code_rl.util.door import door

if TYPE_CHECKING:
    from code_rl.grading.sandbox.executor import require_linux
    from code_rl.grading.sandbox.fusion.protocol import RUN_PATH
    from code_rl.grading.sandbox.fusion.transport import TOKEN_VARIABLE
    from code_rl.grading.sandbox.local.pool import EmbeddedSandbox
    from code_rl.grading.sandbox.server.application import SandboxApplication
    from code_rl.grading.sandbox.server.run_code import RunLimits
else:  # a type checker would take any name for one of ours
    __getattr__ = door(__name__)
