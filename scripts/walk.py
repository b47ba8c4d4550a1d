"""Files of the package that one training step, and one judged program, run through.

    python -m scripts.walk [list=true]

A meter of how far a reader walks. It traces a run of three steps on the built-in problems, from the start of its second step to the
start of the third, and the judging of a second program in a sandbox that already runs. Work inside the sandbox is not traced.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import code_rl
from code_rl import Problem, StdinTest, judge_async
from code_rl.grading.sandbox import connect_executor

PACKAGE = str(Path(code_rl.__file__).parent)
SETTINGS: dict[str, Any] = {
    "backend": "embedded", "executor": "embedded", "max_steps": 3, "batch_size": 16, "group_size": 4,
    "max_tokens": 64, "eval_every": -1, "save_every": 1, "threads": 1,
}  # fmt: skip


class Walk:
    """Collects the files of the package in which a function is called while it is `open`."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.open = False

    def note(self, frame: FrameType, event: str, _argument: object) -> None:
        """Note a call; a profile function."""
        name = frame.f_code.co_filename
        if event == "call" and self.open and name.startswith(PACKAGE):
            self.files.add(name.removeprefix(f"{PACKAGE}/"))

    def trace(self, profile: Callable[[FrameType, str, Any], None], work: Callable[[], object]) -> list[str]:
        """Return the files that `work` runs through while the walk is open."""
        threading.setprofile(profile)
        sys.setprofile(profile)
        try:
            work()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        return sorted(self.files)


def step_files() -> list[str]:
    """Return the files of one training step."""
    walk, begun = Walk(), set[FrameType]()

    def profile(frame: FrameType, event: str, argument: object) -> None:
        # A coroutine is called again each time it goes on, in the same frame. The frames are kept:
        # the id of one that has ended may be another's.
        if event == "call" and frame.f_code.co_name == "train_on" and frame.f_code.co_filename.endswith("/loop.py"):
            begun.add(frame)
            walk.open = len(begun) == 2
        walk.note(frame, event, argument)

    with tempfile.TemporaryDirectory() as folder:
        return walk.trace(profile, lambda: code_rl.train(log_path=f"{folder}/run", **SETTINGS))


def judge_files() -> list[str]:
    """Return the files of one judged program."""
    problem, walk = Problem("sum", "", (StdinTest("1 2\n", "3\n"),)), Walk()

    async def work() -> None:
        executor = connect_executor("embedded")
        try:
            await judge_async(problem, "print(3)", executor)
            walk.open = True
            await judge_async(problem, "print(sum(map(int, input().split())))", executor)
            walk.open = False
        finally:
            await executor.aclose()

    return walk.trace(walk.note, lambda: asyncio.run(work()))


def main() -> None:
    """Print the counts, and with `list=true` the files."""
    for name, files in (("one training step", step_files()), ("one judged program", judge_files())):
        print(f"{name}: {len(files)} files")
        if "list=true" in sys.argv[1:]:
            print("".join(f"    {file}\n" for file in files), end="")


if __name__ == "__main__":
    main()
