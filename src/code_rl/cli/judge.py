"""The verb `judge`: verdicts for a file of programs on problems of any data set, in the programs'
order, in bounded memory; a cut run goes on."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal

import chz

from code_rl.cli.verdict_files import is_judged, open_verdicts, put_in_order
from code_rl.data.dataset import open_dataset
from code_rl.data.load import load_problems
from code_rl.data.on_disk import ProblemStore
from code_rl.grading.extract import extract_code
from code_rl.grading.judge import judge
from code_rl.grading.problem import Problem
from code_rl.grading.sandbox.connect import EXECUTOR_DOC, ISOLATION_DOC
from code_rl.grading.sandbox.executor import Executor, OnDemand
from code_rl.grading.verdict import Verdict, VerdictKind
from code_rl.util.concurrency import cancel_all, default_concurrency
from code_rl.util.data_files import read_rows, sources_digest
from code_rl.util.errors import ConfigError, DataError
from code_rl.util.files import KeyedLog
from code_rl.util.setting import ABOVE_0, AT_LEAST_1, option
from code_rl.util.settings import make_settings

OnVerdict = Callable[[Verdict], None]


@chz.chz
class JudgeConfig:
    """Judge programs: run each on its problem's tests in the sandbox and write one verdict a
    line."""

    problems: str = chz.field(
        doc="Problems: a file or folder of rows of any shape, or a name on the hub; "
        "as train's dataset=."
    )
    programs: str = chz.field(
        doc='Programs, one JSON object a line: {"problem_id", "program_id", "code"}; '
        '"completion" in place of "code": the last\n'
        "fenced block counts. Other fields are ignored. May be .jsonl.gz, or the rollouts.jsonl "
        "of a run."
    )
    out: str = chz.field(
        doc="Verdicts are written here as they are reached, and put in the order of "
        "the programs at the end. The same command goes on with a\n"
        "file that a cut left, or an earlier one: only programs without a verdict of their own "
        "are run.\n"
        "Verdicts of other programs that are there stay, after these; a file that holds anything "
        "else is refused."
    )
    executor: str = option("auto", EXECUTOR_DOC)
    isolation: Literal["auto", "full", "landlock", "none"] = option("auto", ISOLATION_DOC)
    concurrency: int | None = option(
        None,
        "Programs that run at once, on each server (None: as many as the executor takes by "
        "default).",
        AT_LEAST_1,
    )
    reward_timeout: float | None = option(
        None, "CPU seconds per test at most; a problem's own lower limit wins.", ABOVE_0
    )
    dry_run: bool = option(False, "Check both files, say what would run, and stop.")

    @chz.validate
    def _distinct(self) -> None:
        for name in ("problems", "programs"):
            if os.path.realpath(self.out) == os.path.realpath(getattr(self, name)):
                raise ConfigError(
                    f"out={self.out} would overwrite the file given as {name}; name another"
                )


@dataclass(frozen=True, slots=True)
class ProgramRow:
    """One row of the programs file. `code` is None where there is nothing to run."""

    problem_id: str
    program_id: str | int
    code: str | None


@dataclass(frozen=True, slots=True)
class Judged:
    """What a whole file came to: programs by verdict, and wall seconds."""

    counts: Mapping[VerdictKind, int]
    wall_s: float

    @property
    def complete(self) -> bool:
        """True when every program got a verdict about itself."""
        return not any(count for kind, count in self.counts.items() if kind.undecided)


def read_programs(path: str, store: ProblemStore) -> Iterator[ProgramRow]:
    """Stream the programs of a file. Raises DataError, naming the line, for a malformed row or an
    unknown problem."""
    for where, row in _programs_of(path):
        problem_id, program_id = row.get("problem_id"), row.get("program_id")
        if not isinstance(problem_id, str):
            raise DataError(
                f"{where}: problem_id={problem_id!r} must be the id of a problem, a string"
            )
        if not store.has(problem_id):
            raise DataError(
                f"{where}: problem_id={problem_id!r} is not among the {len(store)} problems given"
            )
        if isinstance(program_id, bool) or not isinstance(program_id, str | int):
            raise DataError(f"{where}: program_id={program_id!r} must be a string")
        yield ProgramRow(problem_id, program_id, _program_code(row, where))


def _programs_of(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a file; a group in a run's rollouts.jsonl is one row for each of its
    completions."""
    for where, row in read_rows(path):
        if not isinstance(row.get("completions"), list):
            yield where, row
            continue
        group = "/".join(str(row.get(name)) for name in ("step", "group", "attempt"))
        for member, completion in enumerate(row["completions"]):
            if not isinstance(completion, dict):
                raise DataError(f"{where}: completion {member} must be an object")
            code = (
                {"code": completion["code"]}
                if "code" in completion
                else {"completion": completion.get("text")}
            )
            yield (
                where,
                {"problem_id": row.get("problem_id"), "program_id": f"{group}/{member}", **code},
            )


def keyed(programs: Iterable[ProgramRow], context: str) -> Iterator[tuple[ProgramRow, str]]:
    """Programs with a hash of what their verdicts depend on; one that comes again is judged
    again."""
    seen: Counter[bytes] = Counter()
    for program in programs:
        parts = json.dumps([context, program.problem_id, program.program_id, program.code]).encode()
        key = hashlib.blake2b(parts, digest_size=12).digest()
        seen[key] += 1
        yield program, f"{key.hex()}-{seen[key]}"


def taken(
    programs: str, store: ProblemStore, limit: float | None
) -> Iterator[tuple[ProgramRow, str]]:
    """The programs of a file, `keyed` by what else their verdicts depend on."""
    return keyed(
        read_programs(programs, store),
        f"{sources_digest('code_rl.grading')} {store.folder.name} {limit}",
    )


