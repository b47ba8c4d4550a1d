"""The counts of a run, stage by stage, and their lines on the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from code_rl.data.preparation.decisions import Verdicts
from code_rl.util.progress import View

CARD = "card.md"


@dataclass(frozen=True, slots=True)
class Dropped:
    """One row that a stage dropped, and the evaluation set that has its problem."""

    id: str
    stage: str
    reason: str
    detail: str
    overlap: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StageReport:
    """One stage's counts. `went_in` and `came_out` count problems (for `normalise`, rows of the
    source)."""

    stage: str
    went_in: int
    came_out: int
    dropped: Sequence[Dropped]
    seconds: float = 0.0

    @property
    def reasons(self) -> dict[str, int]:
        """Return the number of dropped items by reason, most first."""
        return dict(Counter(one.reason for one in self.dropped).most_common())

    def to_json(self) -> dict[str, Any]:
        """Return the stage's object in the card."""
        return {
            "stage": self.stage,
            "in": self.went_in,
            "out": self.came_out,
            "dropped": self.reasons,
            "seconds": round(self.seconds, 3),
        }


@dataclass(slots=True)
class Report:
    """The whole run so far. `programs` has the verdicts of stage `verify`, by problem."""

    stages: list[StageReport] = field(default_factory=list)
    programs: dict[str, Verdicts] = field(default_factory=dict)

    @property
    def dropped(self) -> list[Dropped]:
        """Every dropped row, in order."""
        return [one for stage in self.stages for one in stage.dropped]


class PrepareView(View):
    """Shows a run."""

    def stage_done(self, stage: StageReport) -> None:
        """Print a stage's line."""
        reasons = ", ".join(f"{reason} {count}" for reason, count in stage.reasons.items())
        self.say(
            f"{stage.stage:>13}  {stage.went_in:>7} → {stage.came_out:<7} {stage.seconds:7.1f} s "
            f" {reasons or 'nothing dropped'}"
        )

    def farewell(self, out: Path, written: Mapping[str, int] | None) -> None:
        """Print where the output is; `written` has the problems of each split (None: the stage
        write did not run)."""
        self.say(f"card: {out / CARD}; every dropped row: {out / 'dropped.jsonl'}")
        if written is not None:
            splits = ", ".join(f"{count} in {name}" for name, count in written.items())
            if splits:
                self.say(f"read it back with dataset={out}: {splits}")
