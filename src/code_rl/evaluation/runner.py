"""Ask, keep, judge, keep: every sample and verdict is on disk before the next step counts on it, so a cut evaluation goes on where it was."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from code_rl.concurrency import default_concurrency
from code_rl.evaluation.ask import Asked, AskError, Question
from code_rl.evaluation.benchmarks import Benchmark, Entry
from code_rl.evaluation.evaluate import problem_seed
from code_rl.evaluation.figures import Outcome
from code_rl.evaluation.replay import OFFICIAL, judge_both
from code_rl.evaluation.samples import GREEDY, SAMPLED, Key, Mode, Sample, sample_from_json
from code_rl.problems.problem import Problem
from code_rl.reward.judge import judge
from code_rl.reward.verdict import Verdict, VerdictKind
from code_rl.runs.files import JsonLines, drop_torn_line, keep_lines, read_lines
from code_rl.sandbox.executor import Executor

SAMPLES = "samples.jsonl"
VERDICTS = "verdicts.jsonl"

OnVerdict = Callable[[Verdict], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """How each problem is asked and judged.

    `samples` at the sampling temperature, and `greedy` says whether one more greedily. `cpu_limit_s` lowers each problem's own CPU limit,
    after `cpu_factor` has multiplied it. `both_rules`: LiveCodeBench's own decision is kept beside each verdict.
    """

    samples: int
    greedy: bool
    seed: int
    cpu_limit_s: float | None = None
    cpu_factor: float = 1.0
    both_rules: bool = False
    concurrency: int | None = None

    def modes(self) -> Iterator[tuple[Mode, int]]:
        """Each mode with its number of samples."""
        if self.greedy:
            yield GREEDY, 1
        if self.samples:
            yield SAMPLED, self.samples


@dataclass(slots=True)
class Found:
    """What an evaluation has come to: one outcome per judged sample, LiveCodeBench's own kinds beside, and what is missing, by reason.

    `wall_s` is of this run alone; `cpu_s` sums over all verdicts.
    """

    outcomes: dict[Key, Outcome] = field(default_factory=dict)
    official: dict[Key, VerdictKind] = field(default_factory=dict)
    missing: dict[Key, str] = field(default_factory=dict)
    resumed: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Work:
    entry: Entry
    mode: Mode
    total: int
    numbers: tuple[int, ...]


class Evaluation:
    """One benchmark's evaluation in the folder `out`."""

    def __init__(
        self,
        benchmark: Benchmark,
        asked: Asked,
        executor: Executor,
        plan: Plan,
        out: Path,
        on_verdict: OnVerdict | None = None,
    ) -> None:
        self._benchmark = benchmark
        self._asked = asked
        self._executor = executor
        self._plan = plan
        self._out = out
        self.on_verdict = on_verdict
        self._found = Found()
        self._places = asyncio.Semaphore(plan.concurrency or default_concurrency(executor))

    @property
    def total(self) -> int:
        """How many samples are wanted."""
        return len(self._benchmark.entries) * sum(number for _, number in self._plan.modes())

    async def run(self) -> Found:
        """Everything that is missing, then all of it. Raises CodeRLError when the rest cannot be had; what there is stays on disk."""
        for name in (SAMPLES, VERDICTS):
            drop_torn_line(self._out / name)
        unjudged = self._resume()
        samples, verdicts = JsonLines(self._out / SAMPLES), JsonLines(self._out / VERDICTS)
        started = time.perf_counter()
        try:
            await self._finish(unjudged, samples, verdicts)
        finally:
            samples.close()
            verdicts.close()
        self._found.wall_s = time.perf_counter() - started
        return self._found

    def _resume(self) -> dict[str, list[Sample]]:
        """Read what an earlier run left; returns the samples, by problem, that have no verdict about themselves yet.

        Verdicts that are none, and those of samples that are gone, leave the file: they are about to be given again.
        """
        samples, verdicts = self._out / SAMPLES, self._out / VERDICTS
        judged: dict[Key, dict[str, Any]] = {}
        wanted = {(entry.problem_id, mode) for entry in self._benchmark.entries for mode, _ in self._plan.modes()}
        for row in read_lines(verdicts):
            key = _key(row)
            if key[:2] in wanted and row["verdict"] != VerdictKind.SANDBOX_ERROR:
                judged[key] = row
        unjudged: dict[str, list[Sample]] = {}
        have: set[Key] = set()
        for row in read_lines(samples):
            sample = sample_from_json(row)
            if sample.key[:2] not in wanted or sample.key in have:
                continue
            have.add(sample.key)
            if sample.key in judged:
                self._note(sample, judged[sample.key])
            else:
                unjudged.setdefault(sample.problem_id, []).append(sample)
        if verdicts.exists():
            keep_lines(verdicts, lambda row: _key(row) in have and _key(row) in judged)
        self._have = have
        self._found.resumed = len(self._found.outcomes)
        return unjudged

    async def _finish(self, unjudged: dict[str, list[Sample]], samples: JsonLines, verdicts: JsonLines) -> None:
        """Askers put samples into a queue, judges take them out; the first real failure stops both."""
        queue: asyncio.Queue[list[Sample] | None] = asyncio.Queue(maxsize=2 * default_concurrency(self._executor))
        work = self._work()
        judges = self._plan.concurrency or default_concurrency(self._executor)

        async def asker() -> None:
            for item in work:
                drawn = await self._ask(item)
                for sample in drawn:
                    samples.append(sample.to_json())
                if drawn:
                    await queue.put(drawn)

        async def feeder() -> None:
            for waiting in unjudged.values():
                await queue.put(waiting)
            async with asyncio.TaskGroup() as askers:
                for _ in range(self._asked.at_once):
                    askers.create_task(asker())
            for _ in range(judges):
                await queue.put(None)

        async def judging() -> None:
            while (group := await queue.get()) is not None:
                await self._judge(group, verdicts)

        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(feeder())
                for _ in range(judges):
                    tasks.create_task(judging())
        except BaseExceptionGroup as group:
            raise _first(group) from group

    def _work(self) -> Iterator[_Work]:
        for entry in self._benchmark.entries:
            for mode, total in self._plan.modes():
                numbers = tuple(n for n in range(total) if (entry.problem_id, mode, n) not in self._have)
                if not numbers:
                    continue
                if self._asked.grouped:
                    yield _Work(entry, mode, total, numbers)
                else:
                    yield from (_Work(entry, mode, total, (number,)) for number in numbers)

    async def _ask(self, work: _Work) -> list[Sample]:
        entry = work.entry
        problem = self._benchmark.store.get(entry.problem_id)
        seed = problem_seed(self._plan.seed, entry.split, entry.index)
        question = Question(problem, self._benchmark.messages(problem), seed, work.mode, work.total)
        drawn, reason = [], "not_in_file"
        try:
            drawn = await self._asked.ask(question, work.numbers)
        except AskError as error:
            reason = str(error)
        for number in set(work.numbers) - {sample.sample for sample in drawn}:
            self._found.missing[entry.problem_id, work.mode, number] = reason
        return drawn

    async def _judge(self, group: Sequence[Sample], verdicts: JsonLines) -> None:
        """Judge samples of one problem; those with the same program share one run."""
        problem = self._benchmark.store.get(group[0].problem_id)
        by_program: dict[str | None, list[Sample]] = {}
        for sample in group:
            by_program.setdefault(sample.program(), []).append(sample)
        await asyncio.gather(*(self._judge_program(problem, *each, verdicts) for each in by_program.items()))

    async def _judge_program(
        self, problem: Problem, code: str | None, samples: Sequence[Sample], verdicts: JsonLines
    ) -> None:
        async with self._places:
            own, official = await self._verdicts(problem, code)
        for sample in samples:
            row = verdict_row(sample, own, official, code is not None)
            verdicts.append(row)
            self._note(sample, row)
            if self.on_verdict is not None:
                self.on_verdict(own)

    async def _verdicts(self, problem: Problem, code: str | None) -> tuple[Verdict, Verdict | None]:
        plan = self._plan
        problem = replace(problem, time_limit_s=problem.time_limit_s * plan.cpu_factor)
        if plan.both_rules and problem.compare.rule == "lcb":
            return await judge_both(problem, code, self._executor, cpu_limit_s=plan.cpu_limit_s)
        return await judge(problem, code, self._executor, cpu_limit_s=plan.cpu_limit_s), None

    def _note(self, sample: Sample, row: dict[str, Any]) -> None:
        self._found.cpu_s += row["cpu_s"]
        self._found.outcomes[sample.key] = Outcome(
            kind=VerdictKind(row["verdict"]),
            format_ok=row["format_ok"],
            truncated=sample.truncated,
            prompt_tokens=sample.prompt_tokens,
            completion_tokens=sample.completion_tokens,
        )
        if row.get(OFFICIAL) is not None:
            self._found.official[sample.key] = VerdictKind(row[OFFICIAL])


def _key(row: Mapping[str, Any]) -> Key:
    return row["problem_id"], row["mode"], row["sample"]


def verdict_row(sample: Sample, own: Verdict, official: Verdict | None, format_ok: bool) -> dict[str, Any]:
    """One line of `verdicts.jsonl`."""
    failure = own.failure
    row: dict[str, Any] = {
        "problem_id": sample.problem_id,
        "mode": sample.mode,
        "sample": sample.sample,
        "verdict": own.kind.value,
        "passed": own.passed,
        "total": own.total,
        "failure": failure and {"test": failure.test, "public": failure.public, "message": failure.message},
        "format_ok": format_ok,
        "cpu_s": round(own.cpu_s, 6),
        "wall_s": round(own.wall_s, 6),
        "rule": own.rule,
    }
    if official is not None:
        row[OFFICIAL] = official.kind.value
    return row


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first failure of a group that is no group itself."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
