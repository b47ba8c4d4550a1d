"""What `code-rl eval` keeps: a folder of samples and verdicts, and of conversations under way."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from code_rl.evaluation.replay import OFFICIAL
from code_rl.evaluation.samples import Key, Sample, sample_from_json
from code_rl.reward.verdict import Verdict, VerdictKind
from code_rl.runs.files import JsonLines, drop_torn_line, keep_lines, read_lines
from code_rl.runs.inflight import INFLIGHT, InFlight

SAMPLES = "samples.jsonl"
VERDICTS = "verdicts.jsonl"

Row = dict[str, Any]
"""One line of `verdicts.jsonl`."""


class Folder:
    """Every sample and verdict is in the folder `out` before the next step counts on it, so a cut evaluation goes on where it was."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self.inflight = InFlight(out / INFLIGHT)

    @cached_property
    def samples(self) -> JsonLines:
        """`samples.jsonl`."""
        return JsonLines(self._out / SAMPLES)

    @cached_property
    def verdicts(self) -> JsonLines:
        """`verdicts.jsonl`."""
        return JsonLines(self._out / VERDICTS)

    def left(self, wanted: Callable[[Key], bool]) -> Iterator[tuple[Sample, Row | None]]:
        """Samples that an earlier process left, each once, with the verdict about itself if it has one.

        Verdicts that are none, and those of samples that are gone, leave the file: they are about to be given again.
        """
        samples, verdicts = self._out / SAMPLES, self._out / VERDICTS
        for path in (samples, verdicts):
            drop_torn_line(path)
        rows = {_key(row): row for row in read_lines(verdicts) if row["verdict"] != VerdictKind.SANDBOX_ERROR}
        have: set[Key] = set()
        for row in read_lines(samples):
            sample = sample_from_json(row)
            if wanted(sample.key) and sample.key not in have:
                have.add(sample.key)
                yield sample, rows.get(sample.key)
        if verdicts.exists():
            keep_lines(verdicts, lambda row: _key(row) in have and _key(row) in rows)

    def close(self, *, complete: bool) -> None:
        """Close every file. When all is `complete`, nothing is under way any more."""
        self.samples.close()
        self.verdicts.close()
        if complete:
            shutil.rmtree(self.inflight.folder, ignore_errors=True)


def _key(row: Mapping[str, Any]) -> Key:
    return row["problem_id"], row["mode"], row["sample"]


def verdict_row(sample: Sample, own: Verdict, official: Verdict | None, format_ok: bool) -> Row:
    """One line of `verdicts.jsonl`."""
    failure = own.failure
    row: Row = {
        "problem_id": sample.problem_id,
        "mode": sample.mode,
        "sample": sample.sample,
        "verdict": own.kind.value,
        "passed": own.passed,
        "total": own.total,
        "failure": failure and {"test": failure.test, "public": failure.public, "message": failure.message},
        "format_ok": format_ok,
        "cpu_s": round(own.cpu_s, 6),
        "wall_s": round(own.wall_s, 6),
        "rule": own.rule,
    }
    if official is not None:
        row[OFFICIAL] = official.kind.value
    return row
