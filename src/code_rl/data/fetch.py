"""Published files: data sets of the Hugging Face hub at one commit, through the hub's own cache,
and single files at a pinned revision with a known hash. This module also finds the files of a split
in a repository or folder.

A revision (branch, tag or commit) is resolved to its commit once, and all files are read at that
commit. Without a network the cache is used.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import Any

from code_rl.util.concurrency import interruptible
from code_rl.util.data_files import DATA_SUFFIXES, data_folder, file_sha256, is_data_file
from code_rl.util.errors import ConfigError, DataError, require
from code_rl.util.files import write_lines_atomically

MAIN, README = "main", "README.md"


@dataclass(frozen=True, slots=True)
class Repository:
    """A data set repository at one commit: its files, and its card's configs and license."""

    name: str
    commit: str
    files: tuple[str, ...]
    card: Mapping[str, Any]

    @property
    def licence(self) -> str:
        """The license that the card names, or `unstated`."""
        return _licence(self.card)

    def listed(self, config: str | None, split: str) -> list[str]:
        """Return the files that the card's `configs` list for a split, or none if it lists none.
        With `config` None, the first config that has the split counts."""
        for entry in _dicts(self.card.get("configs")):
            if config is not None and entry.get("config_name") != config:
                continue
            for part in _dicts(entry.get("data_files")):
                if part.get("split") == split:
                    patterns = part.get("path") or []
                    wanted = [patterns] if isinstance(patterns, str) else patterns
                    return [
                        name
                        for name in self.files
                        if any(fnmatch.fnmatch(name, each) for each in wanted)
                    ]
        return []


def open_repository(name: str, revision: str | None) -> Repository:
    """Return the files of `name` at `revision` (None: the current main branch), as the hub or else
    the cache has them. Only the card is downloaded.

    Raises ConfigError if the repository or revision does not exist or is not readable, or if it is
    neither on the hub nor in the cache.
    """
    require("train", f"dataset {name}", "huggingface_hub", "httpx", "yaml")
    from huggingface_hub import HfApi

    try:
        with interruptible():
            info = HfApi().dataset_info(name, revision=revision, timeout=TIMEOUT_S)
    except _hub_errors() as error:
        response = getattr(error, "response", None)
        if response is None or response.status_code >= 500:
            return _cached(name, revision, error)
        raise ConfigError(
            f"the hub refused dataset {name} at revision {revision or MAIN!r} "
            f"({_first_line(error)}); check both, and set HF_TOKEN for a private or gated one"
        ) from error
    files = tuple(sorted(sibling.rfilename for sibling in info.siblings or ()))
    # Requested by the revision's name, so that the cache records its commit.
    card = _card(fetch_file(name, README, revision or MAIN)) if README in files else {}
    return Repository(name, str(info.sha), files, card)


def fetch_file(repository: str, filename: str, revision: str) -> Path:
    """Return the local copy of one file of a data set repository at a revision, downloaded if the
    cache lacks it.

    Raises ConfigError if neither hub nor cache has it.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        with interruptible():
            return Path(
                hf_hub_download(repository, filename, repo_type="dataset", revision=revision)
            )
    except _hub_errors() as error:
        if isinstance(error, HfHubHTTPError):
            raise ConfigError(
                f"the hub refused {repository}/{filename} at revision {revision}: "
                f"{_first_line(error)}"
            ) from error
        lacking = f"{filename} is not in its cache"
        raise _unreachable(repository, revision, error, lacking) from error


def _cached(name: str, revision: str | None, cause: Exception) -> Repository:
    """Return the cache's snapshot of this revision, found by its card. Its files are those that
    were downloaded before. Raises ConfigError, about `cause`, if there is none."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, README, repo_type="dataset", revision=revision or MAIN)
    if not isinstance(found, str):
        raise _unreachable(name, revision, cause, "its cache has no snapshot of it") from cause
    folder = Path(found).parent
    files = tuple(
        sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    )
    return Repository(name, folder.name, files, _card(Path(found)))


def local_licence(folder: Path) -> str:
    """Return the license that a repository's README in `folder` names, or `unstated`, also without
    one."""
    return _licence(_card(folder / README))


def _licence(card: Mapping[str, Any]) -> str:
    """Return the license of a dataset card as text, several joined by commas, `unstated` if it
    names none."""
    licence = card.get("license") or card.get("license_name")
    return ", ".join(licence) if isinstance(licence, list) else str(licence or "unstated")


def _card(readme: Path) -> dict[str, Any]:
    """Return the metadata at the head of a repository's README; none if it is missing or
    malformed."""
    if not readme.is_file() or find_spec("huggingface_hub") is None:
        return {}
    from huggingface_hub import metadata_load
    from yaml import YAMLError

    try:
        return metadata_load(readme) or {}
    except (YAMLError, ValueError):
        return {}


