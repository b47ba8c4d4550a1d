"""From one setting to a data set: `dataset=name[@revision][:split]`, a path (`FILE`,
`FOLDER[:split]`), `package.module:object`, or several separated by commas.

A `Dataset` can be read repeatedly, in the same order each time, with one row in memory at a time.
For each row it yields the reader's result: a `Problem`, a `Draft` or an `Ambiguous` (both finished
by `resolve.resolve`), or a `Skipped` with a reason.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

from code_rl.data.catalogue import (
    BUILTIN,
    CATALOGUE,
    KNOWN_NAMES,
    MIXTURES,
    SHIPPED,
    CatalogueEntry,
)
from code_rl.data.fetch import fetch_file, open_repository, select_files
from code_rl.data.sources.livecodebench import release_shards
from code_rl.data.sources.records import Item, Origin
from code_rl.data.sources.shapes import read_row, shape_of
from code_rl.grading import Problem
from code_rl.grading.native import check_problem, format_problem
from code_rl.util import registry
from code_rl.util.data_files import describe_files, is_data_file, scan_rows
from code_rl.util.errors import ConfigError, DataError
from code_rl.util.suggestion import suggestion
from code_rl.util.version import __version__

Rows = Iterator[tuple[str, dict[str, Any] | DataError]]
Role = Literal["train", "test"]
MANIFEST = "manifest.json"
PREPARED = "code-rl-prepared"
OBJECT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


@dataclass(frozen=True, slots=True)
class Source:
    """The files of one split of one data set, in order. `revision` is the commit of a hub data set;
    `given` is the text of the setting that named a local one."""

    name: str
    split: str | None
    files: tuple[Path, ...]
    repository: str | None = None
    revision: str | None = None
    licence: str = "unstated"
    given: str = ""

    def readers(self) -> Iterator[Callable[[], Item]]:
        """Yield one function per raw row, in order, that reads it into an item. Raises DataError
        for a file that cannot be read at all."""
        prefix = f"{self.name}/{self.split}" if self.split else self.name
        for index, (where, row) in enumerate(self.rows()):
            yield partial(read_row, row, Origin(self.name, prefix, index, where))

    def rows(self) -> Rows:
        """Yield raw rows, or the errors of rows that cannot be read, each with its position as
        text."""
        return chain.from_iterable(map(scan_rows, self.files))

    def provenance(self) -> dict[str, Any]:
        """Return the source of the rows as JSON data."""
        names = ("name", "split", "repository", "revision", "licence")
        return {
            **{name: getattr(self, name) for name in names},
            "files": describe_files(self.files),
        }

    def identity(self) -> list[Any]:
        """Return the version of the content: the commit, or each local file's path, size and
        modification time."""
        if self.revision is not None:
            return [
                self.repository,
                self.revision,
                self.name,
                self.split,
                [file.name for file in self.files],
            ]
        stats = [(str(file.resolve()), file.stat()) for file in self.files]
        return [
            self.name,
            self.split,
            [[path, stat.st_size, stat.st_mtime_ns] for path, stat in stats],
        ]

    @property
    def pinned(self) -> str:
        """The setting that names exactly this source, including its commit."""
        split = f":{self.split}" if self.split else ""
        return f"{self.name}@{self.revision}{split}" if self.revision else self.given

    def __str__(self) -> str:
        return (
            self.pinned
            if self.revision is None
            else self.pinned.replace(self.revision, self.revision[:12])
        )


@dataclass(frozen=True, slots=True)
class MadeSource(Source):
    """Problems that are made, not read: the built-in family of this version, or those of a user's
    object, whose hash is the version."""

    problems: Sequence[Problem] = ()
    version: str = ""

    def readers(self) -> Iterator[Callable[[], Item]]:
        """Yield one function per problem, which returns it."""
        return (partial(self.problems.__getitem__, index) for index in range(len(self.problems)))

    def provenance(self) -> dict[str, Any]:
        """Return the version of the problems."""
        return {"name": self.name, "revision": self.version}

    def identity(self) -> list[Any]:
        """Return the version of the problems."""
        return [self.name, self.version]


def problems_of(setting: str, name: str, own: Any) -> tuple[Problem, ...]:
    """Return the problems of `setting=name`, a user's object, which is a list of problems or a
    function that returns one. Raises ConfigError if it is neither, or repeats an id."""
    with registry.attribute_errors_to(setting, name):
        problems = tuple(own() if callable(own) else own)
        if not all(isinstance(problem, Problem) for problem in problems):
            raise ConfigError(
                f"{setting}={name} must give problems (code_rl.Problem), or be a function that does"
            )
    for problem in problems:
        check_problem(problem, f"{setting}={name}: problem {problem.id!r}")
    seen = Counter(problem.id for problem in problems)
    if len(seen) < len(problems):
        raise ConfigError(
            f"{setting}={name} gives id {seen.most_common(1)[0][0]!r} more than once; ids must "
            "be unique"
        )
    return problems


def digest_of(problems: Sequence[Problem]) -> str:
    """Return a hash of all the problems."""
    return hashlib.sha256("\n".join(map(format_problem, problems)).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Dataset:
    """Sources read one after the other. `name` is the setting."""

    name: str
    sources: tuple[Source, ...]

    def __iter__(self) -> Iterator[Item]:
        return self.items()

    def items(self, skip: int = 0) -> Iterator[Item]:
        """Yield one item per raw row, in the order of the sources, without the first `skip`
        rows."""
        readers = chain.from_iterable(source.readers() for source in self.sources)
        return (read() for read in islice(readers, skip, None))

    def shapes(self) -> list[str]:
        """Return the name of the shape of each source's first row ("" for an unknown shape)."""
        rows = (
            next((row for _, row in source.rows() if not isinstance(row, DataError)), {})
            for source in self.sources
            if source.files
        )
        return [shape.name if (shape := shape_of(row)) else "" for row in rows]

    def provenance(self) -> list[dict[str, Any]]:
        """Return the source of each part's rows."""
        return [source.provenance() for source in self.sources]

    def fingerprint(self) -> str:
        """Return a hash that changes when any source changes."""
        text = json.dumps([source.identity() for source in self.sources])
        return hashlib.sha256(text.encode()).hexdigest()

    def __str__(self) -> str:
        return " + ".join(map(str, self.sources))


