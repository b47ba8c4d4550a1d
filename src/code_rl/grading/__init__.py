"""Is this program right? Problems, the judge and its verdicts.

A program runs in `sandbox/`. `judging` compares its outputs by the problem's rule (`compare`).
`audit/` tests graders that others wrote.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from code_rl.util.door import door

if TYPE_CHECKING:
    from code_rl.grading.extract import extract_code
    from code_rl.grading.judging import judge, judge_async
    from code_rl.grading.problem import (
        CallTest,
        Compare,
        Problem,
        ProblemView,
        SequenceTest,
        StdinTest,
        TestCase,
    )
    from code_rl.grading.verdict import Verdict, VerdictKind
else:  # a type checker would take any name for one of ours
    __getattr__ = door(__name__)
