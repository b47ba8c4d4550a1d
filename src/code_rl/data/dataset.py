"""From one setting to a data set: `dataset=name[@revision][:split]`, a path (`FILE`,
`FOLDER[:split]`), `package.module:object`, or several separated by commas.

A `Dataset` can be read repeatedly, in the same order each time, with one row in memory at a time.
For each row it yields the reader's result: a `Problem`, a `Draft` or an `Ambiguous` (both finished
by `resolve.resolve`), or a `Skipped` with a reason.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

from code_rl.data.fetch import fetch_file, local_licence, open_repository, select_files
from code_rl.data.sources.livecodebench import release_shards
from code_rl.data.sources.records import Item, Origin
from code_rl.data.sources.shapes import read_row, shape_of
from code_rl.grading import Problem
from code_rl.grading.native import check_problem, format_problem, problem_to_json
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
class CatalogueEntry:
    """A data set by name. `splits` maps the hub's splits to their public names; the first is for
    training."""

    repository: str
    config: str | None = None
    splits: Sequence[str] = ("train", "test")


@dataclass(frozen=True, slots=True)
class Mixture:
    """Data sets read one after the other for training (a seeded shuffle mixes them), and the
    held-out ones by name."""

    train: Sequence[str]
    test: Mapping[str, str]


with Path(__file__).with_name("catalogue.toml").open("rb") as _file:
    _told = tomllib.load(_file)
CATALOGUE = {name: CatalogueEntry(**told) for name, told in _told["sets"].items()}
MIXTURES = {name: Mixture(**told) for name, told in _told["mixtures"].items()}

BUILTIN = "builtin"
SHIPPED = {"functions": Path(__file__).parent / "functions"}
"""Prepared folders that come with this package (scripts/write_functions.py)."""
KNOWN_NAMES = (BUILTIN, *SHIPPED, *MIXTURES, *CATALOGUE)
"""Every name that `dataset=` knows."""


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
        """Yield raw rows, or the errors of rows that cannot be read, in order, each with its
        position as text. Raises DataError for a file that cannot be read at all."""
        return chain.from_iterable(map(scan_rows, self.files))

    def provenance(self) -> dict[str, Any]:
        """Return the source of the rows as JSON data, with size and SHA-256 of each file, which are
        read."""
        names = ("name", "split", "repository", "revision", "licence")
        facts = {name: getattr(self, name) for name in names}
        return {**facts, "files": describe_files(self.files)}

    def identity(self) -> list[Any]:
        """Return the version of the content as JSON data, without reading it: the commit, or each
        local file's path, size and modification time. Raises OSError for a missing file."""
        version: Any = [self.repository, self.revision, *(file.name for file in self.files)]
        if self.revision is None:
            stats = [(str(file.resolve()), file.stat()) for file in self.files]
            version = [[path, stat.st_size, stat.st_mtime_ns] for path, stat in stats]
        return [self.name, self.split, version]

    @property
    def pinned(self) -> str:
        """The setting that names this source: with its commit and split if it has a commit, else
        as `given`. A run's record holds it, and a resume must find the same."""
        split = f":{self.split}" if self.split else ""
        return f"{self.name}@{self.revision}{split}" if self.revision else self.given

    def __str__(self) -> str:
        """Return `pinned` with a commit of 12 digits, for users."""
        commit = self.revision or ""
        return self.pinned.replace(commit, commit[:12])


@dataclass(frozen=True, slots=True)
class MadeSource(Source):
    """Problems that are made, not read: the built-in family of this version, or those of a user's
    object, whose hash is the version."""

    problems: Sequence[Problem] = ()
    version: str = __version__

    def readers(self) -> Iterator[Callable[[], Item]]:
        """Yield one function per problem, in order, which returns it."""
        return (partial(self.problems.__getitem__, index) for index in range(len(self.problems)))

    def rows(self) -> Rows:
        """Yield the problems in the native format, each with its id as the position."""
        return ((problem.id, problem_to_json(problem)) for problem in self.problems)

    def provenance(self) -> dict[str, Any]:
        """Return the name and version of the problems as JSON data; there are no files."""
        return {"name": self.name, "revision": self.version}

    def identity(self) -> list[Any]:
        """Return the version of the problems, with the setting that names them."""
        return [self.name, self.version]