def _hub_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of a hub that refuses, or does not answer. The base class of the hub's
    errors tells which HTTP library it uses."""
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    return (LocalEntryNotFoundError, HfHubHTTPError.__bases__[0], ConnectionError, TimeoutError)


def _unreachable(name: str, revision: str | None, cause: Exception, cache: str) -> ConfigError:
    """Return, for the caller to raise, the error of a hub that cannot be reached, with the command
    that fetches the data elsewhere. `cache` says what the local cache lacks."""
    at = f" --revision {revision}" if revision else ""
    return ConfigError(
        f"the hub cannot be reached for dataset {name} ({_first_line(cause)}) and {cache}; where "
        f"there is a network run 'hf download {name} --repo-type dataset{at} --local-dir DIR', "
        "bring DIR here and give its files or folders as a path instead"
    )


def _first_line(error: Exception) -> str:
    """Return an error's class and the first line of its text, shortened to 160 characters."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:160]}" if lines else type(error).__name__


def _dicts(value: Any) -> Sequence[Mapping[str, Any]]:
    """Return the mappings in a list of a card; none for anything but a list."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Pinned:
    """One published file: address, SHA-256, and name below the data folder."""

    url: str
    sha256: str
    kept_as: str


def fetch(pinned: Pinned) -> Path:
    """Return the file in the data folder, downloaded once; its hash is checked each time. Raises
    ConfigError if it is not available, and DataError if its hash differs; such a download is not
    kept."""
    target = data_folder() / pinned.kept_as
    if target.is_file():
        if file_sha256(target) != pinned.sha256:
            raise DataError(
                f"{target} is not what {pinned.url} was (its SHA-256 differs); move it away, or "
                "set CODE_RL_DATA"
            )
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Addresses are constants of this package
        with (
            interruptible(),
            urllib.request.urlopen(pinned.url, timeout=TIMEOUT_S) as response,  # noqa: S310
        ):
            data = response.read()
        found = hashlib.sha256(data).hexdigest()
        if found != pinned.sha256:
            raise DataError(
                f"{pinned.url} has SHA-256 {found}, expected {pinned.sha256}; nothing was kept"
            )
        write_lines_atomically(target, (data,), mode=0o644)
    except OSError as error:
        raise ConfigError(
            f"{pinned.url} cannot be downloaded ({error}); bring the file to {target} yourself"
        ) from error
    return target


SPLITS = ("train", "test", "valid", "validation", "dev", "prompt")
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})(?:-[0-9a-f]+)?$|^\d{4,5}$")


def select_files(
    names: Sequence[str], config: str | None, split: str, where: str, *, required: bool = True
) -> list[str]:
    """Return the data files among `names` (relative paths) that belong to `config` (None: any) and
    `split`, sorted. A name belongs to a split that is one of its words.

    With `required=False`, all files of a folder are returned if no name mentions a split. `where`
    begins the errors.

    Raises ConfigError if no file fits, if the files look like several data sets (another format or
    version beside the first), or if a numbered shard is missing.
    """
    data = [
        name
        for name in sorted(names)
        if is_data_file(name) and (config is None or config in PurePath(name).parts)
    ]
    chosen = [name for name in data if split in _words(name)]
    if not chosen and not required and not any(set(SPLITS) & _words(name) for name in data):
        chosen = data
    if not chosen:
        found = ", ".join(data[:8]) or f"no data file ({', '.join(DATA_SUFFIXES)})"
        of = f" of config {config}" if config else ""
        raise ConfigError(f"{where} has nothing for split {split!r}{of}; it holds {found}")
    shards = {name: _without_shard(name) for name in chosen}
    sets = sorted({whole for whole, _ in shards.values()})
    if len(sets) > 1:
        raise ConfigError(
            f"{where} holds several data sets for split {split!r}: {', '.join(sets[:6])}; name "
            "one of them"
        )
    for whole, count in shards.values():
        if count not in (None, len(chosen)):
            raise ConfigError(
                f"{where} has {len(chosen)} of {count} shards of {whole}; get the rest"
            )
    return chosen


def _words(name: str) -> set[str]:
    """Return the words of a path: `data/train-00000-of-00002.parquet` has `train`,
    `LeetCodeDataset-v0.3.1-test.jsonl.gz` has `test`."""
    return {word for part in PurePath(name).parts for word in re.split(r"[-_.]", part)}


def _without_shard(name: str) -> tuple[str, int | None]:
    """Return a path without its shard number, and the number of shards that it states (None: it
    states none)."""
    path = PurePath(name)
    suffix = max((each for each in DATA_SUFFIXES if path.name.endswith(each)), key=len, default="")
    stem = path.name.removesuffix(suffix)
    shard = _SHARD.search(stem)
    count = int(shard[2]) if shard and shard[2] else None
    return str(path.with_name(_SHARD.sub("", stem) + suffix)), count
