"""How good is it? `code-rl eval` and the evaluations of a training run.

`benchmarks` are the problems, `completers` and `endpoint` give samples, `runner` keeps and judges
them (`samples`), `figures` has pass@k and intervals, `results` and `compare` make tables, `rating`
the Codeforces rating.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from code_rl.util.door import door

if TYPE_CHECKING:
    from code_rl.evaluation.figures import Estimate, combined, wilson
    from code_rl.evaluation.held_out import evaluate, evaluation_metrics
else:  # a type checker would take any name for one of ours
    __getattr__ = door(__name__)
