"""Benchmark files from where their authors publish them: a pinned revision, a known hash, a local cache."""

from __future__ import annotations

import contextlib
import hashlib
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from code_rl.errors import ConfigError, DataError
from code_rl.problems.files import cache_folder

CHUNK = 1 << 20
TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Pinned:
    """One published file: where, at which revision, and its SHA-256."""

    url: str
    revision: str
    sha256: str

    @property
    def name(self) -> str:
        """The file's name."""
        return self.url.rsplit("/", 1)[1]


def fetch(pinned: Pinned) -> Path:
    """The file in the cache, downloaded once. Raises ConfigError when it cannot be had, DataError when it is another file."""
    target = cache_folder() / "files" / pinned.sha256[:16] / pinned.name
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    digest = hashlib.sha256()
    try:
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
