"""Public files from where their authors publish them: a pinned revision, a known hash, kept in the data folder."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tomllib
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from code_rl.errors import ConfigError, DataError
from code_rl.problems.files import data_folder, file_sha256

CHUNK = 1 << 20
TIMEOUT_S = 60.0
PUBLIC = Path(__file__).parents[1] / "problems" / "public.toml"
RAW = "https://raw.githubusercontent.com"


@dataclass(frozen=True, slots=True)
class Pinned:
    """One published file: where, at which revision, its SHA-256, and what it is called below the data folder."""

    url: str
    revision: str
    sha256: str
    kept_as: str

    @property
    def path(self) -> Path:
        """Where it is kept, or would be."""
        return data_folder() / self.kept_as


def public_files() -> dict[str, list[Pinned]]:
    """The files of each public set that `code-rl data fetch` knows."""
    with PUBLIC.open("rb") as file:
        sets = tomllib.load(file)
    return {
        name: [
            Pinned(
                url=f"{RAW}/{told['repository']}/{told['commit']}/{path}",
                revision=told["commit"],
                sha256=sha256,
                kept_as=f"{told.get('folder', name)}/{told.get('as', path.rpartition('/')[2])}",
            )
            for path, sha256 in told["files"].items()
        ]
        for name, told in sets.items()
    }


def public_file(kept_as: str) -> Pinned:
    """The public file that is kept under this name."""
    return next(file for files in public_files().values() for file in files if file.kept_as == kept_as)


def fetch(pinned: Pinned) -> Path:
    """The file in the data folder, downloaded once. Raises ConfigError when it cannot be had, DataError when it is another file."""
    target = pinned.path
    if target.is_file():
        if file_sha256(target) != pinned.sha256:
            raise DataError(
                f"{target} is not what {pinned.url} was (its SHA-256 differs); move it away, or set CODE_RL_DATA"
            )
        return target
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    digest = hashlib.sha256()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with urllib.request.urlopen(pinned.url, timeout=TIMEOUT_S) as response, partial.open("wb") as file:  # noqa: S310 - addresses are constants of this package
            while chunk := response.read(CHUNK):
                digest.update(chunk)
                file.write(chunk)
    except (OSError, urllib.error.URLError) as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise ConfigError(f"{pinned.url} cannot be downloaded ({error}); give a local copy with data=PATH") from error
    if digest.hexdigest() != pinned.sha256:
        partial.unlink()
        raise DataError(f"{pinned.url} has SHA-256 {digest.hexdigest()}, expected {pinned.sha256}; nothing was kept")
    partial.replace(target)
    return target
