"""The algorithm, one idea per file: functions of records, without files, processes or a loop.

`datums` and `kl` make examples; `advantages` and `shaping` turn rewards into advantages. `lengths`
has the token limits by step, and `metrics` the metrics of a step. Two functions send requests to
a given trainer: `datums.forward_backward` and `datums.train_step`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from code_rl.util.door import door

if TYPE_CHECKING:
    from code_rl.training.algorithm.advantages import compute_advantages, should_skip
    from code_rl.training.algorithm.datums import make_datum, train_step
else:  # a type checker would take any name for one of ours
    __getattr__ = door(__name__)
