"""Judges a file of programs: each program gets one row with its verdict, in the programs' order."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from code_rl.data import ProblemStore
from code_rl.evaluation.samples import HoldsProgram, text_of
from code_rl.evaluation.view import VerdictView
from code_rl.grading import Verdict, VerdictKind, judge_async
from code_rl.grading.sandbox import Executor
from code_rl.util.concurrency import cancel_all, default_concurrency
from code_rl.util.data_files import read_rows, sources_digest
from code_rl.util.errors import DataError
from code_rl.util.files import KeyedLog, only_writer, sized_lines, writes


@dataclass(frozen=True, slots=True)
class ProgramRow(HoldsProgram):
    """One row of the programs file."""

    problem_id: str
    program_id: str | int
    code: str | None = None
    completion: str | None = None
    language: str | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """The result of a whole file: programs by verdict, and how many were judged now, in `wall_s`
    seconds."""

    counts: Mapping[VerdictKind, int]
    judged: int
    wall_s: float

    @property
    def complete(self) -> bool:
        """True if every program got a decided verdict, now or in an earlier process."""
        return not any(count for kind, count in self.counts.items() if kind.undecided)


def read_programs(path: str, store: ProblemStore) -> Iterator[ProgramRow]:
    """Yield the programs of a file, in order, as it is read. Raises DataError, naming the line, for
    a malformed row or an unknown problem, and for a file without a program."""
    where = ""
    for where, row in _programs_of(path):
        problem_id, program_id = row.get("problem_id"), row.get("program_id")
        if not isinstance(problem_id, str) or not store.has(problem_id):
            raise DataError(
                f"{where}: problem_id={problem_id!r} is not among the {len(store)} problems given"
            )
        if isinstance(program_id, bool) or not isinstance(program_id, str | int):
            raise DataError(f"{where}: program_id={program_id!r} must be a string")
        yield ProgramRow(
            problem_id, program_id, language=row.get("language"), **text_of(row, where)
        )
    if not where:
        raise DataError(f"programs={path} holds no program")


def _programs_of(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (line, row) of a file. A group in a run's rollouts.jsonl gives one row for each of its
    completions, named `STEP/GROUP/ATTEMPT/MEMBER`. Raises DataError for a malformed line."""
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


def keyed(
    path: str, store: ProblemStore, limit: float | None, language: str | None
) -> Iterator[tuple[ProgramRow, str]]:
    """Yield the programs of a file, each with a hash of everything that decides its verdict: the
    judge's source, the problems, limits, language and text. Repeated programs get different hashes,
    so each is judged. A verdict under another hash is not reused, so the hash must be the same in
    every process."""
    context = f"{sources_digest('code_rl.grading')} {store.folder.name} {limit} {language}"
    seen: Counter[bytes] = Counter()
    for program in read_programs(path, store):
        named = [context, program.problem_id, program.program_id]
        parts = json.dumps([*named, program.code, program.completion]).encode()
        key = hashlib.blake2b(parts, digest_size=12).digest()
        seen[key] += 1
        yield program, f"{key.hex()}-{seen[key]}"


def check_programs(path: str, store: ProblemStore, language: str | None) -> tuple[int, set[str]]:
    """Read the whole file once; nothing is run. Return the number of its programs and the languages
    in which they are judged. Raises DataError for the first bad row, a program in another language
    than its problem, or a problem that programs of `language` cannot have."""
    total, languages = 0, dict[str, str]()
    for program in read_programs(path, store):
        total, name = total + 1, program.problem_id
        if name not in languages:
            languages[name] = store.get(name).in_language(language).language
        if program.language not in (None, languages[name]):
            raise DataError(
                f"programs={path}: program {program.program_id!r} is in {program.language}, and "
                f"problem {name!r} would be judged in {languages[name]}; give language="
            )
    return total, set(languages.values())


