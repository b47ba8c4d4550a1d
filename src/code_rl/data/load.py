"""From the settings `dataset=` and `test_dataset=` to problems for a run, with tests and prompts of
the right size; and `code_rl.load_problems`."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from code_rl.data.dataset import (
    BUILTIN,
    Dataset,
    open_dataset,
    own_test_setting,
    test_split_settings,
)
from code_rl.data.on_disk import ProblemStore, cached_store
from code_rl.data.order import Selected, subsample
from code_rl.data.resolve import resolve_all
from code_rl.data.sources.records import Item, Skipped
from code_rl.data.sources.shapes import NATIVE, UNREADABLE
from code_rl.grading import Problem, StdinTest, TestCase
from code_rl.grading.sandbox import Executor, shared_executor
from code_rl.util.concurrency import closing, wait_for
from code_rl.util.data_files import listed
from code_rl.util.errors import ConfigError, DataError, InputError
from code_rl.util.registry import GIVEN

Say = Callable[[str], None]
PROGRESS_S = 10.0
TRAIN, TEST = "train", "test "
TAGS = ("split", "difficulty", "platform")
"""Fields of `meta` by which results are broken down, if problems have them."""


@dataclass(frozen=True, slots=True)
class RunData:
    """The data sets of a run, found but not yet read. None means built in."""

    train: Dataset | None
    test: Mapping[str, Dataset] | None

    def describe(self) -> dict[str, list[str]]:
        """Return the commits or settings of each split's sources for the run's record, by `train`
        and `test NAME`; built-in ones are left out. A resumed run must find the same."""
        found = {TRAIN: self.train} if self.train else {}
        found |= {TEST + name: split for name, split in (self.test or {}).items()}
        return {name: [source.pinned for source in split.sources] for name, split in found.items()}


def find_data(
    dataset: str,
    test_dataset: str | None,
    *,
    evaluates: bool,
    pins: Mapping[str, Sequence[str]] | None = None,
) -> RunData:
    """Find the data sets of the two settings, or of `pins` (an earlier `RunData.describe`; None: no
    earlier run). Files are downloaded but not read. Without `evaluates` there are no held-out
    problems.

    Raises ConfigError for an unknown name, and with `evaluates` for a data set without held-out
    problems; DataError for unusable files.
    """
    pins = pins or {}
    if any(part.startswith(GIVEN) for parts in pins.values() for part in parts):
        pins = {}  # an object of an earlier process, in whose place another was given
    train = None if dataset == BUILTIN else open_dataset(",".join(pins.get(TRAIN, (dataset,))))
    if not evaluates:
        return RunData(train, {})
    held_out = {
        name.removeprefix(TEST): ",".join(parts) for name, parts in pins.items() if name != TRAIN
    }
    if not held_out:
        setting = held_out_setting(dataset, test_dataset)
        if setting == BUILTIN:
            return RunData(train, None)
        held_out = test_split_settings(setting)
    with given_as("test_dataset"):
        return RunData(train, {name: open_dataset(part, "test") for name, part in held_out.items()})


@contextmanager
def given_as(setting: str) -> Iterator[None]:
    """Name the setting in which a data set was given in errors of the block that speak of
    `dataset=`. Their type stays."""
    try:
        yield
    except InputError as error:
        raise type(error)(re.sub(r"\bdataset=", f"{setting}=", str(error), count=1)) from error


def held_out_setting(dataset: str, test_dataset: str | None) -> str:
    """Return the setting that names the held-out problems of a run: `test_dataset`, or if it is
    None, those that belong to `dataset`. Raises ConfigError if there are none."""
    setting = test_dataset or (BUILTIN if dataset == BUILTIN else own_test_setting(dataset))
    if setting is None:
        raise ConfigError(
            f"dataset={dataset} has no held-out problems of its own; give test_dataset= as you "
            "give dataset=, make one with code-rl prepare test_share= (larger, if it has one), or "
            "give eval_every=-1 for none"
        )
    return setting


def count_splits(dataset: str, test_dataset: str | None) -> int:
    """Return the number of held-out splits of a run, without opening them. Raises ConfigError if
    there are none."""
    from code_rl.data.builtin import SPLITS

    setting = held_out_setting(dataset, test_dataset)
    return len(SPLITS) if setting == BUILTIN else len(test_split_settings(setting))


async def load_train_problems(
    data: RunData, executor: Executor, say: Say = print
) -> Sequence[Problem]:
    """Return the problems to train on; each is read on access. The first time, every row is read,
    and solutions run in `executor`. `say` gets lines for the user. Raises DataError as
    `load_dataset` does."""
    if data.train is None:
        from code_rl.data.builtin import BuiltinTrainSet

        return BuiltinTrainSet()
    return await load_dataset(data.train, executor, say)


async def load_test_splits(
    data: RunData, limit: int, executor: Executor, say: Say = print
) -> dict[str, Sequence[Problem]]:
    """Return held-out problems by split, at most `limit` each (-1: all), the same subsample in
    every run. Solutions that give expected values run in `executor` the first time. Raises
    DataError as `load_dataset` does, and SandboxError."""
    splits: dict[str, Sequence[Problem]] = {}
    if data.test is None:
        from code_rl.data.builtin import SPLITS, test_split

        splits = {name: test_split(name) for name in SPLITS}
    with given_as("test_dataset"):
        for name, dataset in (data.test or {}).items():
            splits[name] = await load_dataset(dataset, executor, say)
    return {name: subsample(problems, limit) for name, problems in splits.items()}


async def load_dataset(dataset: Dataset, executor: Executor, say: Say = print) -> ProblemStore:
    """Return all problems of a data set, by position and by id. The first time, every row is read
    and call rows run their solutions in `executor`; later a store in the cache is used. `say` gets
    progress and the rows left out.

    Raises DataError for a malformed native file, and for a data set without any problem.
    """
    store = await cached_store(
        dataset.fingerprint()[:32],
        lambda skip: resolved_rows(dataset.items(skip), str(dataset), executor, say, skip),
        labels,
    )
    # A malformed row of the native format is an error of its writer.
    native = bool(store.skipped) and {*dataset.shapes()} == {NATIVE}
    broken = [one.detail for one in store.skipped if native or one.reason == UNREADABLE]
    if broken:
        raise DataError(f"dataset={dataset.name}: {listed(broken)}")
    left = ", ".join(f"{count} {reason}" for reason, count in store.left_out().items())
    if left:
        say(
            f"{dataset}: {len(store)} problems; left out: {left} (each in "
            f"{store.folder}/index.jsonl)"
        )
    if not store:
        why = f": {left}; the first: {store.skipped[0].detail}" if left else ""
        raise DataError(f"dataset={dataset.name} holds no problems{why}")
    return store


async def resolved_rows(
    rows: Iterable[Item], name: str, executor: Executor, say: Say, count: int
) -> AsyncIterator[Problem | Skipped]:
    """Yield the problems of `rows`, in order, and say how far it is every ten seconds. `rows` are
    those of the data set `name` after its first `count`. Raises SandboxError if the executor
    fails."""
    say(f"reading {name} (the first time, when solutions give expected values; then kept)")
    said = time.monotonic()
    async with closing(resolve_all(rows, executor)) as items:
        async for item in items:
            count += 1
            if time.monotonic() - said > PROGRESS_S:
                said = time.monotonic()
                say(f"reading {name}: {count} rows so far")
            yield item


def labels(problem: Problem) -> dict[str, str]:
    """Return a problem's labels for evaluations as text: its source, tags for breakdowns, and the
    text that a plain completion continues. Those that it lacks are left out. Stores on disk keep
    them."""
    found = {name: problem.meta.get(name) for name in (*TAGS, "continued")}
    found["source"] = problem.source
    return {
        name: str(value) for name, value in found.items() if isinstance(value, str | int | float)
    }


def parse_difficulty(text: str) -> tuple[float, float]:
    """Return `LOW..HIGH` as two pass rates, 0 to 1. Raises ConfigError for anything else, and if
    LOW is above HIGH."""
    try:
        low, high = map(float, text.split(".."))
    except ValueError:
        low, high = 1.0, 0.0
    if not 0 <= low <= high <= 1:
        raise ConfigError(
            f"difficulty={text!r} must be LOW..HIGH with 0 <= LOW <= HIGH <= 1, as in 0.1..0.9"
        )
    return low, high


def within_difficulty(problems: Sequence[Problem], difficulty: str) -> Sequence[Problem]:
    """Return a view of the problems whose known pass rate is within `LOW..HIGH`, ends included;
    every problem is read. Raises ConfigError if a problem has no rate, or none is left."""
    low, high = parse_difficulty(difficulty)
    rates = [_pass_rate(problem.meta) for problem in problems]
    if lacking := rates.count(None):
        raise ConfigError(
            f"difficulty={difficulty} needs a measured pass rate, which {lacking} of "
            f"{len(problems)} problems lack; `code-rl prepare pass_rates=` stores it"
        )
    kept = Selected(
        problems, [i for i, rate in enumerate(rates) if rate is not None and low <= rate <= high]
    )
    if not kept:
        raise ConfigError(
            f"difficulty={difficulty} leaves none of {len(problems)} problems; widen it"
        )
    return kept


def in_language(
    problems: Sequence[Problem], name: str | None, say: Say = print
) -> Sequence[Problem]:
    """Return each problem `Problem.in_language` (None: the problems as they are), converted on
    access. Those with call tests, which only Python's programs have, are left out, and counted for
    users. Raises ConfigError if none is left."""
    if name is None:
        return problems
    places = [
        place
        for place, problem in enumerate(problems)
        if not problem.calls or problem.language == name
    ]
    if left_out := len(problems) - len(places):
        say(f"language={name}: {left_out} of {len(problems)} problems have call tests; left out")
    if not places:
        raise ConfigError(f"language={name}: every problem has call tests, which are Python's")
    return Selected(problems, places, lambda problem: problem.in_language(name))


def with_tests(problems: Sequence[Problem], least: int, most: int | None) -> Sequence[Problem]:
    """Return the problems that have at least `least` tests, in order, each `with_most_tests` on
    access (None: all tests).

    Raises ConfigError if none is left.
    """
    kept: Sequence[Problem] = problems
    if least > 1:
        counts = (
            [place.tests for place in problems.places]
            if isinstance(problems, ProblemStore)
            else [len(problem.tests) for problem in problems]
        )
        kept = Selected(problems, [i for i, count in enumerate(counts) if count >= least])
    if not kept:
        raise ConfigError(f"min_tests={least} leaves none of {len(problems)} problems; lower it")
    if most is None:
        return kept
    return Selected(kept, range(len(kept)), partial(with_most_tests, most=most))


def with_most_tests(problem: Problem, most: int) -> Problem:
    """Return the problem with at most `most` tests: the public ones, then those with the longest
    inputs, in their original order. One that has no more is returned itself."""
    if len(problem.tests) <= most:
        return problem

    def size(test: TestCase) -> int:
        """Return the approximate length of a test's input, in characters."""
        if isinstance(test, StdinTest):
            return len(test.input)
        return len(repr((test.args, test.kwargs)))

    tests = problem.tests
    hardest = sorted(range(len(tests)), key=lambda i: (not tests[i].public, -size(tests[i]), i))
    return replace(problem, tests=tuple(tests[i] for i in sorted(hardest[:most])))


def _pass_rate(meta: Mapping[str, Any]) -> float | None:
    """Return the pass rate, 0 to 1, measured by `code-rl prepare` (in `meta`), or a plain
    `meta.pass_rate`; None without either."""
    measured = meta.get("prepare", {}).get("difficulty", {}).get("pass_rate", meta.get("pass_rate"))
    return float(measured) if isinstance(measured, int | float) else None


def load_problems(dataset: str | Path, limit: int | None = None) -> Sequence[Problem]:
    """Return the problems that `dataset=` would train on: `builtin`, a name, a hub id, files or a
    folder. `limit` chooses a subset, always the same (None: all).

    Each problem is read from disk on access. The first time, solutions may run in the shared
    sandbox. Raises ConfigError for an unknown name or a limit below 1, DataError for unusable
    files.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"limit={limit} must be at least 1, or None for all problems")
    data = find_data(str(dataset), None, evaluates=False)
    problems = wait_for(shared_executor.run(lambda executor: load_train_problems(data, executor)))
    return subsample(problems, -1 if limit is None else limit)
