"""Everything a run writes and shows, behind one object: journal, rollouts, metrics, checkpoints, console."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from code_rl import __version__
from code_rl.files import JsonLines, Mark, mark_of, read_lines
from code_rl.judging.extract import extract_code
from code_rl.problems.problem import Problem, StdinTest
from code_rl.problems.prompts import shown_test
from code_rl.runs.checkpoints import (
    append_checkpoint,
    digest_of,
    file_beside,
    read_checkpoints,
    saved_paths,
    submit_save,
    write_checkpoints,
)
from code_rl.runs.directory import FORMAT, METRICS
from code_rl.runs.inflight import EVALUATIONS, INFLIGHT, GroupLog, InFlight
from code_rl.runs.journal import JOURNAL, History, Journal
from code_rl.runs.logs import MultiplexLogger
from code_rl.runs.smoke import STEPS, smoke_lines

if TYPE_CHECKING:
    import tinker

    from code_rl.algorithm.datums import Example
    from code_rl.console import Console
    from code_rl.objective import ScoredGroup
    from code_rl.rollouts.choice import Chosen
    from code_rl.trajectory import Group, Trajectory, Turn

logger = logging.getLogger("code_rl")
ROLLOUTS = "rollouts.jsonl"
PATHS = ("state_path", "sampler_path")
FALLBACKS = 2
"""Checkpoints from which a run can be resumed exactly without buying completions again."""
MAX_SHOWN_TEST = 10_000
SKIPPED = {
    "all_masked": "all of its completions are masked",
    "rewards_alike": "the rewards of its completions are alike, before anything is taken off for length",
    "no_advantage": "no advantage differs from zero",
}
"""Why a group is skipped, in words."""
Saving = tuple[Mapping[str, Any], Mapping[str, Mark]]
"""A checkpoint that was asked for: what the service was asked, and how the logs of the steps were then."""


class Recorder:
    """Writes one run's directory and drives its console. `history` is what the journal has of the run's earlier part."""

    def __init__(
        self,
        log_path: Path,
        logger: MultiplexLogger,
        console: Console,
        history: History | None = None,
        keep_checkpoints: int | None = None,
    ) -> None:
        self.log_path = log_path
        self.console = console
        self._logger = logger
        self._history = history or History()
        self._too_long: set[str] = set()
        self._keep = keep_checkpoints
        self._journal = Journal(log_path / JOURNAL)
        self._rollouts = JsonLines(log_path / ROLLOUTS)
        self._rollouts.mark()
        self.inflight = InFlight(log_path / INFLIGHT)
        self._evaluations = InFlight(log_path / INFLIGHT / EVALUATIONS)
        self._journal.mark()
        if self._history.version is None:
            self.decided("begin", step=0, version=FORMAT, release=__version__)

    def decided(self, event: str, **facts: Any) -> None:
        """Journal a decision before it takes effect."""
        self._journal.record(event, **facts)

    def samples(self, step: int, policy_step: int, stage: int, max_tokens: int, chosen: Sequence[Chosen]) -> None:
        """Journal that a batch is about to be sampled; say which prompts do not fit."""
        replaced = {str(place): each.problem.id for place, each in enumerate(chosen) if each.instead_of is not None}
        for each in chosen:
            if each.instead_of is not None and each.instead_of not in self._too_long:
                self._too_long.add(each.instead_of)
                self.console.notice(
                    f"the prompt of problem {each.instead_of!r} leaves too little of the model's context; another takes its place"
                )
        self.decided(
            "sample",
            step=step,
            policy_step=policy_step,
            stage=stage,
            max_tokens=max_tokens,
            prompt_tokens=[each.prompt_tokens for each in chosen],
            problems=[each.instead_of or each.problem.id for each in chosen],
            seeds=[each.seed for each in chosen],
            **({"instead": replaced} if replaced else {}),
        )
        self.console.begin_step(step)

    def refills(self, step: int, place: int, attempt: int, max_tokens: int, chosen: Chosen) -> None:
        """Journal that a place is about to be filled again."""
        facts = {"step": step, "place": place, "attempt": attempt, "problem": chosen.problem.id, "seed": chosen.seed}
        self.decided("refill", **facts, max_tokens=max_tokens, prompt_tokens=chosen.prompt_tokens)

    def judged(self, step: int, group: Group) -> None:
        """Journal the verdicts of a group."""
        verdicts = [trajectory.verdict.kind.value for trajectory in group.trajectories]
        facts = {"step": step, "place": group.place, "attempt": group.attempt, "problem": group.problem.id}
        self.decided("scored", **facts, policy_step=group.policy_step, verdicts=verdicts)

    def trains(self, step: int, part: int, groups: Sequence[ScoredGroup], examples: Sequence[Example]) -> None:
        """One line per group (prompt, completions, rewards, advantages, verdicts), and what of it is about to be trained on."""
        for scored in groups:
            self._rollouts.append(_line(step, scored))
            _log_group(step, scored)
        decision = training_decision(groups, examples)
        self.decided("train" if examples else "skip", step=step, substep=part, **decision)

    def optimizes(self, step: int, part: int, datums: int, learning_rate: float) -> None:
        """Journal that an optimizer step is about to be taken."""
        self.decided("optimize", step=step, substep=part, datums=datums, learning_rate=learning_rate)

    def ended(self, step: int, *, asked: bool) -> None:
        """Journal why the run ended."""
        self.decided("stop", step=step, why="asked to stop" if asked else "max_steps")

    def log_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """One line in `metrics.jsonl` and one row on the console."""
        self.decided("logged", step=step, metrics=metrics)
        self._logger.log_metrics(metrics, step)
        self.console.end_step(step, metrics)
        if step + 1 == STEPS:
            for line in smoke_lines(read_metrics(self.log_path)):
                self.console.notice(line)

    def evaluated(self, step: int, samples: int) -> dict[str, Any] | None:
        """The metrics of an evaluation after `step` that an earlier process finished, or None."""
        known = self._history.evaluated.get(step)
        return dict(known["metrics"]) if known is not None and known["samples"] == samples else None

    def evaluation_log(self, step: int) -> Callable[[int, int, int], GroupLog]:
        """Where an evaluation after `step` keeps its groups while it is under way: by split, kind of decoding, position."""
        return lambda split, kind, index: self._evaluations.group_log((step + 1, index, 2 * split + kind))

    def evaluation_done(self, step: int, samples: int, metrics: Mapping[str, Any]) -> None:
        """Journal what an evaluation showed, after which its completions need not be kept."""
        self.decided("evaluated", step=step, samples=samples, metrics=metrics)
        self._evaluations.keep_from(step + 2)

    def evaluating(self, splits: Mapping[str, Sequence[Problem]], samples: int) -> AbstractContextManager[None]:
        """Show that an evaluation is under way."""
        return self.console.evaluating({name: len(problems) for name, problems in splits.items()}, samples)

    async def begin_checkpoint(self, trainer: tinker.TrainingClient, step: int) -> Saving:
        """Ask for the weights after `step` completed steps, before the trainer gets anything else to do."""
        self.decided("save", step=step, name=_name(step))
        logs = {ROLLOUTS: self._rollouts.mark()}
        return await asyncio.to_thread(submit_save, trainer, _name(step)), logs

    async def commit_checkpoint(self, saving: Saving, step: int, offset: int, ahead: Sequence[int] = ()) -> None:
        """Make what was asked for a checkpoint; training goes on from it at position `offset` of the problem order.

        The rollouts of the steps `ahead`, which are complete, belong to it. Then older ones are forgotten as far as may be.
        """
        pending, logs = saving
        marks = await asyncio.to_thread(self._made_durable, logs, ahead)
        paths = await saved_paths(pending)
        marks[JOURNAL] = self._journal.mark()
        digest = await asyncio.to_thread(digest_of, paths)
        record = {"name": _name(step), "step": step, "offset": offset, **paths, **digest, "version": FORMAT}
        record["marks"] = {name: [mark.size, mark.crc] for name, mark in marks.items()}
        self.decided("saved", **record)
        append_checkpoint(self.log_path, record)
        self._forget()
        self.console.saved(step)

    def _made_durable(self, logs: Mapping[str, Mark], ahead: Sequence[int]) -> dict[str, Mark]:
        """What a checkpoint needs besides the weights is on disk when this returns; its marks by file."""
        self._rollouts.sync()
        metrics = mark_of(self.log_path / METRICS)
        assert metrics is not None
        return {METRICS: metrics, **logs, **self.inflight.sync(ahead)}

    def _forget(self) -> None:
        """Drop checkpoints that are not to be kept, and the completions that only checkpoints before the last two need."""
        records = read_checkpoints(self.log_path)
        if self._keep is not None and len(records) > self._keep:
            kept = records[-self._keep :]
            write_checkpoints(self.log_path, kept)
            needed = {record.get(key) for record in kept for key in PATHS}
            for record in records[: -self._keep]:
                for path in [str(record[key]) for key in PATHS if key in record and record[key] not in needed]:
                    file_beside(path, self.log_path).unlink(missing_ok=True)
        if len(records) >= FALLBACKS:
            self.inflight.keep_from(int(records[-FALLBACKS]["step"]))

    def close(self) -> None:
        """Close every file. Idempotent."""
        self._journal.close()
        self._rollouts.close()
        self._logger.close()


def training_decision(groups: Sequence[ScoredGroup], examples: Sequence[Example]) -> dict[str, Any]:
    """What the journal holds of a micro-batch: its datums in order, the groups that are skipped, the members that are masked."""
    numbered = [((scored.group.place, scored.group.attempt), scored) for scored in groups]
    decision: dict[str, Any] = {
        "first": groups[0].group.place,
        "skipped": [[*at] for at, scored in numbered if scored.skipped],
        "masked": [
            [*at, number, why]
            for at, scored in numbered
            for number, why in enumerate(scored.mask_reasons_G)
            if why is not None
        ],
    }
    if examples:
        decision["members"] = [[*at, number] for at, scored in numbered for number, _ in scored.trained]
        decision["datums"] = len(examples)
        decision["tokens"] = sum(len(example.datum.model_input.to_ints()) for example in examples)
    return decision


def read_metrics(log_path: Path) -> list[dict[str, Any]]:
    """The records of `metrics.jsonl`."""
    return list(read_lines(log_path / METRICS))


def _public_tests(problem: Problem) -> list[dict[str, Any]]:
    """What a report may show of the tests: index, input and expected output of the public ones, as text, long ones cut."""
    shown = []
    for index, test in enumerate(problem.tests):
        if test.public:
            given, expected = shown_test(test, problem.fn_name, MAX_SHOWN_TEST)
            call = not isinstance(test, StdinTest)
            shown.append({"test": index, "call": call, "input": given, "expected": expected})
    return shown


def _log_group(step: int, scored: ScoredGroup) -> None:
    """The rewards of a group in `logs.log`; a WARNING for one that teaches nothing."""
    rewards = ", ".join(
        ("none" if reward is None else f"{reward:g}") + (f" (masked: {why})" if why else "")
        for reward, why in zip(scored.rewards_G, scored.mask_reasons_G, strict=True)
    )
    group = scored.group
    logger.info("step %s %s, problem %s: rewards %s", step, group.where, group.problem.id, rewards)
    if scored.skipped:
        logger.warning("step %s %s is degenerate and skipped: %s", step, group.where, SKIPPED[scored.skipped])


def _name(step: int) -> str:
    return f"{step:06d}"


def _line(step: int, scored: ScoredGroup) -> dict[str, Any]:
    group = scored.group
    members = zip(group.trajectories, scored.rewards_G, scored.advantages_G, scored.mask_reasons_G, strict=True)
    return {
        "step": step,
        "group": group.place,
        "attempt": group.attempt,
        "policy_step": group.policy_step,
        "max_tokens": group.max_tokens,
        "skipped": scored.skipped is not None,
        "skip_reason": scored.skipped,
        "problem_id": group.problem.id,
        "statement": group.problem.statement,
        "public_tests": _public_tests(group.problem),
        "prompt_tokens": list(group.prompt_tokens),
        "completions": [_row(*member) for member in members],
    }


def _row(trajectory: Trajectory, reward: float | None, advantage: float | None, masked: str | None) -> dict[str, Any]:
    """One member: its last turn, and `turns` before it where there are any."""
    row: dict[str, Any] = {"text": trajectory.text, "reward": reward, "advantage": advantage, "masked": masked}
    row |= {name: value for name, value in _turn(trajectory.last).items() if name != "text"}
    if len(trajectory.turns) > 1:
        row["prompt_tokens"] = list(trajectory.last.prompt_tokens)
        row["turns"] = [
            {**_turn(turn), "prompt_tokens": list(turn.prompt_tokens), "messages": list(turn.messages)}
            for turn in trajectory.turns[:-1]
        ]
    return row


def _turn(turn: Turn) -> dict[str, Any]:
    """Nothing in here may differ between two runs of one seed: no times, no memory."""
    verdict, failure = turn.verdict, turn.verdict.failure
    elsewhere = {} if turn.code == extract_code(turn.text) else {"code": turn.code}
    return {
        **elsewhere,
        "text": turn.text,
        "verdict": verdict.kind.value,
        "passed": verdict.passed,
        "total": verdict.total,
        "failure": failure and {name: value for name, value in asdict(failure).items() if value is not None},
        "truncated": turn.truncated,
        "tokens": list(turn.tokens),
        "logprobs": list(turn.logprobs),
    }
