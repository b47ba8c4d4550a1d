"""From a benchmark's raw rows to the native problem file that is judged; made once, kept in the cache under a key of all that shapes it."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import fcntl
import hashlib
import itertools
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from code_rl.errors import ConfigError, DataError
from code_rl.evaluation.benchmarks import (
    BENCHMARKS,
    PROMPT_TEXT,
    Benchmark,
    check_choice,
    count,
    describe_files,
    open_native,
    source_files,
)
from code_rl.evaluation.prompts import COURSE
from code_rl.evaluation.settings import Choice
from code_rl.problems.files import cache_folder, sources_digest
from code_rl.problems.native import format_problem, write_problems
from code_rl.problems.problem import Problem
from code_rl.problems.sources.evalplus import with_expected
from code_rl.problems.sources.humaneval import read_humaneval, read_humaneval_plus, read_humaneval_plus_origin
from code_rl.problems.sources.livecodebench import OUTSIDE_WINDOW, parse_window, read_livecodebench
from code_rl.problems.sources.mbpp import read_mbpp, read_mbpp_plus, read_mbpp_plus_origin
from code_rl.problems.sources.prelude import LCB_PRELUDE
from code_rl.problems.sources.records import Draft, Row, Skipped, read_rows
from code_rl.runs.files import drop_torn_line, write_atomically
from code_rl.sandbox.executor import Executor

Item = Problem | Draft | Skipped
Pairs = Iterator[tuple[Row, Item]]
Reader = Callable[[Iterable[Row]], Iterator[Item]]

AT_ONCE = 8
"""References that run at once while expected values are made."""


async def load_benchmark(name: str, data: str | None, choice: Choice, executor: Executor) -> Benchmark:
    """The benchmark `name`, ready to be asked and judged. References run in `executor` where expected values come from them.

    Raises ConfigError for a benchmark that cannot be had, DataError for malformed files.
    """
    if name not in BENCHMARKS:
        return _native(name, name, choice)
    if name == "builtin":
        return _builtin(choice)
    if name == "codeforces" and data is not None and data.endswith((".jsonl", ".jsonl.gz")):
        return _native(name, data, choice)
    window = parse_window(choice.start_date, choice.end_date)
    paths, revision = source_files(name, data, choice)
    files = describe_files(paths)
    key = _key(name, files, choice)
    target = cache_folder() / "benchmarks" / f"{key}.jsonl"
    if not _made(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        await _make(target, _PAIRS[name](paths, choice), executor)
    skipped = json.loads(_notes(target).read_text(encoding="utf-8"))
    facts: dict[str, Any] = {"files": files, "revision": revision, "skipped": count(skipped.values())}
    if name == "livecodebench":
        facts |= {"release": choice.version or "of the file", "window": str(window)}
    listed = {row: reason for row, reason in skipped.items() if reason != OUTSIDE_WINDOW}
    return open_native(name, target, BENCHMARKS[name].prompt, choice, facts, listed)


def _native(name: str, file: str, choice: Choice) -> Benchmark:
    path = Path(file).expanduser()
    check_choice(name, choice)
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such file")
    facts = {"files": describe_files([path]), "revision": "local file", "skipped": {}}
    prompt = BENCHMARKS[name].prompt if name in BENCHMARKS else COURSE
    return open_native(name if name in BENCHMARKS else path.name, path, prompt, choice, facts, {})


def _builtin(choice: Choice) -> Benchmark:
    from code_rl.problems.builtin import SPLITS, test_split

    check_choice("builtin", choice)
    problems = [problem for split in SPLITS for problem in test_split(split)]
    digest = hashlib.sha256("\n".join(map(format_problem, problems)).encode()).hexdigest()
    target = cache_folder() / "benchmarks" / f"builtin-{digest[:24]}.jsonl"
    target.parent.mkdir(parents=True, exist_ok=True)
    write_problems(target, problems)
    facts = {"files": [{"name": "builtin", "sha256": digest}], "revision": "in the package", "skipped": {}}
    return open_native("builtin", target, BENCHMARKS["builtin"].prompt, choice, facts, {})


async def _make(target: Path, pairs: Pairs, executor: Executor) -> None:
    """Write the problems of all rows to `target`, in order, and beside it the reasons of the rows that have none, by id.

    Rows go to a part file as they are ready, so that a cut costs the rows in hand; whoever comes second waits for the first.
    """
    part = target.with_name(f".{target.name}.part")
    with target.with_name(f".{target.name}.lock").open("w") as lock:
        await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
        if _made(target):
            return
        drop_torn_line(part)
        with part.open("a+b") as file:
            file.seek(0)
            done = sum(1 for _ in file)
            async for item in _resolved(itertools.islice(pairs, done, None), executor):
                line = json.dumps([item.row_id, item.reason]) if isinstance(item, Skipped) else format_problem(item)
                file.write(line.encode("ascii") + b"\n")
                file.flush()
        _split(part, target)
        part.unlink()


def _split(part: Path, target: Path) -> None:
    """Problems to `target`, the rows left out to its notes. Raises DataError when no row is a problem."""
    skipped: dict[str, str] = {}
    problems = 0
    temporary = target.with_name(f".{target.name}.tmp")
    with part.open("rb") as lines, temporary.open("wb") as file:
        for line in lines:
            if line.startswith(b"["):
                row_id, reason = json.loads(line)
                skipped[row_id] = reason
            else:
                file.write(line)
                problems += 1
    if not problems:
        temporary.unlink()
        part.unlink()
        raise DataError(f"no row of {target.name} is a problem: {count(skipped.values())}")
    write_atomically(_notes(target), json.dumps(skipped))
    temporary.replace(target)


def _notes(target: Path) -> Path:
    return target.with_suffix(".json")


def _made(target: Path) -> bool:
    return target.is_file() and _notes(target).is_file()


async def _resolved(pairs: Pairs, executor: Executor) -> AsyncIterator[Problem | Skipped]:
    """Drafts with their references' values, a few at once, everything in order."""
    waiting: deque[asyncio.Task[Problem | Skipped]] = deque()
    try:
        for row, item in pairs:
            waiting.append(asyncio.create_task(_resolve(row, item, executor)))
            if len(waiting) >= AT_ONCE:
                yield await waiting.popleft()
        while waiting:
            yield await waiting.popleft()
    finally:
        for task in waiting:
            task.cancel()


