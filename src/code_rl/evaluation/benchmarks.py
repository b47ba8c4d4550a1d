"""Benchmarks by name, files of problems and users' objects, with their prompts, tags and origins.

Each prompt template is as its authors publish it; its version is part of the results. A template
gets a problem's public view and the prompt text of its row, so no hidden test can reach a model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from code_rl.data import ProblemStore, subsample
from code_rl.data.benchmarks import (
    OUTSIDE_WINDOW,
    PROMPT_TEXT,
    READERS,
    RowSelection,
    is_files,
    read_benchmark,
    read_files,
    read_object,
)
from code_rl.data.load import TAGS, labels
from code_rl.data.sources import Skipped
from code_rl.evaluation.generators import EvalEntry, Question
from code_rl.grading import Problem, ProblemView
from code_rl.grading.sandbox import Executor
from code_rl.policy.prompt_templates import (
    CLOSING,
    LCB_SYSTEM_MESSAGE_GENERIC,
    STARTER_FORMAT,
    STDIN_FORMAT,
    get_prompt_template,
    with_system,
)
from code_rl.policy.renderers import Message
from code_rl.util import registry
from code_rl.util.data_files import is_data_file
from code_rl.util.errors import ConfigError, DataError

EVALPLUS_SYSTEM = "You are a helpful assistant good at coding."
EVALPLUS_INSTRUCTION = (
    "Please provide a self-contained Python script that solves the following problem in a markdown "
    "code block:"
)
MBPP_INSTRUCTION = "You are an expert Python programmer, and here is your task:"


@dataclass(frozen=True, slots=True)
class PromptStyle:
    """A prompt template: `version` names it and its source, and `build` makes the conversation from
    a view and the row's prompt text.

    If `build` is None, the environment begins the conversation, as in training.
    """

    version: str
    build: Callable[[ProblemView, str], list[Message]] | None


def _livecodebench_messages(view: ProblemView, _text: str) -> list[Message]:
    """Return LiveCodeBench's own conversation, with its starter code if the problem has some."""
    body = f"{STARTER_FORMAT}{view.starter_code}\n```\n\n" if view.starter_code else STDIN_FORMAT
    question = f"### Question:\n{view.statement}\n\n{body}{CLOSING}"
    return [
        {"role": "system", "content": LCB_SYSTEM_MESSAGE_GENERIC},
        {"role": "user", "content": question},
    ]


def _evalplus_messages(_view: ProblemView, text: str) -> list[Message]:
    """Return evalplus's chat: its system message, and the row's prompt text in a block of
    Python."""
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
    """Return `style`, or the template called `prompt` if given, with `system_prompt` if given; both
    None return `style` itself. The version names the changes, since it is part of the results.
    Raises ConfigError for a template that cannot be loaded."""
    if prompt is None and system_prompt is None:
        return style
    template, own = (
        get_prompt_template(prompt, system_prompt),
        style.build if prompt is None else None,
    )

    def build(view: ProblemView, text: str) -> list[Message]:
        """Return the conversation of the template, or `style`'s own with the system message."""
        return template(view) if own is None else with_system(own(view, text), system_prompt)

    said = "" if system_prompt is None else f", system prompt {system_prompt!r}"
    return PromptStyle(f"{prompt or style.version}{said}", build)


BENCHMARKS: Mapping[str, PromptStyle] = {
    "livecodebench": LIVECODEBENCH,
    "humaneval": EVALPLUS,
    "humaneval+": EVALPLUS,
    "mbpp": EVALPLUS,
    "mbpp+": EVALPLUS,
    "codeforces": COURSE,
    "builtin": COURSE,
}


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Problems ready to be sampled and judged. `facts` are for the manifest, `skipped` are rows
    without a problem, and `others` are ids of the set that are not among the entries. `language` is
    that of the programs (None: each problem's own)."""

    name: str
    problem: Callable[[str], Problem]
    prompt: PromptStyle
    entries: Sequence[EvalEntry]
    facts: Mapping[str, Any]
    skipped: Mapping[str, str]
    others: frozenset[str]
    language: str | None = None

    def question(self, entry: EvalEntry) -> Question:
        """Return an entry's problem in the programs' language, and the conversation that asks for a
        solution (None if the benchmark has no template of its own). The template sees only the
        public view. Raises DataError if the problem cannot be in that language."""
        problem = self.problem(entry.problem_id).in_language(self.language)
        build, text = self.prompt.build, str(problem.meta.get(PROMPT_TEXT, ""))
        return problem, None if build is None else build(problem.view(), text)


def check_name(name: str, data: str | None) -> None:
    """Raise ConfigError if `name` is no benchmark, no file or folder of problems, and no importable
    object, or if `data` (None: not given) has no effect on it. Files are not read."""
    files = is_files(name)
    if (files or ":" in name) and data is not None:
        raise ConfigError(f"benchmark={name} is the problems itself; leave out data={data}")
    if not files:
        registry.find("benchmark", name, BENCHMARKS)


async def load_benchmark(
    name: str,
    data: str | None,
    choice: RowSelection,
    executor: Executor,
    say: Callable[[str], None] = print,
) -> Benchmark:
    """Return the benchmark `name`: one of BENCHMARKS, a file or folder of problems, or a user's
    object. `data` is the benchmark's file (None: downloaded or built in), and `choice` selects
    rows. If references compute the expected values, they run in `executor`.

    Raises ConfigError for a benchmark that is not available, DataError for malformed files.
    """
    if is_files(name) or (name == "codeforces" and data is not None and is_data_file(data)):
        store, facts = await read_files(name, data, executor, say)
        shown = name if name in BENCHMARKS else Path(name).name
        return _of_store(shown, store, COURSE, choice, facts)
    found = registry.find("benchmark", name, BENCHMARKS)
    if name not in READERS:
        return _from_object(name, found, choice)
    store, facts = await read_benchmark(name, data, choice, executor, say)
    prompt = BENCHMARKS[name]
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
    """Return the benchmark of the problems in a store, in its order; each is read on use. Raises
    DataError if no problem is left."""
    seen = [(place.id, place.about) for place in store.places]
    return _benchmark(name, store.get, prompt, seen, choice, facts, store.skipped)


def _from_object(name: str, own: Any, choice: RowSelection) -> Benchmark:
    """Return the built-in splits, or the problems of a user's object: a list, or a function that
    returns one. The object's `prompt`, if it has one, is the template. Raises ConfigError for
    another `prompt`, and DataError for an object without problems."""
    problems, facts = read_object(name, own)
    prompt = getattr(own, "prompt", None) or COURSE
    if not isinstance(prompt, PromptStyle):
        raise ConfigError(
            f"benchmark={name}: its prompt is a {type(prompt).__name__}; give a PromptStyle, or "
            "none"
        )
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
    """Return the benchmark of these problems, given as (id, labels) in order. At most
    `choice.limit` are entries, the same ones each time; the splits of the built-in family are
    limited one by one, as in training. Raises DataError if no problem is left."""
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
        raise DataError(f"benchmark={name} holds no problems; rows left out: {dict(reasons)}")
    counted = {
        **facts,
        "skipped": dict(sorted(reasons.items())),
        "problems": len(entries),
        "of": len(seen),
    }
    every = {problem_id for problem_id, _ in seen} | {one.row_id for one in skipped}
    others = every.difference(entry.problem_id for entry in entries)
    broken = {one.row_id: one.reason for one in skipped if one.reason != OUTSIDE_WINDOW}
    return Benchmark(
        name,
        get,
        prompt,
        entries,
        counted,
        broken,
        frozenset(others),
    )
