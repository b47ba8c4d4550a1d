"""Everything a run writes and shows, behind one object: journal, rollouts, metrics, checkpoints, console."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from code_rl.problems.problem import CallTest, Problem, StdinTest
from code_rl.problems.values import dumps
from code_rl.runs.checkpoints import CHECKPOINTS, commit_save, submit_save
from code_rl.runs.directory import METRICS
from code_rl.runs.files import JsonLines, keep_lines, read_lines
from code_rl.runs.inflight import INFLIGHT, InFlight
from code_rl.runs.journal import Journal
from code_rl.runs.logs import MultiplexLogger
from code_rl.runs.trained import TRAINED, trained_line

if TYPE_CHECKING:
    import tinker

    from code_rl.console import Console
    from code_rl.objective import Credit, Trained
    from code_rl.rollouts import Completion, Group

ROLLOUTS = "rollouts.jsonl"
JOURNAL = "journal.jsonl"
MAX_SHOWN_TEST = 10_000


class Recorder:
    """Writes one run's directory and drives its console."""

    def __init__(self, log_path: Path, logger: MultiplexLogger, console: Console) -> None:
        self.log_path = log_path
        self.console = console
        self._logger = logger
        self._journal = Journal(log_path / JOURNAL)
        self._rollouts = JsonLines(log_path / ROLLOUTS)
        self._trained = JsonLines(log_path / TRAINED)
        self.inflight = InFlight(log_path / INFLIGHT)

    def decided(self, event: str, **facts: Any) -> None:
        """Journal a decision before it takes effect."""
        self._journal.record(event, **facts)
        if event == "sample":
            self.console.begin_step(facts["step"])

    def log_rollouts(self, step: int, first: int, places: Sequence[Sequence[tuple[Group, Credit]]]) -> None:
        """One line per group: prompt, completions, rewards, advantages, verdicts. `first` is the first place's number."""
        for number, attempts in enumerate(places, first):
            for attempt, (group, credited) in enumerate(attempts):
                self._rollouts.append(_line(step, number, attempt, group, credited))

    def log_trained(self, step: int, trained: Trained, reference: Sequence[Sequence[float]]) -> None:
        """One line with the trainer's logprobs of every datum of a step, and the reference model's where there are any."""
        pairs = zip(trained.examples, trained.logprobs, strict=True)
        self._trained.append(trained_line(step, [logprobs[example.start :] for example, logprobs in pairs], reference))

    def log_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """One line in `metrics.jsonl` and one row on the console."""
        self._logger.log_metrics(metrics, step)
        self.console.end_step(step, metrics)

    @contextlib.contextmanager
    def evaluating(self, splits: Mapping[str, Sequence[Problem]], samples: int) -> Iterator[None]:
        """Show that an evaluation is under way."""
        with self.console.evaluating({name: len(problems) for name, problems in splits.items()}, samples):
            yield

    async def begin_checkpoint(self, trainer: tinker.TrainingClient, step: int) -> dict[str, Any]:
        """Ask for the weights after `step` completed steps, before the trainer gets anything else to do."""
        self.decided("save", step=step, name=_name(step))
        return await asyncio.to_thread(submit_save, trainer, _name(step))

    async def commit_checkpoint(self, saving: Mapping[str, Any], step: int, offset: int) -> None:
        """Make what was asked for a checkpoint, and then forget the groups that only earlier ones need; training goes on at position `offset` of the problem order."""
        self.inflight.sync()
        await commit_save(saving, _name(step), self.log_path, {"step": step, "offset": offset})
        self.inflight.keep_from(step)
        self.console.saved(step)

    def close(self) -> None:
        """Close every file. Idempotent."""
        self._journal.close()
        self._rollouts.close()
        self._trained.close()
        self.inflight.close()
        self._logger.close()


def rewind(log_path: Path, step: int) -> None:
    """Drop what a cut run logged after the checkpoint at `step` (0: from the start), so that each step is there once."""
    for name in (METRICS, ROLLOUTS, TRAINED):
        keep_lines(log_path / name, lambda record: step > 0 and record.get("step", -1) < step)
    keep_lines(log_path / CHECKPOINTS, lambda record: record.get("step", 0) <= step)


def read_metrics(log_path: Path) -> list[dict[str, Any]]:
    """The records of `metrics.jsonl`."""
    return list(read_lines(log_path / METRICS))


def _public_tests(problem: Problem) -> list[dict[str, Any]]:
    """What a report may show of the tests: index, input and expected output of the public ones, as text, long ones cut."""
    shown = []
    for index, test in enumerate(problem.tests):
        if test.public:
            call = not isinstance(test, StdinTest)
            given = f"{problem.fn_name}({_arguments(test)})" if isinstance(test, CallTest) else test.input
            expected = dumps(test.expected) if isinstance(test, CallTest) else test.expected
            texts = {"input": given[:MAX_SHOWN_TEST], "expected": expected[:MAX_SHOWN_TEST]}
            shown.append({"test": index, "call": call, **texts})
    return shown


def _arguments(test: CallTest) -> str:
    return ", ".join([*map(dumps, test.args), *(f"{name}={dumps(value)}" for name, value in test.kwargs.items())])


def _name(step: int) -> str:
    return f"{step:06d}"


def _line(step: int, place: int, attempt: int, group: Group, credited: Credit) -> dict[str, Any]:
    members = zip(group.completions, credited.rewards_G, credited.advantages_G, credited.masked_G, strict=True)
    return {
        "step": step,
        "group": place,
        "attempt": attempt,
        "policy_step": group.policy_step,
        "max_tokens": group.max_tokens,
        "skipped": credited.skipped,
        "problem_id": group.problem.id,
        "statement": group.problem.statement,
        "public_tests": _public_tests(group.problem),
        "prompt_tokens": list(group.prompt_tokens),
        "completions": [_row(*member) for member in members],
    }


def _row(completion: Completion, reward: float | None, advantage: float | None, masked: str | None) -> dict[str, Any]:
    verdict = completion.score.verdict
    failure = verdict.failure
    return {
        "text": completion.text,
        "reward": reward,
        "advantage": advantage,
        "masked": masked,
        "verdict": verdict.kind.value,
        "passed": verdict.passed,
        "total": verdict.total,
        "failure": None
        if failure is None
        else {"test": failure.test, "public": failure.public, "message": failure.message},
        "truncated": completion.truncated,
        "tokens": list(completion.tokens),
        "logprobs": list(completion.logprobs),
    }