def problems_of(setting: str, name: str, own: Any) -> tuple[Problem, ...]:
    """Return the problems of `setting=name`, a user's object, which is an iterable of problems or a
    function that returns one; it is called once. Raises ConfigError if it is neither, fails, or
    repeats an id, and DataError for a problem that cannot be judged."""
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
    """Return a hash of all the problems, tests included, which depends on their order."""
    return hashlib.sha256("\n".join(map(format_problem, problems)).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Dataset:
    """Sources read one after the other. `name` is the setting."""

    name: str
    sources: tuple[Source, ...]

    def __iter__(self) -> Iterator[Item]:
        return self.items()

    def items(self, skip: int = 0) -> Iterator[Item]:
        """Yield one item per raw row, in the order of the sources, without the first `skip` rows. A
        row that cannot be used is a Skipped in its place. Raises DataError for a file that cannot
        be read at all."""
        readers = chain.from_iterable(source.readers() for source in self.sources)
        return (read() for read in islice(readers, skip, None))

    def shapes(self) -> list[str]:
        """Return the name of the shape of each source's first row that can be read ("" for an
        unknown shape). Sources without files are left out."""
        rows = (
            next((row for _, row in source.rows() if not isinstance(row, DataError)), {})
            for source in self.sources
            if source.files
        )
        return [shape.name if (shape := shape_of(row)) else "" for row in rows]

    def provenance(self) -> list[dict[str, Any]]:
        """Return the source of each part's rows as JSON data. Files are read, for their hashes."""
        return [source.provenance() for source in self.sources]

    def fingerprint(self) -> str:
        """Return a hash that changes when any source changes. Files are not read."""
        text = json.dumps([source.identity() for source in self.sources])
        return hashlib.sha256(text.encode()).hexdigest()

    def __str__(self) -> str:
        return " + ".join(map(str, self.sources))


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a setting, whose text is `given`: `name[@revision][:split]`, or the `path` of an
    existing file or folder with its split."""

    given: str
    name: str
    revision: str | None = None
    split: str | None = None
    path: Path | None = None


def open_dataset(setting: str, role: Role = "train") -> Dataset:
    """Return the data set that `setting` names; `role` chooses the split if the setting does not.
    Files of the hub are downloaded; no row is read.

    Raises ConfigError for an unknown name, split or revision and for an unreachable hub, DataError
    for unusable files.
    """
    return Dataset(
        setting, tuple(source for part in _parts(setting) for source in _sources(part, role))
    )


def test_split_settings(setting: str) -> dict[str, str]:
    """Return {name: setting} of the held-out splits that `test_dataset=setting` means: those of a
    mixture; another single one as `test`; of several, each under the name of its data set or file.

    Raises ConfigError for a malformed setting, and for a name that is given twice.
    """
    first, *more = _parts(setting)
    if not more:
        is_mixture = first.name in MIXTURES and first.split in (None, "test")
        return dict(MIXTURES[first.name].test) if is_mixture else {"test": setting}
    named: dict[str, str] = {}
    for part in (first, *more):
        key = Path(part.name).name.partition(".")[0]
        if key in named:
            raise ConfigError(
                f"test_dataset={setting}: {key} is named twice; each held-out split needs its "
                "own name"
            )
        named[key] = part.given
    return named


def with_absolute_paths(setting: str) -> str:
    """Return the setting with each existing path in it absolute, so that it means the same in any
    working directory. Names of the catalogue come before paths. Raises ConfigError for a malformed
    setting."""
    return ",".join(
        part.given
        if part.path is None or part.name in KNOWN_NAMES
        else ":".join([os.path.abspath(part.path), *filter(None, [part.split])])
        for part in _parts(setting)
    )


def own_test_setting(setting: str) -> str | None:
    """Return the setting of the held-out problems that belong to `dataset=setting`, or None if
    there are none, as for several data sets or a named split. Raises ConfigError for a malformed
    setting, DataError for a damaged prepared folder."""
    part, *more = _parts(setting)
    if more or part.split is not None:
        return None
    if part.name in MIXTURES:
        return part.name
    if part.name in CATALOGUE:
        return f"{part.given}:test" if "test" in CATALOGUE[part.name].splits[1:] else None
    folder = SHIPPED.get(part.name, part.path)
    manifest = None if folder is None else read_prepared(folder)
    return f"{part.name}:test" if manifest is not None and "test" in manifest["splits"] else None


def _parts(setting: str) -> list[Part]:
    """Split `dataset=` at commas, but for a path that contains one. Raises ConfigError for an empty
    or malformed part; names are not checked."""
    if (whole := _local(setting)) is not None:
        return [whole]
    parts = [part.strip() for part in setting.split(",")]
    if not all(parts):
        raise ConfigError(
            f"dataset={setting!r} names nothing; give a name, a path, or several with commas"
        )
    return list(map(_part, parts))


def _part(text: str) -> Part:
    """Read one NAME[@REVISION][:SPLIT], or a local path, which comes first. Raises ConfigError for
    another form, and for a revision of a mixture."""
    if (local := _local(text)) is not None:
        return local
    base, colon, split = text.rpartition(":") if ":" in text else (text, "", "")
    name, at, revision = base.partition("@")
    if (at and not revision) or (colon and not split):
        raise ConfigError(
            f"dataset={text!r}: write name, name@revision, name:split or name@revision:split"
        )
    if at and name in MIXTURES:
        parts = ",".join(MIXTURES[name].train).replace(":", "@REVISION:")
        raise ConfigError(f"dataset={text}: {name} is a mixture; name its parts instead: {parts}")
    return Part(text, name, revision or None, split or None)


def _local(text: str) -> Part | None:
    """Return the part that names an existing file or folder, `~` expanded, with a split after the
    last colon, else None."""
    head, _, split = text.rpartition(":")
    for name, of_folder in ((text, None), (head, split)):
        path = Path(os.path.expanduser(name))
        if name and of_folder != "" and _exists(path):
            return Part(text, name, None, of_folder, path)
    return None


def _exists(path: Path) -> bool:
    """Return True if there is a file or folder; False for a text that is too long for a path.
    Raises any other OSError."""
    try:
        return path.exists()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return False
        raise


def _sources(part: Part, role: Role) -> list[Source]:
    """Return a part's sources: built-in, mixture, catalogue, path, hub id, or the user's object,
    tried in this order. Raises ConfigError for an unknown name or split."""
    name, split, given = part.name, part.split, part.given
    if given == BUILTIN:
        from code_rl.data.builtin import BuiltinTrainSet

        return [MadeSource(given, None, (), given=given, problems=BuiltinTrainSet())]
    if name in MIXTURES:
        mixture = MIXTURES[name]
        if split not in (None, "train", "test"):
            raise ConfigError(f"{name}:{split}: the splits of {name} are train and test")
        chosen = mixture.test.values() if (split or role) == "test" else mixture.train
        return [source for each in chosen for source in _sources(_part(each), role)]
    if name in CATALOGUE:
        return [_named(part, CATALOGUE[name], role)]
    path = SHIPPED.get(name, part.path)
    if path is not None:
        return [_from_path(path, part, role)]
    if "/" in name and not name.startswith(("/", ".", "~")) and not is_data_file(name):
        owner, repository, *config = name.split("/", 2)
        entry = CatalogueEntry(f"{owner}/{repository}", "".join(config) or None)
        return [_named(part, entry, role)]
    if is_data_file(name) or name.startswith(("/", "./", "../", "~")):
        raise ConfigError(f"dataset={given}: there is no such file or folder")
    if OBJECT.fullmatch(given) and (
        not suggestion(name, KNOWN_NAMES) or find_spec(name.partition(".")[0])
    ):
        problems = problems_of("dataset", given, registry.find("dataset", given, dict[str, Any]()))
        version = digest_of(problems)
        return [MadeSource(given, None, (), given=given, problems=problems, version=version)]
    raise ConfigError(
        f"dataset={given!r}: there is no such file or folder, and no data set of that name"
        f"{suggestion(name, KNOWN_NAMES)}; known are {', '.join(KNOWN_NAMES)}, hub ids "
        "(owner/name), paths, and package.module:object for your own"
    )


def _named(part: Part, entry: CatalogueEntry, role: Role) -> Source:
    """Download the files of a hub set's split and return their source. A set without the split of
    `role` gives its first one. Raises ConfigError for an unknown split or revision, and for an
    unreachable hub."""
    name, split = part.name, part.split
    wanted: Sequence[str] = ()
    if name == "livecodebench":
        split = split or "release_latest"
        wanted = release_shards(split)
    else:
        default = "test" if role == "test" and "test" in entry.splits[1:] else entry.splits[0]
        split = split or default
        if name in CATALOGUE and split not in entry.splits:
            raise ConfigError(f"{name}:{split}: the splits of {name} are {', '.join(entry.splits)}")
    repository = open_repository(entry.repository, part.revision)
    listed = wanted or list(filter(is_data_file, repository.listed(entry.config, split)))
    where = f"dataset {repository.name}"
    files = listed or select_files(repository.files, entry.config, split, where)
    paths = tuple(fetch_file(repository.name, file, repository.commit) for file in files)
    return Source(name, split, paths, entry.repository, repository.commit, repository.licence)


def _from_path(path: Path, part: Part, role: Role) -> Source:
    """Return the source of a local file, or of one split of a folder; `role` is the split if none
    is named. Raises ConfigError for a split that does not exist and for files of another kind."""
    split, given = part.split, part.given
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
            known = ", ".join(splits) or "none, for no problem was left (dropped.jsonl says why)"
            raise ConfigError(f"{path}:{split}: the splits of this prepared folder are {known}")
        file = path / str(splits[split]["file"])
        return Source(path.resolve().name, split, (file,), given=f"{part.name}:{split}")
    names = sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())
    chosen = select_files(names, None, split or role, str(path), required=split is not None)
    paths = tuple(path / name for name in chosen)
    return Source(path.resolve().name, split, paths, licence=local_licence(path), given=given)


def read_prepared(path: Path) -> dict[str, Any] | None:
    """Return the manifest of a folder made by `code-rl prepare`, or None for another folder. Raises
    DataError if it is damaged or of an unknown version."""
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