async def judge_programs(
    store: ProblemStore,
    programs: str,
    out: str,
    executor: Executor,
    *,
    language: str | None = None,
    concurrency: int | None = None,
    cpu_limit_s: float | None = None,
    on_verdict: Callable[[Verdict], object] = lambda _: None,
) -> Judged:
    """Judge every program of a file that `check_programs` has read. Write one row each to `out` as
    soon as it has a verdict; at the end the rows are put in the order of the programs. Programs
    with a decided verdict in `out` are not run again.

    `language` is that of the programs (None: each problem's own). `concurrency` programs are in
    flight (None: enough to fill the executor's slots); a slow one does not delay the others.
    `cpu_limit_s` lowers the limit per test (None: keeps it). Does not close `executor`. Raises
    DataError as `open_verdicts` does, and OutageError; the rows so far stay.
    """
    started = time.perf_counter()
    rows = keyed(programs, store, cpu_limit_s, language)
    judged = 0

    with open_verdicts(out) as log:

        async def work() -> None:
            """Judge one program after the other, until no row is left."""
            nonlocal judged
            for program, key in rows:
                # Let other tasks run, even if this program waits for nothing
                await asyncio.sleep(0)
                if is_judged(log.get(key)):
                    continue
                problem = store.get(program.problem_id).in_language(language)
                verdict = await judge_async(
                    problem,
                    program.program(problem.language),
                    executor=executor,
                    cpu_limit_s=cpu_limit_s,
                )
                named = {"problem_id": program.problem_id, "program_id": program.program_id}
                log.put({**named, **verdict.to_json(), "key": key})
                judged += 1
                on_verdict(verdict)

        at_once = concurrency or default_concurrency(executor.slots)
        tasks = [asyncio.create_task(work()) for _ in range(at_once)]
        try:
            await asyncio.gather(*tasks)
        finally:
            await cancel_all(tasks)
        order = [key for _, key in keyed(programs, store, cpu_limit_s, language)]
        put_in_order(log, order)
        counts = Counter(VerdictKind(row["verdict"]) for key in order if (row := log.get(key)))
    return Judged(counts, judged, time.perf_counter() - started)


@contextlib.contextmanager
def open_verdicts(out: str) -> Iterator[KeyedLog[str]]:
    """Open the verdicts in the file `out`, by the `key` of each program, and lock it for the block.
    A file that a failed block leaves empty is deleted.

    Raises DataError if the file cannot be written, has any other content, or is in use.
    """
    path = Path(os.path.realpath(out))
    if not out or (path.exists() and not path.is_file()):
        raise DataError(f"out={out} must be a file; name one")
    lock = path.with_name(f"{path.name}.lock")
    with only_writer(lock, f"out={out}", DataError, stays=False), contextlib.ExitStack() as stack:
        try:
            if (
                path.exists()
                and path.stat().st_size
                and not any(map(_key, (row for _, row in sized_lines(path))))
            ):
                raise DataError("no whole line")  # opening removes an incomplete last row
            with writes(out, "file", DataError):
                log = stack.enter_context(contextlib.closing(KeyedLog(path, _key)))
        except (DataError, KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"out={out} holds something else than such verdicts ({error}); name another file"
            ) from error
        try:
            yield log
        except BaseException:
            if not log:
                path.unlink()
            raise


def put_in_order(log: KeyedLog[str], keys: Iterable[str]) -> None:
    """Put the rows under `keys` first, in this order, followed by the rows of programs that are not
    among them; older rows of the same programs are dropped. Each key has a row. The file is
    replaced atomically."""
    mine = dict.fromkeys(keys)
    program_of = {key: _program(row) for key in log if (row := log.get(key))}
    judged = {program_of[key] for key in mine}
    log.rewrite([*mine, *(key for key, program in program_of.items() if program not in judged)])


def is_judged(row: Mapping[str, Any] | None) -> bool:
    """Return True if a row has a verdict about its program; None is no row."""
    return row is not None and not VerdictKind(row["verdict"]).undecided


def _key(row: Mapping[str, Any]) -> str:
    """Return the key of a row. Raises KeyError or ValueError for anything but a row of verdicts."""
    VerdictKind(row["verdict"]), _program(row)
    return str(row["key"])


def _program(row: Mapping[str, Any]) -> tuple[object, object]:
    """Return the identity of a row's program: the ids of the problem and of the program."""
    return row["problem_id"], row["program_id"]


class JudgingView(VerdictView):
    """Shows the judging of programs, and a table of their verdicts."""

    def summary(self, done: Judged, out: str) -> None:
        """Print the table of verdicts, programs per second, and the file `out` with the rows."""
        counts, total = done.counts, sum(done.counts.values())
        table = self.table("verdict", "programs", "share", left=("verdict",))
        for kind in VerdictKind:
            if counts.get(kind):
                table.add_row(kind.value, str(counts[kind]), f"{100 * counts[kind] / total:.1f}%")
        self.console.print(table)
        pace = f"{done.wall_s:.1f} s, {done.judged / done.wall_s:.1f} programs per second"
        kept = f", {total - done.judged} judged before" if done.judged < total else ""
        self.say(f"{done.judged} programs in {pace}{kept}; verdicts in {out}")
        self.undecided(counts, "programs")