def check_programs(path: str, store: ProblemStore) -> int:
    """Read the whole file once and count its programs. Raises DataError for the first bad row."""
    return sum(1 for _ in read_programs(path, store))


async def open_problems(
    problems: str, executor: Executor, say: Callable[[str], None] = print
) -> ProblemStore:
    """The problems that `problems=` names. Raises ConfigError where there are none of that name,
    DataError for malformed ones."""
    try:
        return await load_problems(open_dataset(problems), executor, say)
    except (ConfigError, DataError) as error:
        raise type(error)(str(error).replace("dataset=", "problems=", 1)) from error


async def judge_programs(
    store: ProblemStore,
    programs: str,
    out: str,
    executor: Executor,
    *,
    concurrency: int | None = None,
    cpu_limit_s: float | None = None,
    on_verdict: OnVerdict | None = None,
    on_earlier: Callable[[int], object] = lambda _: None,
) -> Judged:
    """Judge every program of a file that `check_programs` has read; one row each to `out`, in the
    order of the programs.

    `concurrency` programs are in flight (None: enough to fill the executor's places); a slow one
    holds up none of them. Does not close `executor`.
    """
    started = time.perf_counter()
    rows = taken(programs, store, cpu_limit_s)

    with open_verdicts(out) as log:
        if earlier := sum(is_judged(log.get(key)) for key in log):
            on_earlier(earlier)
        ask = partial(judge, executor=executor, cpu_limit_s=cpu_limit_s)
        await judge_into(
            log, rows, store.get, ask, concurrency or default_concurrency(executor), on_verdict
        )
        order = [key for _, key in taken(programs, store, cpu_limit_s)]
        put_in_order(log, order)
        counts = Counter(VerdictKind(row["verdict"]) for key in order if (row := log.get(key)))
    return Judged(counts, time.perf_counter() - started)


async def judge_into(
    log: KeyedLog[str],
    rows: Iterator[tuple[ProgramRow, str]],
    problem_of: Callable[[str], Problem | None],
    ask: Callable[[Problem, str | None], Awaitable[Verdict]],
    at_once: int,
    on_verdict: OnVerdict | None = None,
) -> None:
    """Judge with `ask` the programs, given with their keys, of which `log` has no row yet."""

    async def work() -> None:
        for program, key in rows:
            await asyncio.sleep(0)  # not every program has something to wait for
            if is_judged(log.get(key)):
                continue
            problem = problem_of(program.problem_id)
            assert problem is not None
            verdict = await ask(problem, program.code)
            log.put(format_verdict(program, verdict, key))
            if on_verdict is not None:
                on_verdict(verdict)

    tasks = [asyncio.create_task(work()) for _ in range(at_once)]
    try:
        await asyncio.gather(*tasks)
    except BaseException as error:
        error.add_note(
            f"the verdicts so far are in {log.path}; the same command goes on from there"
        )
        raise
    finally:
        await cancel_all(tasks)


def format_verdict(program: ProgramRow, verdict: Verdict, key: str) -> dict[str, Any]:
    """One row of the output file. `key` names the program, its problem and the limits: what the
    verdict depends on."""
    named = {"problem_id": program.problem_id, "program_id": program.program_id}
    return {**named, **verdict.to_json(), "key": key}


def _program_code(row: Mapping[str, Any], where: str) -> str | None:
    given = [name for name in ("code", "completion") if name in row]
    if len(given) != 1:
        raise DataError(
            f"{where}: a program needs either code or completion, not "
            f"{' and '.join(given) or 'neither'}"
        )
    text = row[given[0]]
    if text is not None and not isinstance(text, str):
        raise DataError(f"{where}: {given[0]} must be a string, not {type(text).__name__}")
    return extract_code(text) if text is not None and given == ["completion"] else text


@contextlib.asynccontextmanager
async def sandbox_on_demand(config: Any) -> AsyncIterator[Callable[[], Executor]]:
    """The executor that a verb's settings name, started when it is first asked for, and stopped at
    the end."""
    from code_rl.grading.sandbox.connect import connect_executor

    @cache
    def executor() -> Executor:
        return connect_executor(
            config.executor, isolation=config.isolation, concurrency=config.concurrency
        )

    try:
        yield executor
    finally:
        if executor.cache_info().currsize:
            await executor().aclose()


def judge_command(given: Mapping[str, str]) -> int:
    """Run the verb; 0 when every program got a verdict about itself, else 1. Raises ConfigError and
    DataError for bad input."""
    judged = asyncio.run(_run(make_settings(JudgeConfig, given)))
    return 0 if judged is None or judged.complete else 1


async def _run(config: JudgeConfig) -> Judged | None:
    """None: dry. Raises SandboxError before anything is written when a remote executor does not
    answer at all."""
    from code_rl.evaluation.progress import JudgingView
    from code_rl.grading.sandbox.connect import check_executor

    async with sandbox_on_demand(config) as executor:
        store = await open_problems(config.problems, OnDemand(executor))
        view = JudgingView(check_programs(config.programs, store))
        if config.dry_run:
            view.say(
                f"both files are sound: {view.total} programs on {len(store)} problems; nothing "
                "was run"
            )
            return None
        await check_executor(executor())
        with view.progress(executor().description) as on_verdict:
            judged = await judge_programs(
                store,
                config.programs,
                config.out,
                executor(),
                cpu_limit_s=config.reward_timeout,
                on_verdict=on_verdict,
                on_earlier=lambda earlier: view.say(f"{earlier} verdicts are here from before"),
            )
        view.summary(judged.counts, judged.wall_s, config.out)
        return judged
