"""What each benchmark asks a model, as its authors publish it; every wording has a version that goes into the results.

Built from a problem's public view and the prompt text of its row: nothing hidden can reach a model.
"""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import fcntl
import hashlib
import itertools
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from code_rl.errors import ConfigError, DataError
from code_rl.evaluation.ask import Entry
from code_rl.evaluation.settings import Choice
from code_rl.problems.fetch import Pinned, fetch
from code_rl.problems.files import cache_folder, file_sha256, sources_digest
from code_rl.problems.native import format_problem, write_problems
from code_rl.problems.order import subsample
from code_rl.problems.problem import Problem, ProblemView
from code_rl.problems.prompts import (
    LCB_FORMATTING_WITH_STARTER_CODE,
    LCB_FORMATTING_WITHOUT_STARTER_CODE,
    LCB_SYSTEM_MESSAGE_GENERIC,
)
from code_rl.problems.settle import with_expected
from code_rl.problems.sources.humaneval import read_humaneval, read_humaneval_plus, read_humaneval_plus_origin
from code_rl.problems.sources.livecodebench import OUTSIDE_WINDOW, parse_window, read_livecodebench
from code_rl.problems.sources.mbpp import read_mbpp, read_mbpp_plus, read_mbpp_plus_origin
from code_rl.problems.sources.records import Draft, Row, Skipped, read_rows
from code_rl.problems.sources.testcases import LCB_PRELUDE
from code_rl.problems.store import ProblemStore
from code_rl.renderers.base import Message
from code_rl.runs.files import drop_torn_line, write_atomically
from code_rl.sandbox.executor import Executor
from code_rl.settings import suggestion

EVALPLUS_SYSTEM = "You are a helpful assistant good at coding."
EVALPLUS_INSTRUCTION = (
    "Please provide a self-contained Python script that solves the following problem in a markdown code block:"
)
MBPP_INSTRUCTION = "You are an expert Python programmer, and here is your task:"


@dataclass(frozen=True, slots=True)
class PromptStyle:
    """`version` names the wording, and where it is from; `build` makes the conversation from a view and the row's prompt text.

    None: the conversation begins as the environment begins it, as in training.
    """

    version: str
    build: Callable[[ProblemView, str], list[Message]] | None


def _livecodebench_messages(view: ProblemView, _text: str) -> list[Message]:
    if view.starter_code:
        body = f"### Format: {LCB_FORMATTING_WITH_STARTER_CODE}\n```python\n{view.starter_code}\n```\n\n"
    else:
        body = f"### Format: {LCB_FORMATTING_WITHOUT_STARTER_CODE}\n```python\n# YOUR CODE HERE\n```\n\n"
    question = f"### Question:\n{view.statement}\n\n{body}### Answer: (use the provided format with backticks)\n\n"
    return [{"role": "system", "content": LCB_SYSTEM_MESSAGE_GENERIC}, {"role": "user", "content": question}]


def _evalplus(_view: ProblemView, text: str) -> list[Message]:
    content = f"{EVALPLUS_INSTRUCTION}\n```python\n{text.strip()}\n```"
    return [{"role": "system", "content": EVALPLUS_SYSTEM}, {"role": "user", "content": content}]


def _mbpp(_view: ProblemView, text: str) -> list[Message]:
    return [{"role": "user", "content": f"{MBPP_INSTRUCTION} {text}\n"}]


COURSE = PromptStyle("course/1 (tinker-cookbook code_rl, LiveCodeBench's wording in one message)", None)
LIVECODEBENCH = PromptStyle("livecodebench/28fef95 (generic chat: system and user)", _livecodebench_messages)
EVALPLUS = PromptStyle("evalplus/0.3.1 (chat: system and user)", _evalplus)
MBPP = PromptStyle("mbpp/austin2021 (zero-shot, all of the row's asserts shown)", _mbpp)


TAGS = ("split", "difficulty", "platform")
"""Fields of `meta` that the results are broken down by, where problems have them."""

PROMPT_TEXT = "prompt_text"
"""The field of `meta` that holds what the benchmark's own prompt shows of a row."""

_LCB_REVISION = "0fe84c3912ea0c4d4a78037083943e8f0c4dd505"
_LCB_SHA256 = (
    "2bd02b38beb48e8c46b5b9987095d999ff38cd8efc255ea5d58974317c48f63f",
    "095df7c5daf15f882c51a9deb84085cff1e073495a5dbcf95015a564d485f3a3",
    "28ed26cc83363ce3f1fe2d5fad9f8393077beb1907b167a31bd3b32f80801b79",
    "d711138ddaebfcf5f8ec6a4283ee677298c0f5c5d374a235af92aaf0584510da",
    "7f77571c2a6df0c2a72a3277650309f67e01e0008e18117e624633df53f81214",
    "bb4c364f71921c4495a6ad15abe1a927350b720009f4933e2e71f8af0f6fd1f5",
)


