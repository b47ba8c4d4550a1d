"""The verb `judge`: verdicts for a file of programs on problems of any data set, in the programs' order, in bounded memory; a cut run goes on."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any, Literal

import chz

from code_rl.concurrency import abandon, default_concurrency
from code_rl.errors import CodeRLError, ConfigError, DataError
from code_rl.problems.dataset import open_dataset
from code_rl.problems.files import read_lines, read_object
from code_rl.problems.load import load_problems
from code_rl.problems.problem import Problem
from code_rl.problems.settle import OnDemand
from code_rl.problems.store import Store
from code_rl.reward.extract import extract_code
from code_rl.reward.judge import judge
from code_rl.reward.verdict import Verdict, VerdictKind
from code_rl.runs.files import drop_torn_line
from code_rl.sandbox.executor import Executor
from code_rl.settings import describe, make_settings, read_arguments

USAGE = "code-rl judge problems=P.jsonl programs=Q.jsonl out=V.jsonl [key=value …]"
PARTIAL = ".partial"
"""Rows are appended to a file of this ending as they are given; the output itself appears when all are there."""

OnVerdict = Callable[[Verdict], None]


@chz.chz
class JudgeConfig:
    """Judge programs: run each on its problem's tests in the sandbox and write one verdict a line."""

    problems: str = chz.field(
        doc="Problems: a file or folder of rows of any shape, or a name on the hub; as train's dataset=."
    )
    programs: str = chz.field(
        doc='Programs, one JSON object a line: {"problem_id", "program_id", "code"}; "completion" in place of "code": the last\n'
        "fenced block counts. Other fields are ignored. May be .jsonl.gz."
    )
    out: str = chz.field(
        doc="Verdicts are written here, in the order of the programs. Until the last one is there they are in a file with .partial after its\n"
        "name; the same command goes on from there, and from an earlier file: only programs without a verdict of their own are run."
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


def read_programs(path: str, store: Store) -> Iterator[Program]:
    """Stream the programs of a file. Raises DataError, naming the line, for a malformed row or an unknown problem."""
    for number, line in read_lines(path):
        where = f"{path}, line {number}"
        row = read_object(line, where)
        problem_id, program_id = row.get("problem_id"), row.get("program_id")
        if not isinstance(problem_id, str):
            raise DataError(f"{where}: problem_id={problem_id!r} must be the id of a problem, a string")
        if not store.has(problem_id):
            raise DataError(f"{where}: problem_id={problem_id!r} is not among the {len(store)} problems given")
        if isinstance(program_id, bool) or not isinstance(program_id, str | int):
            raise DataError(f"{where}: program_id={program_id!r} must be a string")
        yield Program(problem_id, program_id, _program_code(row, where))


def keyed(programs: Iterable[Program], context: str) -> Iterator[tuple[Program, str]]:
    """Programs with a hash of what their verdicts depend on; one that comes again is judged again."""
    seen: Counter[bytes] = Counter()
    for program in programs:
        parts = json.dumps([context, program.problem_id, program.program_id, program.code]).encode()
        key = hashlib.blake2b(parts, digest_size=12).digest()
        seen[key] += 1
        yield program, f"{key.hex()}-{seen[key]}"


def check_programs(path: str, store: Store) -> int:
    """Read the whole file once and count its programs. Raises DataError for the first bad row."""
    return sum(1 for _ in read_programs(path, store))


class Journal:
    """The rows of `out`, appended as they come, found again by the `key` of what was judged, and put in order at the end.

    Rows that an earlier run left, there or in a finished `out`, count: a cut costs the programs in flight. Only places are in memory.
    """

    def __init__(self, out: str) -> None:
        """Raises DataError when the file cannot be written."""
        # A device or a pipe has no file beside it to be renamed.
        self._beside = not os.path.exists(out) or os.path.isfile(out)
        self._out, self.path = out, os.path.realpath(out) + PARTIAL
        self._places: dict[str, tuple[int, int]] = {}
        self._files: list[IO[bytes]] = []
        try:
            if self._beside:
                drop_torn_line(Path(self.path))
                self._rows: IO[bytes] = open(self.path, "ab+")  # noqa: SIM115 - closed by __exit__
            else:
                self._rows = tempfile.TemporaryFile()  # noqa: SIM115
            self._files.append(self._rows)
            if self._beside and os.path.isfile(out):
                self._files.append(open(out, "rb"))  # noqa: SIM115
        except OSError as error:
            raise DataError(f"out={out} cannot be written: {error.strerror}") from error
        for number in reversed(range(len(self._files))):
            self._find(number)
        self.earlier = len(self._places)

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def put(self, row: Mapping[str, Any]) -> None:
        """Keep one row; it survives a kill of this process once this returns."""
        self._places[row["key"]] = 0, self._rows.seek(0, os.SEEK_END)
        self._rows.write(json.dumps(row).encode() + b"\n")
        self._rows.flush()

    def row(self, key: str) -> dict[str, Any]:
        """The row under a key."""
        number, place = self._places[key]
        self._files[number].seek(place)
        row: dict[str, Any] = json.loads(self._files[number].readline())
        return row

    def finish(self, rows: Iterator[dict[str, Any]]) -> None:
        """Write all rows, in order, to the output."""
        if not self._beside:
            with open(self._out, "wb") as stream:
                stream.writelines(json.dumps(row).encode() + b"\n" for row in rows)
            return
        target = os.path.realpath(self._out)
        with open(target + ".tmp", "wb") as stream:
            stream.writelines(json.dumps(row).encode() + b"\n" for row in rows)
        os.replace(target + ".tmp", target)
        os.unlink(self.path)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            file.close()
        if self._beside and os.path.exists(self.path) and not os.path.getsize(self.path):
            os.unlink(self.path)

    def _find(self, number: int) -> None:
        """Places of the rows that are verdicts about their programs."""
        file, place = self._files[number], 0
        file.seek(0)
        for line in file:
            with contextlib.suppress(ValueError, TypeError, KeyError):
                row = json.loads(line)
                if not VerdictKind(row["verdict"]).ours:
                    self._places[row["key"]] = number, place
            place += len(line)


async def open_problems(problems: str, executor: Executor, say: Callable[[str], None] = print) -> Store:
    """The problems that `problems=` names. Raises ConfigError where there are none of that name, DataError for malformed ones."""
    try:
        return await load_problems(open_dataset(problems), executor, say)
    except ConfigError as error:
        raise ConfigError(str(error).replace("dataset=", "problems=", 1)) from error


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

    `concurrency` programs are in flight (None: enough to fill the executor's places); a slow one holds up none of them. `out` appears, or is replaced, when
    all rows are there. Nothing runs when either file is malformed. Raises DataError for bad files; does not close `executor`.
    """
    store = await open_problems(problems, executor, lambda _: None)
    check_programs(programs, store)
    return await judge_programs(
        store, programs, out, executor, concurrency=concurrency, cpu_limit_s=cpu_limit_s, on_verdict=on_verdict
    )


async def judge_programs(
    store: Store,
    programs: str,
    out: str,
    executor: Executor,
    *,
    concurrency: int | None = None,
    cpu_limit_s: float | None = None,
    on_verdict: OnVerdict | None = None,
    on_earlier: Callable[[int], object] = lambda _: None,
) -> Judged:
    """As `judge_files`, for problems that are read and a programs file that `check_programs` has read."""
    started, context = time.perf_counter(), f"{store.folder.name} {cpu_limit_s}"
    rows = keyed(read_programs(programs, store), context)

    with Journal(out) as journal:
        if journal.earlier:
            on_earlier(journal.earlier)
        await judge_into(
            journal, rows, store.get, executor, concurrency=concurrency, cpu_limit_s=cpu_limit_s, on_verdict=on_verdict
        )
        counts: Counter[VerdictKind] = Counter()

        def in_order() -> Iterator[dict[str, Any]]:
            for _, key in keyed(read_programs(programs, store), context):
                row = journal.row(key)
                counts[VerdictKind(row["verdict"])] += 1
                yield row

        journal.finish(in_order())
    return Judged(counts, time.perf_counter() - started)


async def judge_into(
    journal: Journal,
    rows: Iterator[tuple[Program, str]],
    problem_of: Callable[[str], Problem | None],
    executor: Executor,
    *,
    concurrency: int | None = None,
    cpu_limit_s: float | None = None,
    all_tests: bool = False,
    on_verdict: OnVerdict | None = None,
) -> None:
    """Judge the programs, given with their keys, of which `journal` has no row yet, many at once."""

    async def work() -> None:
        for program, key in rows:
            await asyncio.sleep(0)  # not every program has something to wait for
            if key in journal:
                continue
            problem = problem_of(program.problem_id)
            assert problem is not None
            verdict = await judge(problem, program.code, executor, cpu_limit_s=cpu_limit_s, all_tests=all_tests)
            journal.put(format_verdict(program, verdict, key))
            if on_verdict is not None:
                on_verdict(verdict)

    tasks = [asyncio.create_task(work()) for _ in range(concurrency or default_concurrency(executor))]
    try:
        await asyncio.gather(*tasks)
    except BaseException as error:
        error.add_note(f"the verdicts so far are in {journal.path}; the same command goes on from there")
        raise
    finally:
        await abandon(tasks)


def format_verdict(program: Program, verdict: Verdict, key: str) -> dict[str, Any]:
    """One row of the output file. `key` names the program, its problem and the limits: what the verdict depends on."""
    failure = verdict.failure
    return {
        "problem_id": program.problem_id,
        "program_id": program.program_id,
        "verdict": verdict.kind.value,
        "passed": verdict.passed,
        "total": verdict.total,
        "failure": failure and {"test": failure.test, "public": failure.public, "message": failure.message},
        "cpu_s": round(verdict.cpu_s, 6),
        "wall_s": round(verdict.wall_s, 6),
        "rule": verdict.rule,
        "key": key,
    }


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
    judged = asyncio.run(_run(config))
    return 0 if judged is None or judged.complete else 1


async def _run(config: JudgeConfig) -> Judged | None:
    """None: dry. Raises SandboxError before anything is written when a remote executor does not answer at all."""
    from code_rl.commands.judge_view import JudgingView
    from code_rl.sandbox.connect import connect_executor

    @cache
    def executor() -> Executor:
        return connect_executor(config.executor, isolation=config.isolation, concurrency=config.concurrency)

    try:
        store = await open_problems(config.problems, OnDemand(executor))
        view = JudgingView(check_programs(config.programs, store))
        if config.dry_run:
            view.say(f"both files are sound: {view.total} programs on {len(store)} problems; nothing was run")
            return None
        from code_rl.sandbox.connect import check_executor

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
    finally:
        if executor.cache_info().currsize:
            await executor().aclose()
