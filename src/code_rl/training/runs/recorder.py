"""One object for everything that a run writes and shows: rollouts, metrics, checkpoints,
console."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from code_rl.engine.checkpoints import (
    append_checkpoint,
    digest_of,
    file_beside,
    read_checkpoints,
    read_config,
    saved_paths,
    submit_save,
    write_checkpoints,
)
from code_rl.grading import Problem, StdinTest, extract_code
from code_rl.policy.completion_log import EVALUATIONS, INFLIGHT, GroupLog, InFlight
from code_rl.policy.prompt_templates import shown_test
from code_rl.training.report.diagnostics import SMOKE_STEPS, alarms, diagnose, worst_of
from code_rl.training.report.page import LivePage
from code_rl.training.runs.directory import METRICS, ROLLOUTS, read_metrics
from code_rl.training.runs.metrics_log import MultiplexLogger
from code_rl.util.files import JsonLines, size_of

if TYPE_CHECKING:
    import tinker

    from code_rl.policy import Trajectory, Turn
    from code_rl.training.console import Console
    from code_rl.training.objective import ScoredGroup
    from code_rl.training.problem_sampler import SampledProblem

logger = logging.getLogger("code_rl")
PATHS = ("state_path", "sampler_path")
FALLBACKS = 2
"""The number of latest checkpoints that keep the completions needed for an exact resume."""
MAX_SHOWN_TEST = 10_000
SKIPPED = {
    "all_masked": "all of its completions are masked",
    "rewards_alike": "the rewards of its completions are alike, before anything is taken off "
    "for length",
    "no_advantage": "no advantage differs from zero",
}
"""The reasons for skipping a group, as text."""


@dataclass(frozen=True, slots=True)
class PendingCheckpoint:
    """Requested weights: the service's pending answers, and the bytes of the rollouts so far."""

    saves: Mapping[str, Any]
    rollouts: int


