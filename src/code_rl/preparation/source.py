"""The seam to the readers: one data set as a stream of items, with what is needed to say where it came from and to go on after a cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from code_rl.errors import DataError
from code_rl.problems.files import file_sha256
from code_rl.problems.sources.records import Item

BUILTIN = "builtin"


@dataclass(frozen=True, slots=True)
class Source:
    """A data set. `read(skip)` gives its items without the first `skip`, the same in every reading.

    `fingerprint` changes whenever the rows do; `provenance` is what a manifest says of it (JSON data).
    """

    fingerprint: str
    provenance: Any
    read: Callable[[int], Iterator[Item]] = field(repr=False)


def open_source(dataset: str, role: str = "train") -> Source:
    """The source named by `dataset`, as training reads it; `role` decides the split where the name does not.

    Raises ConfigError for an unknown name, split or revision, DataError for unusable files or no rows at all.
    """
    if dataset == BUILTIN:
        return _builtin()
    from code_rl.problems.dataset import open_dataset

    found = open_dataset(dataset, "test" if role == "test" else "train")
    if next(found.items(), None) is None:
        raise DataError(f"dataset={dataset} holds no rows")
    return Source(found.fingerprint(), [_portable(part) for part in found.provenance()], found.items)


def _builtin() -> Source:
    from code_rl import __version__
    from code_rl.problems.builtin import BuiltinTrainSet

    name = f"builtin {__version__}"
    return Source(
        name, [{"name": BUILTIN, "revision": __version__}], lambda skip: islice(BuiltinTrainSet(), skip, None)
    )


def _portable(part: dict[str, Any]) -> dict[str, Any]:
    """Local files by name and hash: where they lay on this machine is nobody's business."""
    files = [
        {"name": Path(file["path"]).name, "bytes": file["bytes"], "sha256": file_sha256(Path(file["path"]))}
        for file in part["files"]
    ]
    return {**part, "files": files}
