"""How good is it? `code-rl eval`, and the evaluations of a training run (`held_out`).

`session` runs benchmarks, `runner` samples and judges, `pass_at_k` has the estimator and intervals,
and `comparison` compares two evaluations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from code_rl.util.door import door

if TYPE_CHECKING:
    from code_rl.evaluation.comparison import COMPARISON, compare
    from code_rl.evaluation.generators import open_policy
    from code_rl.evaluation.held_out import evaluate, evaluation_metrics
    from code_rl.evaluation.samples import SAMPLES
    from code_rl.evaluation.session import check_benchmarks, evaluate_benchmarks, holds_evaluations
    from code_rl.evaluation.settings import EvalConfig, make_eval_config
    from code_rl.evaluation.view import EvalView
else:  # a type checker would take any name for one of ours
    __getattr__ = door(__name__)
