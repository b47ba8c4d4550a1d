"""How long steps take where the stages share processor cores, as on the bare embedded engine: whatever is under way is slowed alike when more are wanted."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


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
    """`simulate` with processor sharing: each stage is one piece of work per batch, done in turn by its stage.

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


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Measured seconds: `sample_s` per completion, `score_s` per program, `train_s` per batch."""

    sample_s: Sequence[float]
    score_s: Sequence[float]
    train_s: Sequence[float]


@dataclass(frozen=True, slots=True)
class Plan:
    """The subject of a plan: K, the batch, the pools."""

    max_steps_off_policy: int = 0
    completions: int = 128
    programs: int = 128
    sandboxes: int = 16
    steps: int = 50


@dataclass(frozen=True, slots=True)
class Schedule:
    """Seconds per step, after the pipeline has filled, and the stages' own seconds: the slowest bounds the step."""

    step_s: float
    sample_s: float
    score_s: float
    train_s: float


def simulate(times: StageTimes, plan: Plan) -> Schedule:
    """How long steps take under the overlapped schedule, on times drawn from those measured. Deterministic.

    The model: completions of a batch are sampled concurrently, each for a time drawn from those given; a program waits for one of
    `sandboxes` places, first come first served; the trainer takes the minibatches of a batch in their order, one after the other. Batch n
    is begun when the weights behind max(0, n − K) steps are there. Left out: network, evaluations, checkpoints, retries.
    """
    rng = np.random.default_rng(0)
    sandboxes = [0.0] * plan.sandboxes
    trained = [0.0]
    samples, scores, trains = [], [], []
    lag = plan.max_steps_off_policy
    for step in range(plan.steps):
        begun = trained[max(step - lag, 0)]
        drawn = rng.choice(times.sample_s, plan.completions)
        arrivals = np.sort(begun + drawn)[-plan.programs :]
        programs = rng.choice(times.score_s, plan.programs)
        scored = begun + float(drawn.max())
        for arrival, seconds in zip(arrivals, programs, strict=True):
            ended = max(float(arrival), heapq.heappop(sandboxes)) + float(seconds)
            heapq.heappush(sandboxes, ended)
            scored = max(scored, ended)
        train = float(rng.choice(times.train_s))
        trained.append(max(scored, trained[-1]) + train)
        samples.append(float(drawn.max()))
        scores.append(float(programs.sum()) / plan.sandboxes)
        trains.append(train)
    warm = min(plan.steps // 4, 5)
    period = (trained[-1] - trained[warm]) / (plan.steps - warm)
    return Schedule(period, float(np.mean(samples)), float(np.mean(scores)), float(np.mean(trains)))
