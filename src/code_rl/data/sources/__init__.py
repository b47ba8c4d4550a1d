"""Readers of public data sets, one file per family of shapes. Each turns a raw row into a
`Problem`, a `Draft`, an `Ambiguous` or a `Skipped`.

`shapes` chooses the reader of a row; to add a reader, write a function and list it there. `records`
has the result types; `testcases` and `asserts` read tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from code_rl.util.door import door

if TYPE_CHECKING:
    from code_rl.data.sources.records import COMPLETE, REQUEST, Skipped
    from code_rl.data.sources.verl import CODE_R1_SYSTEM, code_r1_question
else:  # a type checker would take any name for one of ours
    __getattr__ = door(__name__)
