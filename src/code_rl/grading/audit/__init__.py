"""The audit of a grader. `programs` is the corpus, `graders` calls the grader, and `scorecard`
counts its decisions and renders them.

Only the verb imports this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from code_rl.util.door import door

if TYPE_CHECKING:
    from code_rl.grading.audit.graders import AuditedGrader, Function, GraderOutcome, Ours
    from code_rl.grading.audit.programs import Corpus, CorpusProgram, load_corpus
    from code_rl.grading.audit.scorecard import Row, Scorecard, audit_grader, render
else:  # a type checker would take any name for one of ours
    __getattr__ = door(__name__)
