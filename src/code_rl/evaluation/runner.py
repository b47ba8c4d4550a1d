"""One evaluation: requests are sent, samples kept, programs judged."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from code_rl.evaluation.generators import (
    CompletionError,
    CompletionGenerator,
    CompletionRequest,
    EvalEntry,
    Question,
)
from code_rl.evaluation.pass_at_k import SampleOutcome
from code_rl.evaluation.samples import (
    GREEDY,
    SAMPLED,
    Folder,
    Key,
    Mode,
    Row,
    Sample,
    verdict_row,
)
from code_rl.grading import Compare, Problem, Verdict, VerdictKind, judge_async
from code_rl.grading.sandbox import Executor
from code_rl.grading.submission import in_one_process
from code_rl.policy import GroupGrader, derive_seed
from code_rl.policy.completion_log import GroupLog
from code_rl.util.concurrency import default_concurrency, gather_or_cancel

CUT = (VerdictKind.TIME_LIMIT, VerdictKind.MEMORY_LIMIT, VerdictKind.OUTPUT_LIMIT)
"""If a limit stopped a program, its calls are judged separately, since limits apply to each call.
"""


async def judge_official(
    problem: Problem, code: str | None, executor: Executor, *, cpu_limit_s: float | None
) -> Verdict:
    """Return LiveCodeBench's own verdict: by its rule, with all calls of a function in one process,
    as in its harness. `code` None is an answer without a program; `cpu_limit_s` lowers the limit
    per test (None: keeps it).

    If a limit stops that process, which has twice a test's CPU limit, each call runs separately
    under its own limit. Raises as `judge_async` does.
    """
    tests = tuple(replace(test, abs_tol=None, rel_tol=None) for test in problem.tests)
    official = replace(problem, tests=tests, compare=Compare("lcb-official"))
    in_one = None if code is None else in_one_process(official, code)
    if in_one is not None:
        limit = 2 * min(problem.time_limit_s, cpu_limit_s or problem.time_limit_s)
        verdict = await judge_async(replace(in_one, time_limit_s=limit), code, executor)
        if verdict.kind not in CUT:
            return verdict
    return await judge_async(official, code, executor, cpu_limit_s=cpu_limit_s)


@dataclass(frozen=True, slots=True)
class Plan:
    """How each problem is sampled and judged.

    `samples` are drawn at the sampling temperature; `greedy` adds one greedy sample. `cpu_limit_s`
    lowers each problem's own CPU limit after it is multiplied by `cpu_factor`. `official` replaces
    the rule `lcb` by LiveCodeBench's own verdict.
    """

    samples: int
    greedy: bool
    seed: int
    cpu_limit_s: float | None = None
    cpu_factor: float = 1.0
    official: bool = False

    def modes(self) -> Iterator[tuple[Mode, int]]:
        """Yield each mode with its number of samples per problem, greedy first; a mode without
        samples is left out."""
        if self.greedy:
            yield GREEDY, 1
        if self.samples:
            yield SAMPLED, self.samples


@dataclass(slots=True)
class Found:
    """The result of an evaluation: one outcome per judged sample, and the missing samples by
    reason.

    `wall_s` is the time of this run only; `cpu_s` is the sum over all verdicts.
    """

    outcomes: dict[Key, SampleOutcome] = field(default_factory=dict)
    missing: dict[Key, str] = field(default_factory=dict)
    resumed: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0

    def by_problem(
        self, entries: Iterable[EvalEntry], mode: Mode
    ) -> dict[str, list[SampleOutcome]]:
        """Return the outcomes of one mode by problem, in the samples' order; a problem without
        outcomes has an empty list."""
        found: dict[str, list[SampleOutcome]] = {entry.problem_id: [] for entry in entries}
        for key, outcome in sorted(self.outcomes.items(), key=lambda item: item[0]):
            if key[1] == mode and key[0] in found:
                found[key[0]].append(outcome)
        return found


@dataclass(frozen=True, slots=True)
class Work:
    """Samples of one problem in one mode: those with `numbers` are still to be generated, those in
    `waiting` only to be judged."""

    entry: EvalEntry
    mode: Mode
    total: int
    numbers: Sequence[int]
    waiting: Sequence[Sample] = ()


class RuleGrader(GroupGrader):
    """Judges the programs of one problem by the plan, in slots (`places`) that all problems
    share."""

    def __init__(
        self, problem: Problem, executor: Executor, plan: Plan, places: asyncio.Semaphore
    ) -> None:
        """Grade `problem` with its CPU limit times `plan.cpu_factor`, then lowered to
        `plan.cpu_limit_s`."""
        scaled = replace(problem, time_limit_s=problem.time_limit_s * plan.cpu_factor)
        super().__init__(scaled, executor, cpu_limit_s=plan.cpu_limit_s)
        self._places, self._official = places, plan.official and problem.compare.rule == "lcb"

    async def _run(self, public: bool, code: str | None) -> Verdict:
        """Judge in a slot, all tests by LiveCodeBench's own rule if the plan asks for it. Raises as
        `judge_async` does."""
        async with self._places:
            if public or not self._official:
                return await super()._run(public, code)
            problem, limit = self._problem, self._cpu_limit_s
            return await judge_official(problem, code, self._executor, cpu_limit_s=limit)


class Evaluation:
    """One evaluation. `ask` loads a problem when it is needed. Samples and verdicts are kept in
    `folder`, unfinished conversations in its logs; without a folder, in the `log` of their problem.

    Without an `executor`, samples must already have verdicts.
    """

    def __init__(
        self,
        entries: Sequence[EvalEntry],
        ask: Callable[[EvalEntry], Question],
        generator: CompletionGenerator,
        plan: Plan,
        executor: Executor | None = None,
        folder: Folder | None = None,
        log: Callable[[str], GroupLog] = lambda _: GroupLog(),
    ) -> None:
        """Sample and judge nothing yet. Problems and answers are given by `ask` and `generator`;
        the caller closes `generator` and `executor`. Set `on_verdict` to be called with each new
        verdict."""
        self._entries, self._ask, self._generator, self._plan = entries, ask, generator, plan
        self._executor, self._folder = executor, folder
        self._log = log if folder is None else folder.group_log
        self._found = Found()
        self.on_verdict: Callable[[Verdict], object] = lambda _: None
        programs = default_concurrency(executor.slots if executor else None)
        self._places = asyncio.Semaphore(programs)
        self._workers = generator.at_once + (0 if executor is None else programs)

    @property
    def total(self) -> int:
        """The number of samples wanted, in all modes, with those of an earlier process."""
        return len(self._entries) * sum(number for _, number in self._plan.modes())

    async def run(self) -> Found:
        """Sample and judge everything that is missing, once, and return all results, those of an
        earlier process included. A sample that is not available is noted as missing. Raises
        CodeRLError if the rest is not available; finished samples stay kept. The folder is closed
        in any case."""
        started, work, complete = time.perf_counter(), self._work(), False
        try:
            await gather_or_cancel(self._worker(work) for _ in range(self._workers))
            complete = True
        finally:
            if self._folder is not None:
                self._folder.close(complete=complete)
        self._found.wall_s = time.perf_counter() - started
        return self._found

    def _work(self) -> Iterator[Work]:
        """Yield the remaining work in the order of the entries, after recording an earlier
        process's results. Samples without a verdict are judged without being sampled again. Raises
        DataError for a malformed row of the folder."""
        plan, entries = self._plan, self._entries
        wanted = {(entry.problem_id, mode) for entry in entries for mode, _ in plan.modes()}
        have: set[Key] = set()
        waiting: dict[tuple[str, Mode], list[Sample]] = {}
        for sample, row in self._folder.left(lambda key: key[:2] in wanted) if self._folder else ():
            have.add(sample.key)
            if row is None:
                waiting.setdefault(sample.key[:2], []).append(sample)
            else:
                self._note(sample.key, sample, row)
        self._found.resumed = len(self._found.outcomes)
        for entry, (mode, total) in itertools.product(entries, list(plan.modes())):
            unjudged = waiting.pop((entry.problem_id, mode), ())
            numbers = [
                number for number in range(total) if (entry.problem_id, mode, number) not in have
            ]
            if unjudged:
                yield Work(entry, mode, total, (), unjudged)
            if numbers:
                parts = [numbers] if self._generator.grouped else [[number] for number in numbers]
                yield from (Work(entry, mode, total, part) for part in parts)

    async def _worker(self, work: Iterator[Work]) -> None:
        """Work on one item after the other, from an iterator that all workers share; a problem is
        in memory only meanwhile. There are enough workers that judging does not delay sampling.
        Raises CodeRLError if the evaluation must end."""
        for item in work:
            question, grader = self._ask(item.entry), None
            if self._executor is not None:
                grader = RuleGrader(question[0], self._executor, self._plan, self._places)
            samples = item.waiting or await self._complete(item, question, grader)
            language = question[0].language
            await gather_or_cancel(
                self._judge(item.entry, sample, language, grader) for sample in samples
            )

    async def _complete(
        self, work: Work, question: Question, grader: RuleGrader | None
    ) -> Sequence[Sample]:
        """Ask for a work item's samples; store them before they are judged, and note why others are
        missing. The seed depends only on the plan's seed, the split and the index. Raises
        CodeRLError if the evaluation must end."""
        entry = work.entry
        # The same seed before and after training.
        seed = derive_seed(self._plan.seed, "eval", entry.split, entry.index)
        log = partial(self._log, entry.problem_id)
        samples, reason = [], "not_in_file"
        try:
            request = CompletionRequest(*question, seed, work.mode, work.total, log, grader)
            samples = await self._generator.complete(request, work.numbers)
        except CompletionError as error:
            reason = str(error)
        missing = set(work.numbers) - {sample.sample for sample in samples}
        self._found.missing |= {(entry.problem_id, work.mode, number): reason for number in missing}
        if self._folder is not None:
            for sample in samples:
                self._folder.samples.put(sample.to_json())
        return samples

    async def _judge(
        self, entry: EvalEntry, sample: Sample, language: str, grader: RuleGrader | None
    ) -> None:
        """Judge the sample unless it has a verdict, store the verdict and call `on_verdict`;
        samples with the same program share one run."""
        own, code = sample.verdict, sample.program(language)
        if own is None:
            assert grader is not None
            own = await grader.judge(code)
        row = verdict_row(sample, own, code is not None)
        if self._folder is not None:
            self._folder.verdicts.put(row)
        self._note((entry.problem_id, sample.mode, sample.sample), sample, row)
        self.on_verdict(own)

    def _note(self, key: Key, sample: Sample, row: Row) -> None:
        """Add one verdict to the results; a later one under the same key replaces its outcome."""
        self._found.cpu_s += row["cpu_s"]
        self._found.outcomes[key] = SampleOutcome(
            kind=VerdictKind(row["verdict"]),
            format_ok=row["format_ok"],
            truncated=sample.truncated,
            prompt_tokens=sample.prompt_tokens,
            completion_tokens=sample.completion_tokens,
        )
