"""The sandbox: `executor` is the contract, `connect` makes the executor of `executor=`.

`local/` is the embedded sandbox (namespaces, seccomp, Landlock), with the boxes that `boxes` opens.
`remote` runs programs on other machines: `fusion/` on servers, `cluster` on the nodes of Ray.
`server/` is `code-rl sandbox`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from code_rl.util.door import door

if TYPE_CHECKING:
    from code_rl.grading.sandbox.boxes import open_box
    from code_rl.grading.sandbox.commands import Box
    from code_rl.grading.sandbox.connect import (
        check_executor,
        connect_executor,
        resolve_executor,
    )
    from code_rl.grading.sandbox.executor import (
        Executor,
        Job,
        Limits,
        OnDemand,
        Status,
        StdinInput,
    )
    from code_rl.grading.sandbox.shared import shared_executor
else:  # a type checker would take any name for one of ours
    __getattr__ = door(__name__)
