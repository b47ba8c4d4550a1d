"""Rows in a file, read and judged as a run does it: in one sandbox and one event loop for all tests of a file."""

from __future__ import annotations

import asyncio
import json

import pytest

from code_rl.data import load_dataset, open_dataset
from code_rl.grading import judge_async
from tests.boxes import shared_box


class Court:
    """Reads rows as `dataset=` does, and judges programs."""

    def __init__(self, folder):
        self._runner = asyncio.Runner()
        self._folder, self._files = folder, 0
        self.executor = shared_box(concurrency=2)

    def run(self, coroutine):
        return self._runner.run(coroutine)

    def dataset(self, *rows):
        """The data set of a new file `set.jsonl`."""
        self._files += 1
        path = self._folder / str(self._files) / "set.jsonl"
        path.parent.mkdir()
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return open_dataset(str(path))

    def item(self, row):
        """The reader's result for a row, before any solution has run."""
        (found,) = self.dataset(row)
        return found

    def load(self, *rows):
        """The problems of rows, whose solutions have run where they decide."""
        return self.run(load_dataset(self.dataset(*rows), self.executor, lambda _: None))

    def problem(self, row):
        (found,) = self.load(row)
        return found

    def verdicts(self, problem, *programs):
        return [self.run(judge_async(problem, program, self.executor)).kind.value for program in programs]

    def close(self):
        self._runner.close()


@pytest.fixture(scope="module")
def court(tmp_path_factory):
    made = Court(tmp_path_factory.mktemp("rows"))
    yield made
    made.close()
