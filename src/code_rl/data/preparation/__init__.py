"""`code-rl prepare`: from raw problems to problems worth training on, by stages that each say what
they dropped and why.

A file a stage, those of `verify` in a room; `pipeline` runs them, `workspace` and `ledger` are what
they share. The verb imports `pipeline`, `settings`, `report`, `write`, and of the stages
`difficulty`, `normalise` and `evaluation_sets`, to check and announce them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from code_rl.util.door import door

if TYPE_CHECKING:
    from code_rl.data.preparation.pipeline import prepare
    from code_rl.data.preparation.plan import check, say_plan
    from code_rl.data.preparation.report import PrepareView
    from code_rl.data.preparation.settings import PrepareConfig
else:  # a type checker would take any name for one of ours
    __getattr__ = door(__name__)
