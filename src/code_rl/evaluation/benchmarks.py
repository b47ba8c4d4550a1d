"""What is evaluated: a benchmark by name, a file of problems or an object of one's own, with its
prompts, its tags and where it came from.

Each wording of a prompt is as its authors publish it and has a version that goes into the results.
It is built from a problem's public view and the prompt
text of its row: nothing hidden can reach a model.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from code_rl.data.builtin import SPLITS, test_split
from code_rl.data.dataset import MANIFEST, digest_of, open_dataset, problems_of
from code_rl.data.fetch import Pinned, fetch, fetch_file
from code_rl.data.load import TAGS, labels, load_problems
from code_rl.data.on_disk import ProblemStore, cached_store
from code_rl.data.order import subsample
from code_rl.data.prompts import CLOSING, LCB_SYSTEM_MESSAGE_GENERIC, STARTER_FORMAT, STDIN_FORMAT
from code_rl.data.resolve import resolve_all
from code_rl.data.sources import humaneval, livecodebench, mbpp
from code_rl.data.sources.records import Item, Origin, Row, RowError, Skipped
from code_rl.data.sources.shapes import ReadRow, read_as
from code_rl.data.sources.testcases import read_tests
from code_rl.evaluation.completers import EvalEntry
from code_rl.evaluation.settings import RowSelection
from code_rl.grading.problem import Problem, ProblemView
from code_rl.grading.sandbox.executor import Executor
from code_rl.policy.environments.wording import get_wording, with_system
from code_rl.policy.renderers.base import Message
from code_rl.util import registry
from code_rl.util.data_files import describe_files, is_data_file, stream_rows
from code_rl.util.errors import ConfigError, DataError

PROMPT_TEXT = "prompt_text"
"""The field of `meta` that holds what the benchmark's own prompt shows of a row."""

EVALPLUS_SYSTEM = "You are a helpful assistant good at coding."
EVALPLUS_INSTRUCTION = (
    "Please provide a self-contained Python script that solves the following problem in a markdown "
    "code block:"
)
MBPP_INSTRUCTION = "You are an expert Python programmer, and here is your task:"


@dataclass(frozen=True, slots=True)
class PromptStyle:
    """`version` names the wording, and where it is from; `build` makes the conversation from a view
    and the row's prompt text.

    None: the conversation begins as the environment begins it, as in training.
    """

    version: str
    build: Callable[[ProblemView, str], list[Message]] | None


def _livecodebench_messages(view: ProblemView, _text: str) -> list[Message]:
    body = f"{STARTER_FORMAT}{view.starter_code}\n```\n\n" if view.starter_code else STDIN_FORMAT
    question = f"### Question:\n{view.statement}\n\n{body}{CLOSING}"
    return [
        {"role": "system", "content": LCB_SYSTEM_MESSAGE_GENERIC},
        {"role": "user", "content": question},
    ]


def _evalplus_messages(_view: ProblemView, text: str) -> list[Message]:
    content = f"{EVALPLUS_INSTRUCTION}\n```python\n{text.strip()}\n```"
    return [{"role": "system", "content": EVALPLUS_SYSTEM}, {"role": "user", "content": content}]


COURSE = PromptStyle(
    "course/1 (tinker-cookbook code_rl, LiveCodeBench's wording in one message)", None
)
LIVECODEBENCH = PromptStyle(
    "livecodebench/28fef95 (generic chat: system and user)", _livecodebench_messages
)
EVALPLUS = PromptStyle("evalplus/0.3.1 (chat: system and user)", _evalplus_messages)
MBPP = PromptStyle(
    "mbpp/austin2021 (zero-shot, all of the row's asserts shown)",
    lambda _view, text: [{"role": "user", "content": f"{MBPP_INSTRUCTION} {text}\n"}],
)


def reworded(style: PromptStyle, prompt: str | None, system_prompt: str | None) -> PromptStyle:
    """`style`, or the wording called `prompt` in its place, under another system message where one
    is given."""
    if prompt is None and system_prompt is None:
        return style
    wording, own = get_wording(prompt, system_prompt), style.build if prompt is None else None

    def build(view: ProblemView, text: str) -> list[Message]:
        return wording(view) if own is None else with_system(own(view, text), system_prompt)

    said = "" if system_prompt is None else f", system prompt {system_prompt!r}"
    return PromptStyle(f"{prompt or style.version}{said}", build)


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

