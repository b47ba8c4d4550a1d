"""What is evaluated: a benchmark by name, as a native problem file with its prompts, its tags and where it came from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from code_rl.errors import ConfigError, DataError
from code_rl.evaluation import prompts
from code_rl.evaluation.ask import Entry
from code_rl.evaluation.fetch import fetch, public_file
from code_rl.evaluation.prompts import PromptStyle
from code_rl.evaluation.settings import Choice
from code_rl.problems.files import file_sha256
from code_rl.problems.order import subsample
from code_rl.problems.problem import Problem
from code_rl.problems.store import ProblemStore
from code_rl.renderers.base import Message
from code_rl.settings import suggestion

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


HUMANEVAL_PLUS, MBPP_PLUS = "humanevalplus/HumanEvalPlus.jsonl.gz", "mbppplus/MbppPlus.jsonl.gz"


@dataclass(frozen=True, slots=True)
class Kind:
    """One benchmark: how it is asked, what it is, and which public file it is read from when no `data=` is given."""

    prompt: PromptStyle
    summary: str
    published: str | None = None


BENCHMARKS: Mapping[str, Kind] = {
    "livecodebench": Kind(prompts.LIVECODEBENCH, "code_generation_lite, by release and contest dates"),
    "humaneval": Kind(prompts.EVALPLUS, "HumanEval's own tests", HUMANEVAL_PLUS),
    "humaneval+": Kind(prompts.EVALPLUS, "HumanEval+, base and extra tests", HUMANEVAL_PLUS),
    "mbpp": Kind(prompts.EVALPLUS, "MBPP's own asserts", MBPP_PLUS),
    "mbpp+": Kind(prompts.EVALPLUS, "MBPP+, base and extra tests", MBPP_PLUS),
    "codeforces": Kind(prompts.COURSE, "contest problems, with rating and percentile"),
    "builtin": Kind(prompts.COURSE, "the three held-out splits of the built-in family"),
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


def check_choice(name: str, choice: Choice) -> None:
    """Raise ConfigError for a release or dates of a benchmark that has none."""
    if choice.version or choice.start_date or choice.end_date:
        raise ConfigError(f"version, start_date and end_date belong to benchmark=livecodebench; {name} has none")


def source_files(name: str, data: str | None, choice: Choice) -> tuple[list[Path], str]:
    """The files of a benchmark and the revision they are: local ones (`data`), or downloaded at the pinned revision.

    Raises ConfigError when there is neither, or when the choice does not apply.
    """
    if name != "livecodebench":
        check_choice(name, choice)
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
    pinned = public_file(published)
    return [fetch(pinned)], pinned.revision


def _livecodebench_files(data: str | None, choice: Choice) -> tuple[list[Path], str]:
    from code_rl.problems.hub import fetch_file
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
        prompt = prompts.MBPP
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
