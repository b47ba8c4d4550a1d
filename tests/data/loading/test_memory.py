"""Memory stays that of a few rows, however large the set: reading, packing and an epoch of training order, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pyarrow
import pyarrow.parquet
import pytest

ROWS, ROW_MB = 32, 3
SCRIPT = """
import asyncio, json, sys
from pathlib import Path
import pyarrow.parquet
from code_rl.data.load import load_dataset
from code_rl.data.dataset import open_dataset
from code_rl.data.order import ProblemOrder

def peak():
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024

async def main(small, large):
    for _ in await load_dataset(open_dataset(small), None):
        pass
    Path("/proc/self/clear_refs").write_text("5")  # a process begins with its parent's peak
    before = peak()
    problems = await load_dataset(open_dataset(large), None)
    order = ProblemOrder(problems, seed=1)
    seen = set()
    for step in range(len(problems)):
        (problem,) = order.batch(step, 1)
        seen.add((problem.id, len(problem.tests[0].input)))
    print(json.dumps({"grown": peak() - before, "rows": len(seen), "bytes": sum(size for _, size in seen)}))

asyncio.run(main(*sys.argv[1:]))
"""


def rows(count, size):
    for index in range(count):
        text = f"{index} " + "17 " * (size // 3)
        tests = json.dumps({"inputs": [text, "1"], "outputs": ["1", "1"]})
        yield {"problem": f"Number {index}.", "solutions": "[]", "tests": tests}


def write(path, count, size):
    if path.suffix == ".jsonl":
        with path.open("w") as stream:
            stream.writelines(json.dumps(row) + "\n" for row in rows(count, size))
        return path
    writer = None
    for row in rows(count, size):
        table = pyarrow.Table.from_pylist([row])
        writer = writer or pyarrow.parquet.ParquetWriter(path, table.schema)
        writer.write_table(table)
    writer.close()
    return path


@pytest.mark.long
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_set_of_large_rows_is_read_in_the_memory_of_a_few(tmp_path, suffix):
    small = write(tmp_path / f"small{suffix}", 2, 10)
    large = write(tmp_path / f"large{suffix}", ROWS, ROW_MB << 20)
    environment = {**os.environ, "CODE_RL_CACHE": str(tmp_path / "cache"), "ARROW_DEFAULT_MEMORY_POOL": "system"}
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(small), str(large)], env=environment, capture_output=True, text=True, timeout=240)  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["rows"] == ROWS
    assert report["bytes"] >= ROWS * ROW_MB * 0.99e6
    assert report["grown"] < ROWS * ROW_MB / 2, report
