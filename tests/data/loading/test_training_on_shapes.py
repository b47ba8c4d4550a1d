"""`train` on every kind of source: one real step of the tiny model over files of all shapes, a DeepCoder-shaped Parquet file among them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from code_rl.data.sources.shapes import shape_of
from tests.data.loading.raw_rows import SAMPLES
from tests.paths import ROOT

COLUMNS = ("problem", "solutions", "starter_code", "tests", "metadata")


def write_sources(folder):
    """One file a shape: DeepCoder's rows as the Parquet file that a concatenated set gives, the others as JSON Lines of several kinds."""
    by_shape: dict[str, list[dict]] = {}
    for sample in SAMPLES:
        by_shape.setdefault(shape_of(sample.row).name, []).append(sample.row)
    files = []
    for name, rows in by_shape.items():
        if name == "deepcoder":
            table = [{column: _text(row.get(column)) for column in COLUMNS} for row in rows]
            files.append(folder / "deepcoder.parquet")
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(table), files[-1])
            continue
        packed = name in ("apps", "livecodebench")
        files.append(folder / f"{name}.jsonl{'.zst' if packed else ''}")
        text = "".join(json.dumps(row) + "\n" for row in rows).encode()
        files[-1].write_bytes(zstandard.compress(text) if packed else text)
    return files


def _text(value):
    return value if value is None or isinstance(value, str) else json.dumps(value)


@pytest.mark.slow
def test_one_step_trains_on_every_shape(tmp_path):
    files = write_sources(tmp_path)
    words = [
        "train.py", "backend=embedded", "executor=embedded", "model_name=tiny", f"dataset={','.join(map(str, files))}",
        f"test_dataset={files[0]}", f"groups_per_batch={len(SAMPLES)}", "group_size=8", "max_tokens=48", "max_steps=1",
        "eval_limit=4", "eval_samples=1", "save_every=0", f"log_path={tmp_path / 'run'}",
    ]  # fmt: skip
    environment = {**os.environ, "CODE_RL_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr + done.stdout
    rollouts = [json.loads(line) for line in (tmp_path / "run" / "rollouts.jsonl").read_text().splitlines()]
    trained = {rollout["problem_id"] for rollout in rollouts if rollout["step"] == 0}
    assert len(trained) == len(SAMPLES)
    steps = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    step = next(row for row in steps if row["step"] == 0)
    assert step["n_datums"] > 0
    assert step["loss"] is not None
    assert not step.get("verdicts/sandbox_error")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["resolved"]["data"]["train"] == list(map(str, files))
