"""From a problem to a trajectory: prompts, environments, renderers, sampling and rewards.

`sample` draws and judges groups of trajectories; `completion_log` keeps each completion and verdict
on disk the moment it arrives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from code_rl.util.door import door

if TYPE_CHECKING:
    from code_rl.policy.sample import (
        GroupGrader,
        Policy,
        Sampling,
        cap_max_tokens,
        derive_seed,
        prompt_length,
        refuse_prompts,
    )
    from code_rl.policy.trajectory import Group, Trajectory, Turn
else:  # a type checker would take any name for one of ours
    __getattr__ = door(__name__)