class Recorder:
    """Writes one run's directory and drives its console."""

    def __init__(
        self,
        log_path: Path,
        logger: MultiplexLogger,
        console: Console,
        keep_checkpoints: int | None = None,
    ) -> None:
        """Open the run's rollouts and kept completions for appending, in an existing directory.
        `keep_checkpoints` is the number of latest checkpoints to keep (None: all). Raises
        OSError."""
        self.log_path = log_path
        self.console = console
        self._logger = logger
        self._too_long: set[str] = set()
        self._alarmed: set[tuple[str, str]] = set()
        self._keep = keep_checkpoints
        self._page = LivePage(log_path)
        self._rollouts = JsonLines(log_path / ROLLOUTS)
        self.inflight = InFlight(log_path / INFLIGHT)
        self._evaluations = InFlight(log_path / INFLIGHT / EVALUATIONS)

    def begins(self, step: int, chosen: Sequence[SampledProblem]) -> None:
        """Show on the console that the batch of `step` begins, and, once for each problem of the
        run, that a prompt did not fit. Writes no file."""
        for sampled in chosen:
            if sampled.replaced is not None and sampled.replaced not in self._too_long:
                self._too_long.add(sampled.replaced)
                self.console.notice(
                    f"the prompt of problem {sampled.replaced!r} leaves too little of the model's "
                    "context; another problem replaces it"
                )
        self.console.begin_step(step)

    def scored(self, step: int, groups: Sequence[ScoredGroup]) -> None:
        """Append one line per group to `rollouts.jsonl` (prompt, completions, rewards, advantages,
        verdicts), and its rewards to `logs.log`. The loop calls it in slot order, so that equal
        runs write equal lines. Raises OSError."""
        for group in groups:
            self._rollouts.append(_group_record(step, group))
            _log_group(step, group)

    def log_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Write one line to `metrics.jsonl` (and to the trackers) and one row to the console; step
        −1 is the evaluation before training. Each kind of alarm is shown once. After the first 20
        steps of a run its findings so far are shown too."""
        self._logger.log_metrics(metrics, step)
        self.console.end_step(step, metrics)
        for finding in alarms({"step": step, **metrics}):
            if (finding.name, finding.severity) not in self._alarmed:
                self._alarmed.add((finding.name, finding.severity))
                self.console.notice("\n".join(worst_of([finding])))
        if step + 1 == SMOKE_STEPS:
            found = diagnose(read_metrics(self.log_path), read_config(self.log_path))
            nothing = f"nothing suspicious in the first {SMOKE_STEPS} steps"
            self.console.notice("\n".join(worst_of(found) or [nothing]))

    async def write_page(self) -> None:
        """Write the report of the run in progress anew, in a thread, if that is due."""
        await asyncio.to_thread(self._page.update)

    def evaluation_log(self, step: int) -> Callable[[str], GroupLog]:
        """Return a function from a scope (a problem in the evaluation) to the log of that scope in
        the evaluation after `step` (−1: before training)."""
        return partial(self._evaluations.group_log, step + 1)

    async def begin_checkpoint(
        self, trainer: tinker.TrainingClient, step: int
    ) -> PendingCheckpoint:
        """Request the weights after `step` completed steps, before the trainer gets other requests.
        It returns once the requests are submitted; nothing is recorded until
        `commit_checkpoint`."""
        rollouts = size_of(self.log_path / ROLLOUTS)  # before later steps append to it
        saves = await asyncio.to_thread(submit_save, trainer, _name(step))
        return PendingCheckpoint(saves, rollouts)

    async def commit_checkpoint(
        self, pending: PendingCheckpoint, step: int, offset: int, ahead: Sequence[int] = ()
    ) -> None:
        """Wait for a requested save, and append its record to `checkpoints.jsonl`, which makes it a
        checkpoint; training continues from it at position `offset` (problems drawn) of the problem
        order.

        Rollouts, and the completions of the steps `ahead` (all judged), are synced before the
        record is written, and the record holds the files' lengths. Older checkpoints are then
        deleted as far as `keep_checkpoints` says.
        """
        await asyncio.to_thread(self._rollouts.sync)
        lengths = await asyncio.to_thread(self.inflight.sync, ahead)
        lengths |= {ROLLOUTS: pending.rollouts, METRICS: size_of(self.log_path / METRICS)}
        paths = await saved_paths(pending.saves)
        digest = await asyncio.to_thread(digest_of, paths)
        record = {"name": _name(step), "step": step, "offset": offset, **paths, **digest}
        append_checkpoint(self.log_path, {**record, "lengths": lengths})
        self._forget()

    def _forget(self) -> None:
        """Delete the checkpoints before the last `keep_checkpoints` (records first, then files in
        the run directory), and completions that only checkpoints before the last two need."""
        records = read_checkpoints(self.log_path)
        if self._keep is not None and len(records) > self._keep:
            kept = records[-self._keep :]
            write_checkpoints(self.log_path, kept)
            needed = {record.get(key) for record in kept for key in PATHS}
            for record in records[: -self._keep]:
                for path in [
                    str(record[key]) for key in PATHS if key in record and record[key] not in needed
                ]:
                    file_beside(path, self.log_path).unlink(missing_ok=True)
        if len(records) >= FALLBACKS:
            oldest = int(records[-FALLBACKS]["step"])
            self.inflight.keep_from(oldest)
            self._evaluations.keep_from(oldest + 1)

    def close(self) -> None:
        """Close every file, and finish the trackers. Idempotent."""
        self.inflight.close()
        self._evaluations.close()
        self._rollouts.close()
        self._logger.close()


def _public_tests(problem: Problem) -> list[dict[str, Any]]:
    """Return the public tests for reports, in order: index among all tests, `call` (True: of a
    function, False: stdin), and input and expected output as text, cut at 10,000 characters."""
    shown = []
    for index, test in enumerate(problem.tests):
        if test.public:
            given, expected = shown_test(test, problem.fn_name, MAX_SHOWN_TEST)
            call = not isinstance(test, StdinTest)
            shown.append({"test": index, "call": call, "input": given, "expected": expected})
    return shown


def _log_group(step: int, scored: ScoredGroup) -> None:
    """Write the rewards of a group to `logs.log`, and a WARNING if nothing is learned from it."""
    rewards = ", ".join(
        ("none" if reward is None else f"{reward:g}") + (f" (masked: {why})" if why else "")
        for reward, why in zip(scored.rewards_G, scored.mask_reasons_G, strict=True)
    )
    group = scored.group
    logger.info("step %s %s, problem %s: rewards %s", step, group.where, group.problem.id, rewards)
    if scored.skipped:
        logger.warning(
            "step %s %s is degenerate and skipped: %s", step, group.where, SKIPPED[scored.skipped]
        )


def _name(step: int) -> str:
    """Return the name of the checkpoint after `step` steps, six digits."""
    return f"{step:06d}"


def _group_record(step: int, scored: ScoredGroup) -> dict[str, Any]:
    """Return one group's line of `rollouts.jsonl`, its members in order. It holds no times, so that
    two runs of one seed have equal lines; reports, `code-rl judge` and resumed curricula read these
    names."""
    group = scored.group
    members = zip(
        group.trajectories,
        scored.rewards_G,
        scored.advantages_G,
        scored.mask_reasons_G,
        scored.parts_G,
        strict=True,
    )
    return {
        "step": step,
        "group": group.slot,
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


def _row(
    trajectory: Trajectory,
    reward: float | None,
    advantage: float | None,
    masked: str | None,
    parts: Mapping[str, float] | None,
) -> dict[str, Any]:
    """Return the record of one member: its last turn and, if there are any, the `turns` before it
    and the named `parts` of its reward. None stands for no reward, no advantage, not masked."""
    row: dict[str, Any] = {
        "text": trajectory.text,
        "reward": reward,
        "advantage": advantage,
        "masked": masked,
    }
    row |= {name: value for name, value in _turn(trajectory.last).items() if name != "text"}
    if named := {name: value for name, value in (parts or {}).items() if name}:
        row["parts"] = named
    if len(trajectory.turns) > 1:
        row["prompt_tokens"] = list(trajectory.last.prompt_tokens)
        row["turns"] = [
            {
                **_turn(turn),
                "prompt_tokens": list(turn.prompt_tokens),
                "messages": list(turn.messages),
            }
            for turn in trajectory.turns[:-1]
        ]
    return row


def _turn(turn: Turn) -> dict[str, Any]:
    """Return the record of a turn. It has no times and no memory, so that two runs of one seed have
    equal records."""
    verdict, failure = turn.verdict, turn.verdict.failure
    elsewhere = {} if turn.code == extract_code(turn.text) else {"code": turn.code}
    return {
        **elsewhere,
        "text": turn.text,
        "verdict": verdict.kind.value,
        "passed": verdict.passed,
        "total": verdict.total,
        "failure": failure
        and {name: value for name, value in asdict(failure).items() if value is not None},
        "truncated": turn.truncated,
        "tokens": list(turn.tokens),
        "logprobs": list(turn.logprobs),
    }
