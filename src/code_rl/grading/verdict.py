"""Verdicts: the judge's typed statements about one program, never just False."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class VerdictKind(enum.StrEnum):
    """The ten verdicts."""

    PASSED = "passed"
    WRONG_ANSWER = "wrong_answer"
    TIME_LIMIT = "time_limit"
    MEMORY_LIMIT = "memory_limit"
    OUTPUT_LIMIT = "output_limit"
    RUNTIME_ERROR = "runtime_error"
    COMPILE_ERROR = "compile_error"
    NO_CODE = "no_code"
    CHECKER_ERROR = "checker_error"
    """The problem's checker fails even on its own reference. Never rewarded, and masked; judging
    again gives the same."""
    SANDBOX_ERROR = "sandbox_error"
    """The sandbox failed. Never rewarded, and masked; judging again may give a verdict."""

    @property
    def undecided(self) -> bool:
        """True if the verdict says nothing about the program (`checker_error`, `sandbox_error`):
        its completion is left out of training."""
        return self in (VerdictKind.CHECKER_ERROR, VerdictKind.SANDBOX_ERROR)


@dataclass(frozen=True, slots=True)
class Failure:
    """The first failing test: its index, whether it is public, and a short message. `got` is the
    beginning of a wrong answer to a public test."""

    test: int
    public: bool
    message: str
    got: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """`passed` counts the tests passed before the first failure, or among all `total` tests if all
    were run. `rule` is the compare rule that was used."""

    kind: VerdictKind
    passed: int
    total: int
    rule: str
    failure: Failure | None = None
    cpu_s: float = 0.0
    wall_s: float = 0.0

    @property
    def correct(self) -> bool:
        """True if every test passed. An undecided verdict is not correct."""
        return self.kind is VerdictKind.PASSED

    @property
    def undecided(self) -> bool:
        """True if the verdict says nothing about the program: the sandbox failed, or the problem's
        checker is broken."""
        return self.kind.undecided

    def to_json(self) -> dict[str, Any]:
        """Return the row of a verdict file, with times in seconds. A wrong answer (`Failure.got`)
        is left out."""
        row = {"verdict": self.kind.value, "passed": self.passed, "total": self.total}
        names = ("test", "public", "message")
        failure = self.failure and {name: getattr(self.failure, name) for name in names}
        seconds = {"cpu_s": round(self.cpu_s, 6), "wall_s": round(self.wall_s, 6)}
        return {**row, "failure": failure, **seconds, "rule": self.rule}

    @classmethod
    def restore(cls, kept: Mapping[str, Any]) -> Verdict:
        """Return the verdict from its `dataclasses.asdict` after a round trip through JSON. Raises
        KeyError, TypeError or ValueError for anything else."""
        failure = None if kept["failure"] is None else Failure(**kept["failure"])
        values = {name: _tuples(value) for name, value in kept.items()}
        return cls(**{**values, "kind": VerdictKind(kept["kind"]), "failure": failure})


def _tuples(value: Any) -> Any:
    """Return `value` with JSON's lists as tuples, as in a frozen record."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
