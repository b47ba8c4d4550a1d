"""What an evaluation keeps while it goes: nothing but conversations under way (the loop), or a folder of samples and verdicts."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from code_rl.evaluation.ask import Entry
from code_rl.evaluation.replay import OFFICIAL
from code_rl.evaluation.samples import Key, Mode, Sample, sample_from_json
from code_rl.reward.verdict import Verdict, VerdictKind
from code_rl.runs.files import JsonLines, drop_torn_line, keep_lines, read_lines
from code_rl.runs.inflight import INFLIGHT, InFlight, Slot

SAMPLES = "samples.jsonl"
VERDICTS = "verdicts.jsonl"

Row = dict[str, Any]
"""One line of `verdicts.jsonl`."""


@dataclass(frozen=True, slots=True)
class Work:
    """Samples of one problem, which has its `place` among all of one mode: those with `numbers` are asked for, those `waiting` only judged."""

    place: int
    entry: Entry
    mode: Mode
    total: int
    numbers: Sequence[int]
    waiting: Sequence[Sample] = ()


class Keeping:
    """Keeps what is under way in the slots of `slot`, and nothing else."""

    def __init__(self, slot: Callable[[Work], Slot] | None = None) -> None:
        self._slot = slot

    def open(self, wanted: Callable[[Key], bool]) -> list[tuple[Sample, Row | None]]:
        """Samples that an earlier process left, each once, with the verdict about itself if it has one."""
        del wanted
        return []

    def slot(self, work: Work) -> Slot:
        """Where the conversations of these samples are kept until they are done."""
        return Slot.nowhere() if self._slot is None else self._slot(work)

    def keep_samples(self, samples: Sequence[Sample]) -> None:
        """Keep what was answered just now."""

    def keep_verdict(self, row: Row) -> None:
        """Keep what was judged just now."""

    def done(self, work: Work) -> None:
        """All of these samples have verdicts."""

    def close(self, *, complete: bool) -> None:
        """Close every file. When all is `complete`, nothing is under way any more."""


class Folder(Keeping):
    """Every sample and verdict is in the folder `out` before the next step counts on it."""

    def __init__(self, out: Path) -> None:
        super().__init__()
        self._out = out

    @cached_property
    def _samples(self) -> JsonLines:
        return JsonLines(self._out / SAMPLES)

    @cached_property
    def _verdicts(self) -> JsonLines:
        return JsonLines(self._out / VERDICTS)

    @cached_property
    def _inflight(self) -> InFlight:
        return InFlight(self._out / INFLIGHT)

    def open(self, wanted: Callable[[Key], bool]) -> list[tuple[Sample, Row | None]]:
        """As of any keeping. Verdicts that are none, and those of samples that are gone, leave the file: they are about to be given again."""
        samples, verdicts = self._out / SAMPLES, self._out / VERDICTS
        for path in (samples, verdicts):
            drop_torn_line(path)
        rows = {_key(row): row for row in read_lines(verdicts) if row["verdict"] != VerdictKind.SANDBOX_ERROR}
        left: dict[Key, Sample] = {}
        for row in read_lines(samples):
            sample = sample_from_json(row)
            if wanted(sample.key):
                left.setdefault(sample.key, sample)
        if verdicts.exists():
            keep_lines(verdicts, lambda row: _key(row) in left and _key(row) in rows)
        return [(sample, rows.get(key)) for key, sample in left.items()]

    def slot(self, work: Work) -> Slot:
        """A file for each group, so that no more is read than is asked about."""
        return self._inflight.slot((work.place, 0, 0))

    def keep_samples(self, samples: Sequence[Sample]) -> None:
        """One line each."""
        for sample in samples:
            self._samples.append(sample.to_json())

    def keep_verdict(self, row: Row) -> None:
        """One line."""
        self._verdicts.append(row)

    def done(self, work: Work) -> None:
        """Forget the conversations."""
        if "_inflight" in vars(self):
            self._inflight.forget(work.place)

    def close(self, *, complete: bool) -> None:
        """As of any keeping."""
        self._samples.close()
        self._verdicts.close()
        if complete:
            shutil.rmtree(self._out / INFLIGHT, ignore_errors=True)


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
