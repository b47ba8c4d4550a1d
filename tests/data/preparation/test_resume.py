"""A prepare that is killed anywhere and run again loses at most the item in hand and leaves the same bytes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from code_rl.data.builtin import BuiltinTrainSet
from code_rl.grading.native import write_problems

RESULTS = ("train.jsonl", "test.jsonl", "manifest.json", "dropped.jsonl")
MOMENTS = (("index.jsonl", 9), ("verify.jsonl", 3), ("verify.jsonl", 12))
"""A file of the work folder and how many lines it has when the kill comes: during each stage, as far as one can aim."""


def noisy(folder: Path, total: int = 20) -> list[str]:
    """The words of a run on a small set with a problem for each stage to drop; `out` is still missing."""
    *sound, wrong, leaked = BuiltinTrainSet()[:total]
    spoiled = [
        dataclasses.replace(sound[0], id="copy", statement=f"{sound[0].statement}\nGood luck with it."),
        dataclasses.replace(wrong, solutions=("print('wrong')",)),
        dataclasses.replace(sound[1], id="short", statement="Add."),
    ]
    write_problems(folder / "noisy.jsonl", [*sound, leaked, *spoiled])
    write_problems(folder / "exams.jsonl", [dataclasses.replace(leaked, id="exam")])
    return [
        f"dataset={folder / 'noisy.jsonl'}",
        f"decontaminate={folder / 'exams.jsonl'}",
        "mutants=1",
        "test_share=0.3",
    ]


def start(words: list[str], out: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "code_rl.cli", "prepare", *words, f"out={out}"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)


def finish(words: list[str], out: Path) -> dict[str, bytes]:
    assert start(words, out).wait(240) == 0
    return {name: (out / name).read_bytes() for name in RESULTS if (out / name).exists()}


def kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)
    process.wait()


def kill_at(words: list[str], out: Path, file: str, lines: int) -> None:
    process = start(words, out)
    while process.poll() is None and _lines(out / "work" / file) < lines:
        time.sleep(0.001)
    kill(process)


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.slow
def test_killed_in_the_middle_of_each_stage_it_ends_with_the_same_bytes(tmp_path: Path) -> None:
    words = noisy(tmp_path)
    whole = finish(words, tmp_path / "whole")
    reasons = {json.loads(line)["reason"] for line in whole["dropped.jsonl"].splitlines()}
    assert reasons == {"duplicate", "contaminated", "reference_fails", "too_short"}
    for file, lines in MOMENTS:
        kill_at(words, tmp_path / "cut", file, lines)
    assert finish(words, tmp_path / "cut") == whole


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_killed_at_forty_random_moments_it_ends_with_the_same_bytes(tmp_path: Path) -> None:
    words = noisy(tmp_path, 60)
    started = time.perf_counter()
    whole = finish(words, tmp_path / "whole")
    length = time.perf_counter() - started
    rng = random.Random(3)
    for tried in range(8):
        out = tmp_path / f"cut{tried}"
        for _ in range(5):
            process = start(words, out)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(rng.uniform(0.2, length))
            kill(process)
        assert finish(words, out) == whole
