"""The verb `judge`: verdicts for a file of programs on a file of problems, in the programs' order, in bounded memory."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import chz

from code_rl.commands.judge_out import OrderedOutput
from code_rl.concurrency import default_concurrency
from code_rl.errors import CodeRLError, ConfigError, DataError
from code_rl.problems.files import read_lines, read_object
from code_rl.problems.store import ProblemStore
from code_rl.reward.extract import extract_code
from code_rl.reward.judge import judge
from code_rl.reward.verdict import Verdict, VerdictKind
from code_rl.sandbox.executor import Executor
from code_rl.settings import describe, make_settings, read_arguments

if TYPE_CHECKING:
    from code_rl.commands.judge_view import JudgingView

USAGE = "code-rl judge problems=P.jsonl programs=Q.jsonl out=V.jsonl [key=value …]"
"""While one program's outputs are compared here, another has its place in the executor."""

OnVerdict = Callable[[Verdict], None]


@chz.chz
class JudgeConfig:
    """Judge programs: run each on its problem's tests in the sandbox and write one verdict a line."""

    problems: str = chz.field(doc="Problems in the native format (.jsonl or .jsonl.gz).")
    programs: str = chz.field(
        doc='Programs, one JSON object a line: {"problem_id", "program_id", "code"}; "completion" in place of "code": the last\n'
        "fenced block counts. Other fields are ignored. May be .jsonl.gz."
    )
    out: str = chz.field(
        doc="Verdicts are written here, in the order of the programs. An existing file is replaced when the last one is there;\nuntil then they are in a file with .partial after its name."
    )
    executor: str = chz.field(
        default="auto",
        doc="Where programs run: 'embedded', or Sandbox Fusion URLs, comma-separated. auto: SANDBOX_URL if set, else embedded.",
    )
    isolation: Literal["auto", "full", "landlock", "none"] = chz.field(
        default="auto",
        doc="Isolation level of the embedded sandbox; auto takes the strongest that this machine allows.",
    )
    concurrency: int | None = chz.field(
        default=None, doc="Programs that run at once, on each server (None: as many as the executor takes by default)."
    )
    reward_timeout: float | None = chz.field(
        default=None, doc="CPU seconds per test at most; a problem's own lower limit wins."
    )
    dry_run: bool = chz.field(default=False, doc="Check both files, say what would run, and stop.")

    @chz.validate
    def _positive(self) -> None:
        for name in ("concurrency", "reward_timeout"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name}={value} must be above 0")

    @chz.validate
    def _distinct(self) -> None:
        for name in ("problems", "programs"):
            if os.path.realpath(self.out) == os.path.realpath(getattr(self, name)):
                raise ConfigError(f"out={self.out} would overwrite the file given as {name}; name another")


@dataclass(frozen=True, slots=True)
class Program:
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
    def total(self) -> int:
        """How many programs were judged."""
        return sum(self.counts.values())

    @property
    def complete(self) -> bool:
        """True when every program got a verdict about itself."""
        return not any(count for kind, count in self.counts.items() if kind.ours)


def read_programs(path: str, store: ProblemStore) -> Iterator[Program]:
    """Stream the programs of a file. Raises DataError, naming the line, for a malformed row or an unknown problem."""
    for number, line in read_lines(path):
        where = f"{path}, line {number}"
        row = read_object(line, where)
        problem_id, program_id = row.get("problem_id"), row.get("program_id")
        if not isinstance(problem_id, str):
            raise DataError(f"{where}: problem_id={problem_id!r} must be the id of a problem, a string")
        if problem_id not in store:
            raise DataError(f"{where}: problem_id={problem_id!r} is not among the {len(store)} problems given")
        if isinstance(program_id, bool) or not isinstance(program_id, str | int):
            raise DataError(f"{where}: program_id={program_id!r} must be a string")
        yield Program(problem_id, program_id, _program_code(row, where))


def check_programs(path: str, store: ProblemStore) -> int:
    """Read the whole file once and count its programs. Raises DataError for the first bad row."""
    return sum(1 for _ in read_programs(path, store))


async def judge_files(
    problems: str,
    programs: str,
    out: str,
    executor: Executor,
    *,
    concurrency: int | None = None,
    cpu_limit_s: float | None = None,
    on_verdict: OnVerdict | None = None,
) -> Judged:
    """Judge every program and write one row each to `out`, in the order of the programs.

    `concurrency` programs are in flight (None: enough to fill the executor's places); a slow one holds up none of them, rows that are ahead wait on
    disk. `out` appears, or is replaced, when all rows are there. Nothing runs when either file is malformed. Raises DataError for bad files;
    does not close `executor`.
    """
    with ProblemStore(problems) as store:
        check_programs(programs, store)
        return await judge_programs(
            store, programs, out, executor, concurrency=concurrency, cpu_limit_s=cpu_limit_s, on_verdict=on_verdict
        )


