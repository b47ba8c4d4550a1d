"""The algorithm and the training runs. `code_rl.loop` is the page that calls these parts.

`algorithm/` has one idea per file, and `config/` the settings. `assembly` builds a run, `pipeline`
its batches, and `trainer` starts it. `runs/` reads and writes its files; `report/` is its page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from code_rl.util.door import door
from code_rl.util.errors import TRAIN, require

require("train", __name__, *TRAIN)

if TYPE_CHECKING:
    from code_rl.training.assembly import prepare
    from code_rl.training.forecast import forecast_lines
    from code_rl.training.library import (
        TrainingResult,
        evaluate,
        evaluate_async,
        train,
        train_async,
    )
    from code_rl.training.library import report as open_report
    from code_rl.training.runs.directory import new_folder, read_metrics
    from code_rl.training.trainer import train_run
else:  # a type checker would take any name for one of ours
    __getattr__ = door(__name__)
