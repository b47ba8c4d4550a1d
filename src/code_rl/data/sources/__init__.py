"""Readers of public data sets, a file a family of shapes: each turns a raw row into a `Problem`, a
`Draft`, an `Ambiguous` or a `Skipped`.

`shapes` tells which reader a row is for; a reader of your own is one function and its line there.
Others import `shapes` and `records` (what a reader gives), who reads or judges tests `testcases`
and `asserts`; a benchmark, a data set and a wording what is known of their own rows: `humaneval`,
`mbpp`, `livecodebench`, `verl`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from code_rl.util.door import door

if TYPE_CHECKING:
    from code_rl.data.sources.records import COMPLETE, REQUEST, Skipped
    from code_rl.data.sources.verl import CODE_R1_SYSTEM, code_r1_question
else:  # a type checker would take any name for one of ours
    __getattr__ = door(__name__)