async def judge_programs(
    store: ProblemStore,
    programs: str,
    out: str,
    executor: Executor,
    *,
    concurrency: int | None = None,
    cpu_limit_s: float | None = None,
    on_verdict: OnVerdict | None = None,
) -> Judged:
    """As `judge_files`, for a store that is open and a programs file that `check_programs` has read."""
    counts: Counter[VerdictKind] = Counter()
    started = time.perf_counter()
    rows = enumerate(read_programs(programs, store))

    async def work(output: OrderedOutput) -> None:
        for index, program in rows:
            await asyncio.sleep(0)  # not every program has something to wait for
            verdict = await judge(store.get(program.problem_id), program.code, executor, cpu_limit_s=cpu_limit_s)
            output.put(index, format_verdict(program, verdict))
            counts[verdict.kind] += 1
            if on_verdict is not None:
                on_verdict(verdict)

    with OrderedOutput(out) as output:
        tasks = [asyncio.create_task(work(output)) for _ in range(concurrency or default_concurrency(executor))]
        try:
            await asyncio.gather(*tasks)
        except BaseException as error:
            if output.rows:
                error.add_note(f"the first {output.rows} verdicts are in {output.written_to}")
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    return Judged(counts, time.perf_counter() - started)


def format_verdict(program: Program, verdict: Verdict) -> str:
    """One row of the output file, without the line end."""
    failure = verdict.failure
    return json.dumps(
        {
            "problem_id": program.problem_id,
            "program_id": program.program_id,
            "verdict": verdict.kind.value,
            "passed": verdict.passed,
            "total": verdict.total,
            "failure": failure and {"test": failure.test, "public": failure.public, "message": failure.message},
            "cpu_s": round(verdict.cpu_s, 6),
            "wall_s": round(verdict.wall_s, 6),
            "rule": verdict.rule,
        }
    )


def _program_code(row: Mapping[str, Any], where: str) -> str | None:
    given = [name for name in ("code", "completion") if name in row]
    if len(given) != 1:
        raise DataError(f"{where}: a program needs either code or completion, not {' and '.join(given) or 'neither'}")
    text = row[given[0]]
    if text is not None and not isinstance(text, str):
        raise DataError(f"{where}: {given[0]} must be a string, not {type(text).__name__}")
    return extract_code(text) if text is not None and given == ["completion"] else text


def main(argv: Sequence[str]) -> int:
    """Run the verb with command-line words; returns the exit code. Bad input is one line on stderr."""
    if {"--help", "-h", "help"} & set(argv):
        print(describe(JudgeConfig, USAGE))
        return 0
    try:
        return judge_command(read_arguments(argv))
    except CodeRLError as error:
        print(f"code-rl judge: {'; '.join([str(error), *getattr(error, '__notes__', ())])}", file=sys.stderr)
        return error.exit_code


def judge_command(given: Mapping[str, str]) -> int:
    """Run the verb with raw settings; returns the exit code. Raises ConfigError and DataError for bad input."""
    return run(make_settings(JudgeConfig, given))


def run(config: JudgeConfig) -> int:
    """Judge as configured, showing progress and a table; 0 when every program got a verdict about itself, else 1."""
    from code_rl.commands.judge_view import JudgingView

    with ProblemStore(config.problems) as store:
        view = JudgingView(check_programs(config.programs, store))
        if config.dry_run:
            view.say(f"both files are sound: {view.total} programs on {len(store)} problems; nothing was run")
            return 0
        judged = asyncio.run(_run(config, store, view))
    view.summary(judged.counts, judged.wall_s, config.out)
    return 0 if judged.complete else 1


async def _run(config: JudgeConfig, store: ProblemStore, view: JudgingView) -> Judged:
    """Raises SandboxError before anything is written when a remote executor does not answer at all."""
    from code_rl.sandbox.connect import check_executor, connect_executor

    executor = connect_executor(config.executor, isolation=config.isolation, concurrency=config.concurrency)
    try:
        await check_executor(executor)
        with view.progress(executor.description) as on_verdict:
            return await judge_programs(
                store,
                config.programs,
                config.out,
                executor,
                cpu_limit_s=config.reward_timeout,
                on_verdict=on_verdict,
            )
    finally:
        await executor.aclose()