def open_dataset(setting: str, role: Role = "train") -> Dataset:
    """Return the data set that `setting` names; `role` chooses the split if the setting does not.

    Raises ConfigError for an unknown name, split or revision and for an unreachable hub, DataError
    for unusable files.
    """
    return Dataset(
        setting, tuple(source for part in _parts(setting) for source in _sources(part, role))
    )


def test_split_settings(setting: str) -> dict[str, str]:
    """Return {name: setting} of the held-out splits that `test_dataset=setting` means: those of a
    mixture, or each one given."""
    parts = _parts(setting)
    if len(parts) == 1:
        name, revision, split = _split_name(parts[0])
        if name in MIXTURES and split in (None, "test"):
            return {key: _at(part, revision, name) for key, part in MIXTURES[name].test.items()}
        return {"test": setting}
    named: dict[str, str] = {}
    for part in parts:
        key = Path(_split_name(part)[0]).name.partition(".")[0]
        if key in named:
            raise ConfigError(
                f"test_dataset={setting}: {key} is named twice; each held-out split needs its "
                "own name"
            )
        named[key] = part
    return named


def with_absolute_paths(setting: str) -> str:
    """Return the setting with each existing path in it absolute, so that it means the same in any
    working directory. Names of the catalogue come before paths."""
    return ",".join(map(_absolute, _parts(setting)))


def _absolute(part: str) -> str:
    local = _local(part)
    if local is None or _split_name(part)[0] in KNOWN_NAMES:
        return part
    return ":".join([os.path.abspath(local[0]), *filter(None, local[1:])])


def own_test_setting(setting: str) -> str | None:
    """Return the setting of the held-out problems that belong to `dataset=setting`, or None if
    there are none."""
    parts = _parts(setting)
    name, revision, split = _split_name(parts[0])
    if len(parts) > 1 or split is not None:
        return None
    at = f"@{revision}" if revision else ""
    if name in MIXTURES:
        return f"{name}{at}"
    if name in CATALOGUE:
        return f"{name}{at}:test" if "test" in CATALOGUE[name].splits[1:] else None
    manifest = read_prepared(SHIPPED.get(name, Path(name).expanduser()))
    return f"{name}:test" if manifest is not None and "test" in manifest["splits"] else None


def _parts(setting: str) -> list[str]:
    if _local(setting) is not None:
        return [setting]
    parts = [part.strip() for part in setting.split(",")]
    if not all(parts):
        raise ConfigError(
            f"dataset={setting!r} names nothing; give a name, a path, or several with commas"
        )
    return parts


def _sources(part: str, role: Role) -> list[Source]:
    name, revision, split = _split_name(part)
    if part == BUILTIN:
        from code_rl.data.builtin import BuiltinTrainSet

        return [
            MadeSource(
                BUILTIN, None, (), given=BUILTIN, problems=BuiltinTrainSet(), version=__version__
            )
        ]
    if name in MIXTURES:
        mixture = MIXTURES[name]
        if split not in (None, "train", "test"):
            raise ConfigError(f"{name}:{split}: the splits of {name} are train and test")
        chosen = mixture.test.values() if (split or role) == "test" else mixture.train
        return [source for each in chosen for source in _sources(_at(each, revision, name), role)]
    if name in CATALOGUE:
        return [_named(name, CATALOGUE[name], revision, split, role)]
    local = (SHIPPED[name], split) if name in SHIPPED else _local(part)
    if local is not None:
        return [_from_path(*local, role, part)]
    if "/" in name and not name.startswith(("/", ".", "~")) and not is_data_file(name):
        owner, repository, *config = name.split("/", 2)
        return [
            _named(
                name,
                CatalogueEntry(f"{owner}/{repository}", "".join(config) or None),
                revision,
                split,
                role,
            )
        ]
    if is_data_file(name) or name.startswith(("/", "./", "../", "~")):
        raise ConfigError(f"dataset={part}: there is no such file or folder")
    if OBJECT.fullmatch(part) and not suggestion(name, KNOWN_NAMES):
        problems = problems_of("dataset", part, registry.find("dataset", part, dict[str, Any]()))
        return [
            MadeSource(part, None, (), given=part, problems=problems, version=digest_of(problems))
        ]
    raise ConfigError(
        f"dataset={part!r}: there is no such file or folder, and no data set of that name"
        f"{suggestion(name, KNOWN_NAMES)}; known are {', '.join(KNOWN_NAMES)}, hub ids "
        "(owner/name), paths, and package.module:object for your own"
    )


