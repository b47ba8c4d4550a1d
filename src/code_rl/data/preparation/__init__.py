"""`code-rl prepare`: stages that turn raw problems into problems worth training on, and report what
they dropped and why.

`pipeline` runs the stages on a shared `workspace`; each is a function, in `filter`, `copies`,
`verify` and `write`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from code_rl.util.door import door

if TYPE_CHECKING:
    from code_rl.data.preparation.pipeline import prepare
    from code_rl.data.preparation.settings import PrepareConfig
else:  # a type checker would take any name for one of ours
    __getattr__ = door(__name__)
