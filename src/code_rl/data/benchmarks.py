"""The published benchmarks: where their files are, and how their rows become problems."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from code_rl.data.builtin import SPLITS, test_split
from code_rl.data.dataset import MANIFEST, digest_of, open_dataset, problems_of
from code_rl.data.fetch import Pinned, fetch, fetch_file
from code_rl.data.load import Say, given_as, labels, load_dataset, resolved_rows
from code_rl.data.on_disk import ProblemStore, cached_store
from code_rl.data.sources import humaneval, livecodebench, mbpp
from code_rl.data.sources.records import Item, Origin, Row, Skipped, problem_in
from code_rl.data.sources.shapes import ReadRow, read_as
from code_rl.data.sources.testcases import read_tests
from code_rl.grading import Problem
from code_rl.grading.sandbox import Executor
from code_rl.util.data_files import describe_files, is_data_file, stream_rows
from code_rl.util.errors import ConfigError, DataError
from code_rl.util.files import digest

PROMPT_TEXT = "prompt_text"
"""The field of `meta` that has the row's part of the benchmark's own prompt."""

_LCB_REVISION = "0fe84c3912ea0c4d4a78037083943e8f0c4dd505"
HUMANEVAL_PLUS = Pinned(
    "https://raw.githubusercontent.com/evalplus/humanevalplus_release/"
    "200defce9e3429d28ca215b6dd061c0f7f31c18b/HumanEvalPlus.jsonl.gz",
    "272720b90ac375502c8ed23cd791c2a93dfb22a911641a494da74a426c09f101",
    "humanevalplus/HumanEvalPlus.jsonl.gz",
)
MBPP_PLUS = Pinned(
    "https://raw.githubusercontent.com/evalplus/mbppplus_release/"
    "dadf43da556a00f7bacd71cb154f2932757d9144/MbppPlus.jsonl.gz",
    "af43697e8791c4c149bdfd6b489d8b5412507551ac20e28a439f650b8225db63",
    "mbppplus/MbppPlus.jsonl.gz",
)

CODEFORCES_FILES = ("codeforces.json", "metadata_cf.json")

OUTSIDE_WINDOW = livecodebench.OUTSIDE_WINDOW


@dataclass(frozen=True, slots=True)
class RowSelection:
    """The selected rows of a benchmark: `limit` per split (-1: all), LiveCodeBench's release and
    dates."""

    limit: int = -1
    version: str | None = None
    start_date: str | None = None
    end_date: str | None = None


Reader = Callable[[list[Path], RowSelection], Iterator[Item]]
"""Reads the files of one benchmark."""


def is_files(name: str) -> bool:
    """Return True for the name of a data file, which may be missing, for an existing folder, or for
    FOLDER:split of a folder that `code-rl prepare` wrote. The name of a benchmark never is one."""
    folder = Path(name).expanduser()
    prepared = Path(name.rpartition(":")[0] or name).expanduser() / MANIFEST
    return name not in READERS and (is_data_file(name) or folder.is_dir() or prepared.is_file())


def check_selection(name: str, choice: RowSelection) -> None:
    """Raise ConfigError for a release or dates in `choice`. Call it for benchmarks other than
    LiveCodeBench, which have none."""
    if choice.version or choice.start_date or choice.end_date:
        raise ConfigError(
            f"version, start_date and end_date belong to benchmark=livecodebench; {name} has none"
        )


async def read_files(
    name: str, data: str | None, executor: Executor, say: Say
) -> tuple[ProblemStore, dict[str, Any]]:
    """Return the problems of the file or folder `data` (None: `name`), and facts for the manifest.
    The first time, solutions run in `executor`; then a store in the cache is used. Raises
    ConfigError if there is no such file, and for LiveCodeBench's own rows, DataError if it is
    malformed."""
    with given_as("data" if data else "benchmark"):
        dataset = open_dataset(data or name, "test")
        if "livecodebench" in dataset.shapes():
            raise ConfigError(
                f"benchmark={name} holds LiveCodeBench's own rows, whose programs get its "
                f"imports; write benchmark=livecodebench data={data or name}"
            )
        store = await load_dataset(dataset, executor, say)
    files = describe_files(file for source in dataset.sources for file in source.files)
    return store, {"files": files, "revision": "local file"}


def read_object(name: str, own: Any) -> tuple[tuple[Problem, ...], dict[str, Any]]:
    """Return the problems of the user's object `own` (for `builtin`, those of all built-in splits,
    whatever `own` is), and facts for the manifest. Raises ConfigError if it does not give
    problems."""
    if name == "builtin":
        own = [problem for split in SPLITS for problem in test_split(split)]
    problems = problems_of("benchmark", name, own)
    files = [{"name": name, "sha256": digest_of(problems)}]
    return problems, {"files": files, "revision": "in the package"}


async def read_benchmark(
    name: str, data: str | None, choice: RowSelection, executor: Executor, say: Say
) -> tuple[ProblemStore, dict[str, Any]]:
    """Return the problems of a benchmark in READERS, and facts for the manifest. `data` is a local
    file or folder (None: the published file, which is downloaded once). If references compute the
    expected values, they run in `executor`, the first time.

    Raises ConfigError for files that are not available, DataError for malformed ones.
    """
    window = livecodebench.parse_window(choice.start_date, choice.end_date)
    paths, revision = source_files(name, data, choice)
    files = describe_files(paths)
    hashes = [each["sha256"] for each in files]
    key = digest(name, hashes, choice.version, choice.start_date, choice.end_date)
    store = await cached_store(
        f"{name.replace('+', 'plus')}-{key[:24]}",
        lambda skip: resolved_rows(
            itertools.islice(READERS[name](paths, choice), skip, None), name, executor, say, skip
        ),
        labels,
        __name__,
    )
    facts: dict[str, Any] = {"files": files, "revision": revision}
    if name == "livecodebench":
        facts |= {"release": choice.version or "of the file", "window": str(window)}
    return store, facts


def source_files(name: str, data: str | None, choice: RowSelection) -> tuple[list[Path], str]:
    """Return the files of a benchmark and their revision: local ones (`data`), or, if that is None,
    downloads at the pinned revision.

    Raises ConfigError if there is neither, or if the selection does not apply.
    """
    path = None if data is None else Path(data).expanduser()
    if name == "livecodebench":
        return _livecodebench_files(path, choice)
    if path is not None:
        wanted = [path / name for name in CODEFORCES_FILES] if name == "codeforces" else [path]
        if missing := [each for each in wanted if not each.is_file()]:
            raise ConfigError(f"data={data}: {missing[0]} is no file; give the benchmark's own")
        return wanted, "local file"
    published = PUBLISHED.get(name)
    if published is None:
        raise ConfigError(f"benchmark={name} is not published as one file; give data=PATH")
    return [fetch(published)], published.url.split("/")[-2]


def _livecodebench_files(path: Path | None, choice: RowSelection) -> tuple[list[Path], str]:
    """Return the shards of the chosen version, from `path` or downloaded, and the revision to
    publish. A single file needs no version. Raises ConfigError for a version that is missing,
    unknown or without effect, and for a missing file."""
    if path is not None and path.is_file():
        if choice.version is not None:
            raise ConfigError(
                f"version={choice.version} has no effect on one file (data={path}); give the "
                "folder of shards"
            )
        return [path], "local file"
    if choice.version is None:
        raise ConfigError(
            "benchmark=livecodebench needs version= (release_v5: the first five shards; v6: the "
            "sixth alone; …): 'v6' alone is ambiguous in the literature"
        )
    if path is not None:
        if not path.is_dir():
            raise ConfigError(f"data={path}: there is no such file or folder")
        return livecodebench.shard_paths(path, choice.version), "local files"
    shards = livecodebench.release_shards(choice.version)
    files = [fetch_file(livecodebench.REPOSITORY, name, _LCB_REVISION) for name in shards]
    return files, _LCB_REVISION


def _by_layout(plus: ReadRow, other: ReadRow, *, base_only: bool) -> Reader:
    """Return a reader of either layout, of one file. Rows with `base_input` are evalplus's own;
    `base_only` leaves out their extra tests."""

    def items(paths: list[Path], _choice: RowSelection) -> Iterator[Item]:
        """Read each row by its own layout: with `base_input` by `plus`, else by `other`."""
        for index, row in enumerate(stream_rows(paths[0])):
            theirs = "base_input" in row
            shown = {**row, "plus_input": []} if theirs and base_only else row
            yield _with_prompt(
                row, read_as(plus if theirs else other, shown, Origin("evalplus", "row", index))
            )

    return items


def _with_prompt(row: Row, item: Item) -> Item:
    """Return the item with the benchmark's prompt text in its problem's `meta`, and the text that a
    plain completion would continue. The problem's source decides; a skipped row is unchanged."""
    if isinstance(item, Skipped):
        return item
    problem = problem_in(item)
    shown = {}
    if problem.source.startswith("humaneval") or problem.source == "mbppplus":
        shown = {PROMPT_TEXT: str(row["prompt"]), "continued": str(row["prompt"])}
    elif problem.source == "mbppplus-origin":
        shown = {PROMPT_TEXT: f'"""\n{problem.statement}\n"""'}
    elif problem.source == "mbpp":
        text = str(row["text" if "text" in row else "prompt"]).strip()
        shown = {
            PROMPT_TEXT: f"{text} Your code should pass these tests:\n\n"
            + "\n".join(row["test_list"])
        }
    return _with_meta(item, shown)


