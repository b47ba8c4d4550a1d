"""A run's programs under other tests: which rewards would have been others, and where the run was still sound."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from code_rl.objective import Objective
from code_rl.replaying.recording import RecordedGroup, Recording
from code_rl.reward.verdict import Verdict, VerdictKind
from code_rl.rollouts.trajectory import Trajectory
from code_rl.runs.checkpoints import read_checkpoints

Judged = Mapping[str, Any]
"""A row of `commands.judge.format_verdict`."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One completion of a run: where it is, and whether a datum was made of it."""

    line: RecordedGroup
    number: int

    @property
    def trajectory(self) -> Trajectory:
        """What was sampled."""
        return self.line.group.trajectories[self.number]

    @property
    def where(self) -> str:
        """For people."""
        again = f" attempt {self.line.attempt}" if self.line.attempt else ""
        return f"step {self.line.step}, group {self.line.place}{again}, completion {self.number}"

    def row(self, objective: Objective, judged: Judged | None) -> dict[str, Any]:
        """A line of `rejudge.jsonl`; `judged` is None where the problem is not among those given."""
        was = self.trajectory.verdict
        facts = {
            "step": self.line.step,
            "group": self.line.place,
            "attempt": self.line.attempt,
            "completion": self.number,
            "problem_id": self.line.group.problem.id,
            "trained": self.number in self.line.trained_on,
            "was": was.kind.value,
        }
        if judged is None:
            return {**facts, "verdict": None, "changed": False, "key": None}
        total = int(judged["total"])
        now = Verdict(VerdictKind(judged["verdict"]), int(judged["passed"]), total, str(judged["rule"]))
        before, after = (objective.reward.of(each) for each in (self.trajectory, _with_verdict(self.trajectory, now)))
        changed = after is not None and before != after
        about = {
            "verdict": now.kind.value,
            "passed": now.passed,
            "total": total,
            "failure": judged["failure"],
            "rule": judged["rule"],
        }
        return {**facts, **about, "reward": before, "reward_now": after, "changed": changed, "key": judged["key"]}


def completions(recording: Recording) -> Iterator[Completion]:
    """All of a run's, in order. Raises DataError for a record that is damaged."""
    for step in recording.steps():
        for line in step.groups:
            yield from (Completion(line, number) for number in range(len(line.group.trajectories)))


def last_sound_checkpoint(run: Path, step: int) -> str | None:
    """The last checkpoint from which `step` has not yet been trained on."""
    records = [each for each in read_checkpoints(run) if "state_path" in each and int(each.get("step", 0)) <= step]
    return str(max(records, key=lambda each: int(each["step"]))["name"]) if records else None


def _with_verdict(trajectory: Trajectory, verdict: Verdict) -> Trajectory:
    return Trajectory((*trajectory.turns[:-1], replace(trajectory.last, verdict=verdict)))
