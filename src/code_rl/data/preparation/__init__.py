"""`code-rl prepare`: stages that turn raw problems into problems worth training on, and report what
they dropped and why.

There is one file per stage, and a folder for `verify`. `pipeline` runs the stages on a shared
`workspace`; `decisions` stores their decisions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from code_rl.util.door import door

if TYPE_CHECKING:
    from code_rl.data.preparation.pipeline import check, prepare
    from code_rl.data.preparation.report import PrepareView
    from code_rl.data.preparation.settings import PrepareConfig
else:  # a type checker would take any name for one of ours
    __getattr__ = door(__name__)
