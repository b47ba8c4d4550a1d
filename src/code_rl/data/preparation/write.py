"""Stage `write`: the splits and the manifest. The same problems and settings give the same
bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import chz

from code_rl.data.dataset import MANIFEST, PREPARED, Dataset, read_prepared
from code_rl.data.preparation.settings import NO_DATA, PrepareConfig
from code_rl.data.preparation.workspace import Candidate, Decision, OnItem, Workspace
from code_rl.grading import Problem
from code_rl.grading.native import write_problems
from code_rl.util.data_files import file_sha256
from code_rl.util.errors import ConfigError
from code_rl.util.files import sync_directory, write_atomically
from code_rl.util.version import __version__

VERSION = 1
SPLITS = ("train", "test")


def split_of(problem_id: str, test_share: float, seed: int) -> str:
    """Return 'test' for the share of ids (0 to 1) that seed and id decide, else 'train'. A
    problem's split does not depend on the other problems."""
    place = hashlib.blake2b(f"{seed}/{problem_id}".encode(), digest_size=8).digest()
    return "test" if int.from_bytes(place, "big") / 2**64 < test_share else "train"


async def run_write(
    workspace: Workspace, candidates: Sequence[Candidate], on_item: OnItem
) -> list[Decision]:
    """Write every remaining problem to its split in `out`, in order, then the manifest; every
    decision keeps. A file gets its name once it is complete, and splits of an earlier run that are
    not written again are deleted. Raises OSError."""
    config, out = workspace.config, workspace.out
    members: dict[str, list[Candidate]] = {name: [] for name in SPLITS}
    for one in candidates:
        members[split_of(one.entry.id, config.test_share, config.seed)].append(one)

    def problems(name: str) -> Iterator[Problem]:
        """Yield the problems of a split as they are written, in order, and call `on_item` after
        each."""
        for one in members[name]:
            yield workspace.load(one)
            on_item()

    splits: dict[str, Any] = {}
    for name in filter(members.get, SPLITS):
        file = out / f"{name}.{config.format}"
        part = workspace.work / file.name
        count = write_problems(part, problems(name))
        part.replace(file)
        sync_directory(out)
        splits[name] = {"file": file.name, "problems": count, "sha256": file_sha256(file)}
    written = {split["file"] for split in splits.values()}
    for each in (read_prepared(out) or {"splits": {}})["splits"].values():
        if each["file"] not in written:
            (out / Path(each["file"]).name).unlink(missing_ok=True)
    write_atomically(out / MANIFEST, json.dumps(_manifest(workspace, splits), indent=1) + "\n")
    return [Decision()] * len(candidates)


def check_replaced(config: PrepareConfig, source: Dataset) -> None:
    """Raise ConfigError if `out` contains the input data or the problems of another data set.
    Nothing is written."""
    out = Path(config.out).expanduser()
    if any(
        file.resolve().parent == out.resolve() for each in source.sources for file in each.files
    ):
        raise ConfigError(
            f"out={out} is where dataset={config.dataset} lies, which would be overwritten; "
            "choose another folder"
        )
    earlier = read_prepared(out) or {}
    other = earlier.get("settings", {}).get("dataset", config.dataset)
    if other != config.dataset and earlier.get("provenance") != source.provenance():
        raise ConfigError(
            f"out={out} holds what was prepared of dataset={other}; choose another folder"
        )


def _manifest(workspace: Workspace, splits: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest as JSON data. It has no times, so the same data and settings give the
    same manifest."""
    settings = {
        name: value for name, value in chz.asdict(workspace.config).items() if name not in NO_DATA
    }
    return {
        "format": PREPARED,
        "version": VERSION,
        "code_rl": __version__,
        "splits": splits,
        "settings": settings,
        "provenance": workspace.dataset.provenance(),
    }
