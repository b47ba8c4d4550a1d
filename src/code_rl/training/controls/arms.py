"""The arms: one run of `train` for each arm and seed, with the same problems, steps and tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from code_rl.training.assembly import prepare
from code_rl.training.config import Config, make_config
from code_rl.util.errors import ConfigError

RL = "rl"
ARMS: dict[str, str] = {
    RL: "the settings as given",
    "random": "reward 0 or 1 by seed, never by the answer",
    "format": "reward 1 for an answer with a program, right or wrong",
    "own": "supervised on the base's own samples, none of them verified",
}
OURS = {
    "seed": "seeds=",
    "log_path": "out=",
    "eval_every": "nothing: the base and the end of each arm are evaluated",
    "behavior_if_log_dir_exists": "another out=: what is there goes on",
}
"""Settings of `train` that `controls` sets itself, each with the setting to give instead."""
UNJUDGED = {
    "format_coef": 0.0,
    "canary": 0.0,
    "overlong": "judged",
    "length_coef": 0.0,
    "dynamic_sampling": 0,
    "curriculum": "uniform",
}
"""Settings of every arm but rl: no answer and no verdict changes its rewards or its problems."""
OF_EVALUATIONS = ("eval_limit", "eval_samples", "test_dataset")


@dataclass(frozen=True, slots=True)
class ControlPlan:
    """The runs of `code-rl controls`: `given` are settings of `train`; `out` has one folder per
    run."""

    given: Mapping[str, Any]
    out: Path
    seeds: Sequence[int]
    arms: Sequence[str]
    base_temperatures: Sequence[float]
    own_temperature: float
    own_top_p: float

    @property
    def runs(self) -> list[tuple[str, int]]:
        """Every arm with every seed, ordered by seed, then as `arms`. An interrupted command then
        has whole comparisons."""
        return [(arm, seed) for seed in self.seeds for arm in self.arms]

    def settings(self, arm: str, seed: int) -> dict[str, Any]:
        """Return the settings of `train` for one run: the given ones without those of evaluations,
        its seed, its directory `out/ARM-SEED`, no evaluation, and the changes of the arm."""
        kept = {name: value for name, value in self.given.items() if name not in OF_EVALUATIONS}
        common = {"seed": seed, "log_path": str(self.out / f"{arm}-{seed}"), "eval_every": -1}
        return {**kept, **common, **self._changes(arm)}

    def evaluation(self, seed: int) -> Config:
        """Return the evaluation settings of a seed, the same for every arm. Raises ConfigError for
        a wrong setting."""
        return make_config({**self.given, "seed": seed})

    def _changes(self, arm: str) -> dict[str, Any]:
        """Return the settings in which the arm differs from the run that it controls; they replace
        given ones. `own` samples every batch before the first step."""
        if arm == RL:
            return {}
        if arm in ("random", "format"):
            return UNJUDGED | {"reward": arm}
        return UNJUDGED | {
            "advantage": "ones",
            "loss": "reinforce",
            "clip_low": None,
            "clip_high": None,
            "max_steps_off_policy": self.evaluation(self.seeds[0]).max_steps,
            "temperature": self.own_temperature,
            "top_p": self.own_top_p,
        }


def check_plan(plan: ControlPlan) -> None:
    """Raise ConfigError for a run that cannot be made, before time is spent on any arm: a setting
    that `controls` sets itself, an unknown or repeated arm, a repeated seed or temperature, no end,
    or a setting that `train` refuses. Writes nothing."""
    for name, instead in OURS.items():
        if name in plan.given:
            raise ConfigError(f"{name}={plan.given[name]} is set by controls; give {instead}")
    for arm in plan.arms:
        if arm not in ARMS:
            raise ConfigError(f"arms={arm} is unknown; there are: {', '.join(ARMS)}")
    for name, values in (("arms", plan.arms), ("seeds", plan.seeds)):
        if not values or len(set(values)) < len(values):
            raise ConfigError(f"{name}= must name at least one, each once")
    shown = [f"{each:g}" for each in plan.base_temperatures]
    if len({*shown}) < len(shown) or not all(
        0 < each < math.inf for each in plan.base_temperatures
    ):
        raise ConfigError(f"base_temperatures={','.join(shown)} must be above 0 and differ")
    config = plan.evaluation(plan.seeds[0])
    for name in ("max_steps", "save_every"):
        if getattr(config, name) < 1:
            raise ConfigError(
                f"{name}={getattr(config, name)} gives no end to compare; give 1 or more"
            )
    for arm, seed in plan.runs:
        prepare(plan.settings(arm, seed))


def lines(plan: ControlPlan) -> Iterator[str]:
    """Yield the lines of the plan that `dry_run=true` prints. Raises ConfigError for wrong
    settings."""
    config = plan.evaluation(plan.seeds[0])
    for number, (arm, seed) in enumerate(plan.runs):
        yield f"run {number + 1} of {len(plan.runs)}: {arm}, seed {seed}: {ARMS[arm]}"
    yield f"each: {config.max_steps} steps of {config.model_name} on {config.dataset}"
    at = ", ".join(f"{each:g}" for each in plan.base_temperatures)
    yield f"base: evaluated at temperatures {at}"
    limit = f"{config.eval_limit} problems a split" if config.eval_limit > 0 else "all problems"
    yield f"held out: {limit}, greedy and {config.eval_samples} samples"