def _named(
    name: str, entry: CatalogueEntry, revision: str | None, split: str | None, role: Role
) -> Source:
    wanted: Sequence[str] = ()
    if name == "livecodebench":
        split = split or "release_latest"
        wanted = release_shards(split)
    else:
        default = "test" if role == "test" and "test" in entry.splits[1:] else entry.splits[0]
        split = split or default
        if name in CATALOGUE and split not in entry.splits:
            raise ConfigError(f"{name}:{split}: the splits of {name} are {', '.join(entry.splits)}")
    repository = open_repository(entry.repository, revision)
    files = wanted or [
        file for file in repository.listed(entry.config, split) if is_data_file(file)
    ]
    files = files or select_files(
        repository.files, entry.config, split, f"dataset {repository.name}"
    )
    missing = [file for file in files if file not in repository.files]
    if missing:
        raise ConfigError(f"dataset {entry.repository} has no {missing[0]} at {repository.commit}")
    paths = tuple(fetch_file(repository.name, file, repository.commit) for file in files)
    return Source(name, split, paths, entry.repository, repository.commit, repository.licence)


def _from_path(path: Path, split: str | None, role: Role, given: str) -> Source:
    if path.is_file():
        if split is not None:
            raise ConfigError(f"{path}:{split}: a file has no splits; leave {split!r} out")
        if not is_data_file(path.name):
            raise ConfigError(
                f"{path} is not a data file; use .jsonl, .json, .jsonl.gz, .jsonl.zst or .parquet"
            )
        return Source(path.name.partition(".")[0], None, (path,), given=given)
    manifest = read_prepared(path)
    if manifest is not None:
        splits = manifest["splits"]
        split = split or (role if role in splits else "train")
        if split not in splits:
            raise ConfigError(
                f"{path}:{split}: the splits of this prepared folder are {', '.join(splits)}"
            )
        file = path / str(splits[split]["file"])
        return Source(path.resolve().name, split, (file,), given=f"{_split_name(given)[0]}:{split}")
    names = sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())
    if any(name.endswith(".arrow") for name in names):
        raise ConfigError(
            f"{path} holds Arrow files, as save_to_disk writes them, which are not read; write "
            "each split with to_parquet and give those files"
        )
    chosen = select_files(names, None, split or role, str(path), required=split is not None)
    return Source(path.resolve().name, split, tuple(path / name for name in chosen), given=given)


def read_prepared(path: Path) -> dict[str, Any] | None:
    """Return the manifest of a folder made by `code-rl prepare`, or None for another folder. Raises
    DataError if it is damaged."""
    file = path / MANIFEST
    if not file.is_file():
        return None
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{file}: not JSON: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != PREPARED:
        return None
    if manifest.get("version") != 1 or not isinstance(manifest.get("splits"), dict):
        raise DataError(
            f"{file}: version {manifest.get('version')!r} of a prepared folder is not known; "
            "prepare it anew in another folder"
        )
    return manifest


def _local(part: str) -> tuple[Path, str | None] | None:
    """Return the path and split of a part that names a local file or folder, else None."""
    whole = Path(os.path.expanduser(part))
    if part and whole.exists():
        return whole, None
    head, colon, split = part.rpartition(":")
    path = Path(os.path.expanduser(head))
    return (path, split) if colon and head and split and path.exists() else None


def _split_name(part: str) -> tuple[str, str | None, str | None]:
    """Split `name[@revision][:split]` into its parts; a path has only a split."""
    local = _local(part)
    if local is not None:
        return part.removesuffix(f":{local[1]}") if local[1] else part, None, local[1]
    base, split = part, None
    if ":" in part:
        base, _, split = part.rpartition(":")
    name, at, revision = base.partition("@")
    if (at and not revision) or split == "":
        raise ConfigError(
            f"dataset={part!r}: write name, name@revision, name:split or name@revision:split"
        )
    return name, revision or None, split


def _at(part: str, revision: str | None, mixture: str) -> str:
    """Return a mixture's part at a revision. Raises ConfigError if the parts are in different
    repositories."""
    if revision is None:
        return part
    parts = MIXTURES[mixture].train
    if len({CATALOGUE[each.partition(":")[0]].repository for each in parts}) > 1:
        named = ",".join(each.replace(":", "@REVISION:") for each in parts)
        raise ConfigError(
            f"{mixture}@{revision}: {mixture} is made of several repositories; name its parts "
            f"instead: {named}"
        )
    return part.replace(":", f"@{revision}:")