async def _resolve(row: Row, item: Item, executor: Executor) -> Problem | Skipped:
    done = await with_expected(item, executor) if isinstance(item, Draft) else item
    if isinstance(done, Skipped):
        return done
    extra = _prompt_meta(row, done)
    return dataclasses.replace(done, meta={**done.meta, **extra}) if extra else done


def _prompt_meta(row: Row, problem: Problem) -> dict[str, str]:
    """What the benchmark's prompt shows of the row, and what a plain completion would continue."""
    if problem.source.startswith("humaneval"):
        return {PROMPT_TEXT: str(row["prompt"]), "continued": str(row["prompt"])}
    if problem.source == "mbppplus":
        return {PROMPT_TEXT: str(row["prompt"]), "continued": str(row["prompt"])}
    if problem.source == "mbppplus-origin":
        return {PROMPT_TEXT: f'"""\n{problem.statement}\n"""'}
    if problem.source == "mbpp":
        text = str(row["text" if "text" in row else "prompt"]).strip()
        return {PROMPT_TEXT: f"{text} Your code should pass these tests:\n\n" + "\n".join(row["test_list"])}
    return {}


def _paired(rows: Iterable[Row], reader: Reader) -> Pairs:
    """Items with the row that each came from: readers yield one item for each row."""
    last: list[Row] = []

    def watched() -> Iterator[Row]:
        for row in rows:
            last[:] = [row]
            yield row

    for item in reader(watched()):
        yield last[0], item


def _by_layout(plus: Reader, other: Reader, *, base_only: bool) -> Callable[[list[Path], Choice], Pairs]:
    """Pairs from a file of either layout: rows with `base_input` are evalplus's own, of which `base_only` leaves the extra tests out."""

    def pairs(paths: list[Path], _choice: Choice) -> Pairs:
        rows = read_rows(paths[0])
        first = next(rows, None)
        if first is None:
            raise DataError(f"{paths[0]} holds no rows")
        everything: Iterable[Row] = itertools.chain([first], rows)
        if "base_input" not in first:
            return _paired(everything, other)
        if base_only:
            everything = ({**row, "plus_input": []} for row in everything)
        return _paired(everything, plus)

    return pairs


def _livecodebench(paths: list[Path], choice: Choice) -> Pairs:
    window = parse_window(choice.start_date, choice.end_date)
    rows = itertools.chain.from_iterable(map(read_rows, paths))
    for row, item in _paired(rows, lambda watched: read_livecodebench(watched, window)):
        yield row, (_with_prelude(item) if isinstance(item, Problem) else item)


def _with_prelude(problem: Problem) -> Problem:
    """The benchmark's own imports, which it has before every program, those that read stdin too."""
    return dataclasses.replace(problem, meta={**problem.meta, "preamble": LCB_PRELUDE})


def _codeforces(paths: list[Path], _choice: Choice) -> Pairs:
    """A list of `{"problem", "tests"}` with a list of problem names beside it."""
    if len(paths) != 2:
        raise DataError(
            f"{paths[0]}: benchmark=codeforces wants a native problem file, or the folder of codeforces.json"
        )
    rows, names = (json.loads(path.read_text(encoding="utf-8")) for path in paths)
    if len(rows) != len(names):
        raise DataError(f"{paths[0]} has {len(rows)} problems, {paths[1].name} {len(names)} names")
    for row, name in zip(rows, names, strict=True):
        yield row, _codeforces_problem(row, name)


def _codeforces_problem(row: Row, name: str) -> Item:
    from code_rl.problems.course_tests import read_tests

    try:
        raw = row["tests"]
        tests, fn_name = read_tests(ast.literal_eval(raw) if isinstance(raw, str) else raw)
        return Problem(id=name, statement=row["problem"], tests=tests, fn_name=fn_name, source="codeforces")
    except (DataError, KeyError, ValueError, SyntaxError, TypeError) as error:
        return Skipped(name, "bad_tests", str(error))


_PAIRS: dict[str, Callable[[list[Path], Choice], Pairs]] = {
    "livecodebench": _livecodebench,
    "humaneval": _by_layout(read_humaneval_plus, read_humaneval, base_only=True),
    "humaneval+": _by_layout(read_humaneval_plus, read_humaneval_plus_origin, base_only=False),
    "mbpp": _by_layout(read_mbpp_plus, read_mbpp, base_only=True),
    "mbpp+": _by_layout(read_mbpp_plus, read_mbpp_plus_origin, base_only=False),
    "codeforces": _codeforces,
}


def _key(name: str, files: list[dict[str, Any]], choice: Choice) -> str:
    """A name for the native file: the inputs' hashes, the rows chosen, and the readers' own source."""
    shape = [name, [each["sha256"] for each in files], choice.version, choice.start_date, choice.end_date]
    digest = hashlib.sha256(json.dumps([*shape, sources_digest("code_rl.problems", __name__)]).encode()).hexdigest()
    return f"{name.replace('+', 'plus')}-{digest[:24]}"
