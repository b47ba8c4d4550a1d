"""A run's programs under other tests: which rewards would have been others, where the run was still sound, where passing programs disagree."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from code_rl.concurrency import default_concurrency, together
from code_rl.judging.verdict import Verdict, VerdictKind
from code_rl.objective import Objective, ScoredGroup
from code_rl.preparation.bench import make_entry
from code_rl.preparation.ledger import Decision, Ledger, content_key
from code_rl.preparation.overlap.deduplicate import program_shape
from code_rl.preparation.verification.strengthen import LEAST_OTHERS, failed, reference_tests
from code_rl.problems.files import sources_digest
from code_rl.problems.problem import Problem
from code_rl.runs.checkpoints import read_checkpoints
from code_rl.runs.recorded_run import RecordedRun
from code_rl.sandbox.executor import Executor
from code_rl.trajectory import Trajectory

Judged = Mapping[str, Any]
"""A row of `commands.judge.format_verdict`."""
Find = Callable[[Problem], Problem | None]
"""The problem, with its tests, that a recorded one is, where there is one."""
MAX_PROGRAMS = 16
NO_REFERENCE, AGREED = "no reference solution", "too few programs agree"


@dataclass(frozen=True, slots=True)
class Completion:
    """One completion of a run: where it is, and whether a datum was made of it."""

    step: int
    scored: ScoredGroup
    number: int

    @property
    def trajectory(self) -> Trajectory:
        """What was sampled."""
        return self.scored.group.trajectories[self.number]

    @property
    def where(self) -> str:
        """For people."""
        return f"step {self.step}, {self.scored.group.where}, completion {self.number}"

    def row(self, objective: Objective, judged: Judged | None) -> dict[str, Any]:
        """A line of `rejudge.jsonl`; `judged` is None where the problem is not among those given."""
        group, was = self.scored.group, self.trajectory.verdict
        facts: dict[str, Any] = {"step": self.step, "group": group.place, "attempt": group.attempt}
        facts |= {"completion": self.number, "problem_id": group.problem.id}
        facts |= {"trained": self.number in dict(self.scored.trained), "was": was.kind.value}
        if judged is None:
            return {**facts, "verdict": None, "changed": False, "key": None}
        total = int(judged["total"])
        now = Verdict(VerdictKind(judged["verdict"]), int(judged["passed"]), total, str(judged["rule"]))
        judged_now = Trajectory((*self.trajectory.turns[:-1], replace(self.trajectory.last, verdict=now)))
        before, after = objective.reward.of(self.trajectory), objective.reward.of(judged_now)
        changed = after is not None and before != after
        about = {name: judged[name] for name in ("verdict", "passed", "total", "failure", "rule")}
        return {**facts, **about, "reward": before, "reward_now": after, "changed": changed, "key": judged["key"]}


def completions(recording: RecordedRun) -> Iterator[Completion]:
    """All of a run's, in order. Raises DataError for a record that is damaged."""
    for step in recording.steps():
        for scored in step.groups:
            yield from (Completion(step.step, scored, number) for number in range(len(scored.group.trajectories)))


def last_sound_checkpoint(run: Path, step: int) -> str | None:
    """The last checkpoint from which `step` has not yet been trained on."""
    records = [each for each in read_checkpoints(run) if "state_path" in each and int(each.get("step", 0)) <= step]
    return str(max(records, key=lambda each: int(each["step"]))["name"]) if records else None


async def compare_passing(
    recording: RecordedRun,
    find: Find,
    executor: Executor,
    count: int,
    path: Path,
) -> str:
    """Run what passed of each problem on up to `count` new inputs, write a line a problem to `path`, and say in words what was found.

    An input counts where two programs of different shapes agree with the reference. A cut run goes on; nothing is decided twice.
    """
    passing: dict[str, dict[str, tuple[str, str]]] = {}
    met: dict[str, Problem] = {}
    for each in completions(recording):
        code, recorded = each.trajectory.last.code, each.scored.group.problem
        if each.trajectory.verdict.correct and code is not None and (recorded.id in met or find(recorded)):
            met[recorded.id] = recorded
            shapes = passing.setdefault(recorded.id, {})
            if len(shapes) < MAX_PROGRAMS:
                shapes.setdefault(program_shape(code) or code, (code, each.where))
    several = {problem_id: list(shapes.values()) for problem_id, shapes in passing.items() if len(shapes) > 1}
    judge = sources_digest("code_rl.judging", "code_rl.preparation")
    keys, ledger, turns = dict[str, str](), Ledger(path), asyncio.Semaphore(default_concurrency(executor))

    async def one(problem_id: str, programs: list[tuple[str, str]]) -> None:
        async with turns:
            problem = find(met[problem_id])
            assert problem is not None
            keys[problem_id] = key = content_key(make_entry(problem, 0)[0].digest, judge, programs, count)
            if ledger.get(key) is None:
                ledger.put(key, await _compared(problem, programs, executor, count))

    try:
        await together(one(*each) for each in several.items())
    except BaseException:
        ledger.abandon()
        raise
    wanted = [keys[problem_id] for problem_id in several]
    found = [decision for key in wanted if (decision := ledger.get(key)) is not None]
    ledger.close(wanted)
    weak = [decision for decision in found if not decision.keep]
    unknown = [decision for decision in found if decision.keep and decision.reason]
    lines = [f"{each.card['problem_id']}: {each.detail}" for each in weak]
    lines.append(
        f"passing programs disagree on {len(weak)} of {len(found)} problems that several different programs passed "
        f"({len(passing) - len(several)} more were passed by one alone); {len(unknown)} could not be told; every one is in {path}"
    )
    return "\n".join(lines)


async def _compared(problem: Problem, passed: list[tuple[str, str]], executor: Executor, count: int) -> Decision:
    """A decision to keep a problem whose programs agree, as far as that can be told."""
    about = {"problem_id": problem.id, "programs": len(passed)}
    if not problem.solutions:
        return Decision(keep=True, reason=NO_REFERENCE, card=about)
    tests, _ = await reference_tests(problem, problem.solutions[0], executor, f"disagreement/{problem.id}", count)
    failing = [await failed(problem, tests, code, executor) for code, _ in passed]
    shapes = {program_shape(code) for code, _ in passed}
    others = [code for code in problem.solutions[1:] if program_shape(code) not in shapes]
    agreeing = [await failed(problem, tests, code, executor) for code in others[:LEAST_OTHERS]] + failing
    valid = {i for i in range(len(tests)) if sum(i not in each for each in agreeing) >= LEAST_OTHERS}
    wrong = {where: len(each & valid) for (_, where), each in zip(passed, failing, strict=True) if each & valid}
    about |= {"inputs": len(valid), "dissenting": wrong}
    if not valid:
        return Decision(keep=True, reason=AGREED, card=about)
    if not wrong:
        return Decision(keep=True, card=about)
    where, most = max(wrong.items(), key=lambda each: each[1])
    detail = f"{len(wrong)} of {len(passed)} passing programs answer new inputs in another way than the reference and the rest; {where} on {most} of {len(valid)}"  # fmt: skip
    return Decision(keep=False, reason="disagree", detail=detail, card=about)
