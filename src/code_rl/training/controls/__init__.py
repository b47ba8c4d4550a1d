"""Training beside its controls: `arms` defines the runs; `run` makes, evaluates and
compares them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from code_rl.util.door import door

if TYPE_CHECKING:
    from code_rl.training.controls.arms import ControlPlan
    from code_rl.training.controls.run import run_controls
else:  # a type checker would take any name for one of ours
    __getattr__ = door(__name__)