Items = Iterator[Item]


@dataclass(frozen=True, slots=True)
class Kind:
    """One benchmark: how it is asked, what reads its files, and which public file that is when no
    `data=` is given."""

    prompt: PromptStyle
    read: Callable[[list[Path], RowSelection], Items] | None = None
    published: Pinned | None = None


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Problems ready to be asked and judged. `facts` go into the manifest, `skipped`
    are rows without a problem, `others` what the set has beside the entries."""

    name: str
    problem: Callable[[EvalEntry], Problem]
    prompt: PromptStyle
    entries: Sequence[EvalEntry]
    facts: Mapping[str, Any]
    skipped: Mapping[str, str] = field(default_factory=dict)
    others: frozenset[str] = frozenset()

    def messages(self, problem: Problem) -> list[Message] | None:
        """The conversation that asks for a solution, where the benchmark has a wording of its
        own."""
        build = self.prompt.build
        return (
            None if build is None else build(problem.view(), str(problem.meta.get(PROMPT_TEXT, "")))
        )


def check_name(name: str, data: str | None) -> None:
    """Raise ConfigError when `name` is no benchmark, no file or folder of problems, and no object
    that can be had."""
    files = _is_files(name)
    if (files or ":" in name) and data is not None:
        raise ConfigError(f"benchmark={name} is the problems itself; leave out data={data}")
    if not files:
        registry.find("benchmark", name, BENCHMARKS)


def _is_files(name: str) -> bool:
    """True for a file of problems, a folder of them, and FOLDER:split of one that `code-rl prepare`
    wrote."""
    folder = Path(name).expanduser()
    prepared = Path(name.rpartition(":")[0] or name).expanduser() / MANIFEST
    return name not in BENCHMARKS and (is_data_file(name) or folder.is_dir() or prepared.is_file())


async def load_benchmark(
    name: str, data: str | None, choice: RowSelection, executor: Executor
) -> Benchmark:
    """The benchmark `name`, ready to be asked and judged. References run in `executor` where
    expected values come from them.

    Raises ConfigError for a benchmark that cannot be had, DataError for malformed files.
    """
    if name != "livecodebench":
        check_choice(name, choice)
    window = livecodebench.parse_window(choice.start_date, choice.end_date)
    if _is_files(name) or (name == "codeforces" and data is not None and is_data_file(data)):
        dataset = open_dataset(data or name, "test")
        if "livecodebench" in dataset.shapes():
            raise ConfigError(
                f"benchmark={name} holds LiveCodeBench's own rows, whose programs get its "
                f"imports; write benchmark=livecodebench data={data or name}"
            )
        store = await load_problems(dataset, executor, lambda _: None)
        files = describe_files(file for source in dataset.sources for file in source.files)
        facts: dict[str, Any] = {"files": files, "revision": "local file"}
        shown = name if name in BENCHMARKS else Path(name).name
        return _of_store(shown, store, COURSE, choice, facts)
    kind = registry.find("benchmark", name, BENCHMARKS)
    if not isinstance(kind, Kind) or kind.read is None:
        return _from_object(name, kind, choice)
    paths, revision = source_files(name, data, choice)
    files = describe_files(paths)
    key = [
        name,
        [each["sha256"] for each in files],
        choice.version,
        choice.start_date,
        choice.end_date,
    ]
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:24]
    read = partial(kind.read, paths, choice)
    store = await cached_store(
        f"{name.replace('+', 'plus')}-{digest}",
        lambda skip: resolve_all(itertools.islice(read(), skip, None), executor),
        labels,
        __name__,
    )
    facts = {"files": files, "revision": revision}
    if name == "livecodebench":
        facts |= {"release": choice.version or "of the file", "window": str(window)}
    prompt = kind.prompt
    if name == "mbpp" and {place.about["source"] for place in store.places} == {"mbpp"}:
        prompt = MBPP
    return _of_store(name, store, prompt, choice, facts)


def _of_store(
    name: str,
    store: ProblemStore,
    prompt: PromptStyle,
    choice: RowSelection,
    facts: Mapping[str, Any],
) -> Benchmark:
    seen = [(place.id, place.about) for place in store.places]
    return _benchmark(name, store.get, prompt, seen, choice, facts, store.skipped)


def _from_object(name: str, own: Any, choice: RowSelection) -> Benchmark:
    """The built-in splits, or an object of the user's: problems, or a function that gives them; its
    `prompt` is the wording, if it has one."""
    if name == "builtin":
        own = [problem for split in SPLITS for problem in test_split(split)]
    problems = problems_of("benchmark", name, own)
    prompt = getattr(own, "prompt", None) or COURSE
    if not isinstance(prompt, PromptStyle):
        raise ConfigError(
            f"benchmark={name}: its prompt is a {type(prompt).__name__}; give a PromptStyle, or "
            "none"
        )
    facts = {
        "files": [{"name": name, "sha256": digest_of(problems)}],
        "revision": "in the package",
    }
    seen = [(problem.id, labels(problem)) for problem in problems]
    by_id = {problem.id: problem for problem in problems}
    return _benchmark(name, by_id.__getitem__, prompt, seen, choice, facts)


def _benchmark(
    name: str,
    get: Callable[[str], Problem],
    prompt: PromptStyle,
    seen: Sequence[tuple[str, Mapping[str, str]]],
    choice: RowSelection,
    facts: Mapping[str, Any],
    skipped: Sequence[Skipped] = (),
) -> Benchmark:
    """Raises DataError when no problem is left. The splits of the built-in family are limited one
    by one, as the training loop limits them."""
    by_split: dict[str, list[tuple[str, Mapping[str, str]]]] = {}
    for problem_id, about in seen:
        split = about.get("split", name) if name == "builtin" else name
        by_split.setdefault(split if name in BENCHMARKS else "test", []).append((problem_id, about))
    entries = tuple(
        EvalEntry(
            problem_id,
            split,
            index,
            {tag: about[tag] for tag in TAGS if tag in about},
            about.get("continued"),
        )
        for split, members in by_split.items()
        for index, (problem_id, about) in enumerate(subsample(members, choice.limit))
    )
    reasons = Counter(one.reason for one in skipped)
    if not entries:
        why = f": {dict(reasons)}" if skipped else ""
        raise DataError(f"benchmark={name} holds no problems{why}")
    counted = {
        **facts,
        "skipped": dict(sorted(reasons.items())),
        "problems": len(entries),
        "of": len(seen),
    }
    every = {problem_id for problem_id, _ in seen} | {one.row_id for one in skipped}
    others = every.difference(entry.problem_id for entry in entries)
    broken = {
        one.row_id: one.reason for one in skipped if one.reason != livecodebench.OUTSIDE_WINDOW
    }
    return Benchmark(
        name,
        lambda entry: get(entry.problem_id),
        prompt,
        entries,
        counted,
        broken,
        frozenset(others),
    )


def check_choice(name: str, choice: RowSelection) -> None:
    """Raise ConfigError for a release or dates of a benchmark that has none."""
    if choice.version or choice.start_date or choice.end_date:
        raise ConfigError(
            f"version, start_date and end_date belong to benchmark=livecodebench; {name} has none"
        )


def source_files(name: str, data: str | None, choice: RowSelection) -> tuple[list[Path], str]:
    """The files of a benchmark and the revision they are: local ones (`data`), or downloaded at the
    pinned revision.

    Raises ConfigError when there is neither, or when the choice does not apply.
    """
    path = None if data is None else Path(data).expanduser()
    if name == "livecodebench":
        return _livecodebench_files(path, choice)
    if path is not None:
        wanted = [path / name for name in CODEFORCES_FILES] if name == "codeforces" else [path]
        if missing := [each for each in wanted if not each.is_file()]:
            raise ConfigError(f"data={data}: there is no file {missing[0]}")
        return wanted, "local file"
    published = BENCHMARKS[name].published
    if published is None:
        raise ConfigError(f"benchmark={name} is not published as one file; give data=PATH")
    return [fetch(published)], published.url.split("/")[-2]


def _livecodebench_files(path: Path | None, choice: RowSelection) -> tuple[list[Path], str]:
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


def _by_layout(
    plus: ReadRow, other: ReadRow, *, base_only: bool
) -> Callable[[list[Path], RowSelection], Items]:
    """A reader of either layout: rows with `base_input` are evalplus's own, of which `base_only`
    leaves the extra tests out."""

    def items(paths: list[Path], _choice: RowSelection) -> Items:
        for index, row in enumerate(stream_rows(paths[0])):
            theirs = "base_input" in row
            shown = {**row, "plus_input": []} if theirs and base_only else row
            yield _with_prompt(
                row, read_as(plus if theirs else other, shown, Origin("evalplus", "row", index))
            )

    return items


def _with_prompt(row: Row, item: Item) -> Item:
    """The item with what the benchmark's prompt shows of its row, and what a plain completion would
    continue."""
    if isinstance(item, Skipped):
        return item
    problem = item if isinstance(item, Problem) else item.problem
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
    if isinstance(item, Skipped):
        return item
    if isinstance(item, Problem):
        return replace(item, meta={**item.meta, **more})
    return replace(item, problem=_with_meta(item.problem, more))  # type: ignore[arg-type]


def _livecodebench(paths: list[Path], choice: RowSelection) -> Items:
    """With the benchmark's own imports, which it has before every program, those that read stdin
    too."""
    window = livecodebench.parse_window(choice.start_date, choice.end_date)
    read = partial(livecodebench.read_livecodebench, window=window)
    for index, row in enumerate(itertools.chain.from_iterable(map(stream_rows, paths))):
        item = read_as(read, row, Origin("livecodebench", "row", index))
        yield _with_meta(item, {"preamble": livecodebench.LCB_PRELUDE})


def _codeforces(paths: list[Path], _choice: RowSelection) -> Items:
    """A list of `{"problem", "tests"}` with a list of problem names beside it."""
    rows, names = (json.loads(path.read_text(encoding="utf-8")) for path in paths)
    if len(rows) != len(names):
        raise DataError(f"{paths[0]} has {len(rows)} problems, {paths[1].name} {len(names)} names")
    for index, (row, name) in enumerate(zip(rows, names, strict=True)):
        yield read_as(
            _codeforces_problem, {**row, "task_id": name}, Origin("codeforces", "row", index)
        )


def _codeforces_problem(row: Row, _origin: Origin) -> Problem:
    try:
        raw = row["tests"]
        tests, fn_name = read_tests(ast.literal_eval(raw) if isinstance(raw, str) else raw)
        return Problem(row["task_id"], row["problem"], tests, fn_name=fn_name, source="codeforces")
    except (DataError, KeyError, ValueError, SyntaxError, TypeError) as error:
        raise RowError("bad_tests", str(error)) from error


_HUMANEVAL, _MBPP = humaneval.read_humaneval_plus, mbpp.read_mbpp_plus
BENCHMARKS: Mapping[str, Kind] = {
    "livecodebench": Kind(LIVECODEBENCH, _livecodebench),
    "humaneval": Kind(
        EVALPLUS, _by_layout(_HUMANEVAL, humaneval.read_humaneval, base_only=True), HUMANEVAL_PLUS
    ),
    "humaneval+": Kind(
        EVALPLUS,
        _by_layout(_HUMANEVAL, humaneval.read_humaneval_plus_origin, base_only=False),
        HUMANEVAL_PLUS,
    ),
    "mbpp": Kind(EVALPLUS, _by_layout(_MBPP, mbpp.read_mbpp, base_only=True), MBPP_PLUS),
    "mbpp+": Kind(
        EVALPLUS, _by_layout(_MBPP, mbpp.read_mbpp_plus_origin, base_only=False), MBPP_PLUS
    ),
    "codeforces": Kind(COURSE, _codeforces),
    "builtin": Kind(COURSE),
}
