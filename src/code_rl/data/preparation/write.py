"""Stage `write`: the splits and the manifest. The same problems and settings give the same
bytes."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import chz

from code_rl.data.dataset import MANIFEST, PREPARED, Dataset, read_prepared
from code_rl.data.preparation.bench import Bench, Survivor
from code_rl.data.preparation.ledger import KEEP, Decision, OnItem
from code_rl.data.preparation.settings import NO_DATA, PrepareConfig
from code_rl.grading.native import (
    NATIVE_FIELDS,
    NESTED,
    format_problem,
    parse_problem,
    problem_to_json,
)
from code_rl.util.data_files import file_sha256
from code_rl.util.errors import ConfigError, install_command
from code_rl.util.files import sync_directory, write_atomically
from code_rl.util.version import __version__

VERSION = 1
SPLITS = ("train", "test")
ROWS_A_GROUP, BYTES_A_GROUP = 64, 16 << 20


def split_of(problem_id: str, test_share: float, seed: int) -> str:
    """'test' for a share of ids that seed and id decide, else 'train': a problem stays in its split
    whatever else is in the set."""
    place = hashlib.blake2b(f"{seed}/{problem_id}".encode(), digest_size=8).digest()
    return "test" if int.from_bytes(place, "big") / 2**64 < test_share else "train"


async def run_write(bench: Bench, survivors: Sequence[Survivor], on_item: OnItem) -> list[Decision]:
    """Write every survivor to its split, then the manifest."""
    config = bench.config
    chosen: dict[str, list[Survivor]] = {name: [] for name in SPLITS}
    for survivor in survivors:
        chosen[split_of(survivor.entry.id, config.test_share, config.seed)].append(survivor)
    splits = {}
    for name, members in chosen.items():
        file = bench.out / f"{name}.{config.format}"
        if members:
            _write_split(bench, name, members, file, on_item)
            splits[name] = {
                "file": file.name,
                "problems": len(members),
                "sha256": file_sha256(file),
            }
    for each in (read_prepared(bench.out) or {"splits": {}})["splits"].values():
        if each["file"] not in [split["file"] for split in splits.values()]:
            (bench.out / Path(each["file"]).name).unlink(missing_ok=True)
    write_atomically(
        bench.out / MANIFEST, json.dumps(_manifest(bench, survivors, splits), indent=1) + "\n"
    )
    return [KEEP] * len(survivors)


def check_replaced(config: PrepareConfig, source: Dataset) -> None:
    """Raise ConfigError where `out` holds the data themselves, or the problems of another data
    set."""
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


def _write_split(
    bench: Bench, name: str, members: Sequence[Survivor], file: Path, on_item: OnItem
) -> None:
    """The lines, then the file in its format, under its name once it is whole."""
    part = bench.work / f"{name}.part"
    with part.open("wb") as stream:
        for survivor in members:
            stream.write(format_problem(bench.load(survivor)).encode("ascii") + b"\n")
            on_item()
        stream.flush()
        os.fsync(stream.fileno())
    if bench.config.format == "jsonl":
        part.replace(file)
    else:
        temporary = bench.work / f"{name}.tmp"
        (_compress if bench.config.format == "jsonl.gz" else _write_parquet)(part, temporary)
        temporary.replace(file)
        part.unlink()
    sync_directory(bench.out)


def _compress(source: Path, target: Path) -> None:
    import gzip
    import shutil

    with (
        source.open("rb") as plain,
        target.open("wb") as raw,
        gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed,
    ):
        shutil.copyfileobj(plain, packed, 1 << 20)


def check_format(config: PrepareConfig) -> None:
    """Raise ConfigError when the format needs a package that is not here."""
    if config.format == "parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ConfigError(
            f"format=parquet needs pyarrow: {install_command('data')}, or use format=jsonl"
        )


def _write_parquet(source: Path, target: Path) -> None:
    """One column a native field; a few rows a group, so that memory stays bounded."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    numbers = {"time_limit_s": pa.float64(), "memory_limit_mb": pa.int64()}
    schema = pa.schema([(name, numbers.get(name, pa.string())) for name in NATIVE_FIELDS])
    with ParquetWriter(target, schema, compression="zstd") as writer:
        for rows in _row_groups(source):
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))


def _row_groups(source: Path) -> Iterator[list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    held = 0
    with source.open("rb") as stream:
        for line in stream:
            row = problem_to_json(parse_problem(line, source.name))
            rows.append(row | {name: json.dumps(row[name]) for name in NESTED})
            held += len(line)
            if len(rows) >= ROWS_A_GROUP or held >= BYTES_A_GROUP:
                yield rows
                rows, held = [], 0
    if rows:
        yield rows


def _manifest(
    bench: Bench, survivors: Sequence[Survivor], splits: dict[str, Any]
) -> dict[str, Any]:
    """No times in it: the same data and settings give the same manifest."""
    settings = {
        name: value for name, value in chz.asdict(bench.config).items() if name not in NO_DATA
    }
    return {
        "format": PREPARED,
        "version": VERSION,
        "code_rl": __version__,
        "splits": splits,
        "settings": settings,
        "provenance": bench.dataset.provenance(),
        "problems_by_source": dict(
            sorted(Counter(s.entry.source or "unnamed" for s in survivors).items())
        ),
    }