def _github(path: str, commit: str, sha256: str) -> Pinned:
    owner, name, rest = path.split("/", 2)
    return Pinned(f"https://raw.githubusercontent.com/{owner}/{name}/{commit}/{rest}", commit, sha256)


HUMANEVAL_PLUS = _github(
    "evalplus/humanevalplus_release/HumanEvalPlus.jsonl.gz",
    "200defce9e3429d28ca215b6dd061c0f7f31c18b",
    "272720b90ac375502c8ed23cd791c2a93dfb22a911641a494da74a426c09f101",
)
MBPP_PLUS = _github(
    "evalplus/mbppplus_release/MbppPlus.jsonl.gz",
    "dadf43da556a00f7bacd71cb154f2932757d9144",
    "af43697e8791c4c149bdfd6b489d8b5412507551ac20e28a439f650b8225db63",
)


@dataclass(frozen=True, slots=True)
class Kind:
    """One benchmark: how it is asked, what is downloaded when no `data=` is given, what it is."""

    prompt: PromptStyle
    summary: str
    published: Pinned | None = None


BENCHMARKS: Mapping[str, Kind] = {
    "livecodebench": Kind(LIVECODEBENCH, "code_generation_lite, by release and contest dates"),
    "humaneval": Kind(EVALPLUS, "HumanEval's own tests", HUMANEVAL_PLUS),
    "humaneval+": Kind(EVALPLUS, "HumanEval+, base and extra tests", HUMANEVAL_PLUS),
    "mbpp": Kind(EVALPLUS, "MBPP's own asserts", MBPP_PLUS),
    "mbpp+": Kind(EVALPLUS, "MBPP+, base and extra tests", MBPP_PLUS),
    "codeforces": Kind(COURSE, "contest problems, with rating and percentile"),
    "builtin": Kind(COURSE, "the three held-out splits of the built-in family"),
}


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Problems ready to be asked and judged; `store` is open. `facts` go into the manifest, `skipped` are rows without a problem."""

    name: str
    store: ProblemStore
    prompt: PromptStyle
    entries: Sequence[Entry]
    facts: Mapping[str, Any]
    skipped: Mapping[str, str] = field(default_factory=dict)

    def problem(self, entry: Entry) -> Problem:
        """The problem with its tests."""
        return self.store.get(entry.problem_id)

    def messages(self, problem: Problem) -> list[Message] | None:
        """The conversation that asks for a solution, where the benchmark has a wording of its own."""
        build = self.prompt.build
        return None if build is None else build(problem.view(), str(problem.meta.get(PROMPT_TEXT, "")))


def check_name(name: str, data: str | None) -> None:
    """Raise ConfigError when no benchmark is called `name`."""
    if name in BENCHMARKS or _is_file(name):
        if _is_file(name) and data is not None:
            raise ConfigError(f"benchmark={name} is a problem file itself; leave out data={data}")
        return
    raise ConfigError(
        f"benchmark={name!r} is unknown{suggestion(name, BENCHMARKS)}; there are {', '.join(BENCHMARKS)}, or a native problem file (.jsonl, .jsonl.gz)"
    )


def source_files(name: str, data: str | None, choice: Choice) -> tuple[list[Path], str]:
    """The files of a benchmark and the revision they are: local ones (`data`), or downloaded at the pinned revision.

    Raises ConfigError when there is neither, or when the choice does not apply.
    """
    if name != "livecodebench" and (choice.version or choice.start_date or choice.end_date):
        raise ConfigError(f"version, start_date and end_date belong to benchmark=livecodebench; {name} has none")
    if name == "livecodebench":
        return _livecodebench_files(data, choice)
    if data is not None:
        path = Path(data).expanduser()
        if not path.exists():
            raise ConfigError(f"data={data}: there is no such file")
        return ([path] if path.is_file() else _codeforces_files(name, path)), "local file"
    published = BENCHMARKS[name].published
    if published is None:
        raise ConfigError(f"benchmark={name} is not published as one file; give data=PATH")
    return [fetch(published)], published.revision


def _livecodebench_files(data: str | None, choice: Choice) -> tuple[list[Path], str]:
    from code_rl.problems.fetch import fetch_file
    from code_rl.problems.sources.livecodebench import REPOSITORY, SHARDS, release_shards, shard_paths

    path = None if data is None else Path(data).expanduser()
    if path is not None and path.is_file():
        if choice.version is not None:
            raise ConfigError(
                f"version={choice.version} has no effect on one file (data={data}); give the folder of shards"
            )
        return [path], "local file"
    if choice.version is None:
        raise ConfigError(
            "benchmark=livecodebench needs version= (release_v5: the first five shards; v6: the sixth alone; …): 'v6' alone is ambiguous in the literature"
        )
    if path is not None:
        if not path.is_dir():
            raise ConfigError(f"data={data}: there is no such file or folder")
        return shard_paths(path, choice.version), "local files"
    hashes = dict(zip(SHARDS, _LCB_SHA256, strict=True))
    shards = {name: fetch_file(REPOSITORY, name, _LCB_REVISION) for name in release_shards(choice.version)}
    for name, shard in shards.items():
        if file_sha256(shard) != hashes[name]:
            raise DataError(f"{shard} is not {name} of {REPOSITORY} at {_LCB_REVISION}: its SHA-256 differs")
    return list(shards.values()), _LCB_REVISION


def _codeforces_files(name: str, folder: Path) -> list[Path]:
    wanted = [folder / "codeforces.json", folder / "metadata_cf.json"]
    if name != "codeforces" or not all(path.is_file() for path in wanted):
        raise ConfigError(f"data={folder} is a folder; benchmark={name} wants a file")
    return wanted


def open_native(
    name: str, path: Path, prompt: PromptStyle, choice: Choice, facts: Mapping[str, Any], skipped: Mapping[str, str]
) -> Benchmark:
    """A benchmark over a native problem file. Raises DataError when the file is malformed or no problem is left."""
    seen: list[tuple[str, Mapping[str, str], str | None]] = []
    sources: set[str] = set()

    def note(problem: Problem) -> None:
        meta = problem.meta
        sources.add(problem.source)
        tags = {tag: meta[tag] for tag in TAGS if isinstance(meta.get(tag), str)}
        continued = meta.get("continued")
        seen.append((problem.id, tags, continued if isinstance(continued, str) else None))

    store = ProblemStore(path, each=note)
    entries = tuple(_entries(name, seen, choice.limit))
    if not entries:
        store.close()
        raise DataError(f"benchmark={name} holds no problems{': ' + str(count(skipped.values())) if skipped else ''}")
    shown = {**facts, "problems": len(entries), "of": len(seen)}
    if name == "mbpp" and sources == {"mbpp"}:
        prompt = MBPP
    return Benchmark(name, store, prompt, entries, shown, skipped)


def _entries(name: str, seen: Sequence[tuple[str, Mapping[str, str], str | None]], limit: int) -> Iterator[Entry]:
    """Entries in the file's order. The splits of the built-in family are limited one by one, as the training loop limits them."""
    by_split: dict[str, list[tuple[str, Mapping[str, str], str | None]]] = {}
    for each in seen:
        split = each[1].get("split", name) if name == "builtin" else name if name in BENCHMARKS else "test"
        by_split.setdefault(split, []).append(each)
    for split, members in by_split.items():
        for index, (problem_id, tags, continued) in enumerate(subsample(members, limit)):
            yield Entry(problem_id, split, index, tags, continued)


def describe_files(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Name, size and SHA-256 of each file, for the manifest."""
    return [{"name": path.name, "bytes": path.stat().st_size, "sha256": file_sha256(path)} for path in paths]


def count(reasons: Iterable[str]) -> dict[str, int]:
    """How often each reason occurs."""
    counts: dict[str, int] = {}
    for reason in reasons:
        counts[reason] = counts.get(reason, 0) + 1
    return counts


def _is_file(name: str) -> bool:
    return name.endswith((".jsonl", ".jsonl.gz"))


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
    if choice.version or choice.start_date or choice.end_date:
        raise ConfigError("version, start_date and end_date belong to benchmark=livecodebench")
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such file")
    facts = {"files": describe_files([path]), "revision": "local file", "skipped": {}}
    prompt = BENCHMARKS[name].prompt if name in BENCHMARKS else COURSE
    return open_native(name if name in BENCHMARKS else path.name, path, prompt, choice, facts, {})


def _builtin(choice: Choice) -> Benchmark:
    from code_rl.problems.builtin import SPLITS, test_split

    if choice.version or choice.start_date or choice.end_date:
        raise ConfigError("version, start_date and end_date belong to benchmark=livecodebench")
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
    from code_rl.problems.sources.testcases import read_tests

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
