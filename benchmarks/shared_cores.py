"""How long steps take where the stages share processor cores, as on the bare embedded engine: whatever is under way is slowed alike when more are wanted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from code_rl.forecast import Plan, Schedule, StageTimes


@dataclass(slots=True)
class _Work:
    """Something under way: `left` seconds at full speed, on `cores` cores."""

    kind: str
    step: int
    left: float
    cores: float


def simulate_shared(
    times: StageTimes, plan: Plan, cores: float, seed: int = 0, *, batch_sampling: bool = False
) -> Schedule:
    """`code_rl.forecast.simulate` with processor sharing: each stage is one piece of work per batch, done in turn by its stage.

    With `batch_sampling` the seconds of `times.sample_s` are of batches, whose completions end together.
    """
    rng = np.random.default_rng(seed)
    sample = (
        rng.choice(times.sample_s, plan.steps)
        if batch_sampling
        else np.array([rng.choice(times.sample_s, plan.completions).max() for _ in range(plan.steps)])
    )
    score = np.array([rng.choice(times.score_s, plan.programs).sum() for _ in range(plan.steps)]) / plan.sandboxes
    train = rng.choice(times.train_s, plan.steps)
    lag, now = plan.max_steps_off_policy, 0.0
    next_of = {"sample": 0, "score": 0, "train": 0}
    done = {"sample": -1, "score": -1, "train": -1}
    seconds = {"sample": sample, "score": score, "train": train}
    width = {"sample": 1.0, "score": float(min(plan.sandboxes, cores)), "train": 1.0}
    running: dict[str, _Work] = {}
    ends: list[float] = []
    while done["train"] < plan.steps - 1:
        ready = {
            "sample": next_of["sample"] - lag <= done["train"] + 1,
            "score": next_of["score"] <= done["sample"],
            "train": next_of["train"] <= done["score"],
        }
        for kind, possible in ready.items():
            if kind not in running and possible and next_of[kind] < plan.steps:
                step = next_of[kind]
                running[kind] = _Work(kind, step, float(seconds[kind][step]), width[kind])
                next_of[kind] += 1
        wanted = sum(work.cores for work in running.values())
        speed = min(1.0, cores / wanted)
        pause = min(work.left for work in running.values()) / speed
        now += pause
        for kind, work in list(running.items()):
            work.left -= pause * speed
            if work.left <= 1e-12:
                done[kind] = work.step
                del running[kind]
                if kind == "train":
                    ends.append(now)
    warm = min(plan.steps // 4, 5)
    period = (ends[-1] - ends[warm]) / (plan.steps - 1 - warm)
    return Schedule(period, float(sample.mean()), float(score.mean()), float(train.mean()))
