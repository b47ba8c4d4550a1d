"""From a problem to a trajectory: environments, renderers, sampling and rewards.

`environments/` says what a problem is to a policy, `renderers/` turn messages into tokens and back,
`sample` draws and judges groups, `inflight` keeps completions and verdicts the moment they arrive,
`rewards` turn a judged `trajectory` into a number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from code_rl.util.door import door

if TYPE_CHECKING:
    from code_rl.policy.lengths import cap_max_tokens, prompt_length, refuse_prompts
    from code_rl.policy.sample import GroupGrader, Policy, Sampling, derive_seed
    from code_rl.policy.trajectory import Group, Trajectory, Turn
else:  # a type checker would take any name for one of ours
    __getattr__ = door(__name__)