def _with_meta(item: Item, more: Mapping[str, Any]) -> Item:
    """Return the item with `more` entries in its problem's `meta`; a skipped row is unchanged."""
    if isinstance(item, Skipped):
        return item
    if isinstance(item, Problem):
        return replace(item, meta={**item.meta, **more})
    return replace(item, problem=_with_meta(item.problem, more))  # type: ignore[arg-type]


def _livecodebench(paths: list[Path], choice: RowSelection) -> Iterator[Item]:
    """Read problems with the benchmark's own imports, which it puts before every program, also
    those that read stdin. Rows outside the dates are skipped items, in their place."""
    window = livecodebench.parse_window(choice.start_date, choice.end_date)
    read = partial(livecodebench.read_livecodebench, window=window)
    for index, row in enumerate(itertools.chain.from_iterable(map(stream_rows, paths))):
        item = read_as(read, row, Origin("livecodebench", "row", index))
        yield _with_meta(item, {"preamble": livecodebench.LCB_PRELUDE})


def _codeforces(paths: list[Path], _choice: RowSelection) -> Iterator[Item]:
    """Read a list of `{"problem", "tests"}`; a second file lists the problem names, which become
    the ids. Raises DataError if the two have different lengths."""
    rows, names = (json.loads(path.read_text(encoding="utf-8")) for path in paths)
    if len(rows) != len(names):
        raise DataError(f"{paths[0]} has {len(rows)} problems, {paths[1].name} {len(names)} names")
    for index, (row, name) in enumerate(zip(rows, names, strict=True)):
        yield read_as(
            _codeforces_problem, {**row, "task_id": name}, Origin("codeforces", "row", index)
        )


def _codeforces_problem(row: Row, _origin: Origin) -> Problem:
    """Return the problem of a row with `task_id`, `problem` and `tests`. Raises RowError for
    unknown tests."""
    tests, fn_name = read_tests(row["tests"])
    return Problem(row["task_id"], row["problem"], tests, fn_name=fn_name, source="codeforces")


_HUMANEVAL, _MBPP = humaneval.read_humaneval_plus, mbpp.read_mbpp_plus
READERS: Mapping[str, Reader] = {
    "livecodebench": _livecodebench,
    "humaneval": _by_layout(_HUMANEVAL, humaneval.read_humaneval, base_only=True),
    "humaneval+": _by_layout(_HUMANEVAL, humaneval.read_humaneval_plus_origin, base_only=False),
    "mbpp": _by_layout(_MBPP, mbpp.read_mbpp, base_only=True),
    "mbpp+": _by_layout(_MBPP, mbpp.read_mbpp_plus_origin, base_only=False),
    "codeforces": _codeforces,
}
PUBLISHED = {
    "humaneval": HUMANEVAL_PLUS,
    "humaneval+": HUMANEVAL_PLUS,
    "mbpp": MBPP_PLUS,
    "mbpp+": MBPP_PLUS,
}
"""The file of a benchmark that is used without `data=`."""
