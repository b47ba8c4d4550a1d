"""A card of checks: what each was given, what was expected and what came, in words that whoever is checked can use."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Literal

Status = Literal["passed", "variant", "missing", "failed"]
_MARKS = {"passed": "ok", "variant": "variant", "missing": "missing", "failed": "FAILED"}


@dataclass(frozen=True, slots=True)
class Check:
    """One property of one part. `variant`: another choice, not a mistake; `missing`: optional, and not there. `mistake` names what was recognised."""

    part: str
    name: str
    status: Status = "passed"
    mistake: str = ""
    says: str = ""
    given: str = ""
    expected: str = ""
    got: str = ""

    def lines(self) -> list[str]:
        """For a terminal."""
        first = f"{_MARKS[self.status]:8} {self.part:20} {self.name}"
        more = [(word, getattr(self, word)) for word in ("given", "expected", "got")]
        told = [self.says] if self.says else []
        return [first, *(" " * 9 + line for line in told + [f"{word}: {text}" for word, text in more if text])]


def found(
    part: str, name: str, mistake: str, *told: object, status: Status = "failed", words: Mapping[str, object] = {}
) -> Check:
    """A check that found `mistake`; `told`: given, expected, got. What it says stands in messages.toml, with `words` in its places."""
    says = _messages()[mistake].format_map(words)
    return Check(one_line(part), one_line(name), status, mistake, one_line(says), *map(shown, told))


def verdict(fine: bool, part: str, name: str, mistake: str, *told: object) -> Check:
    """Passed, or that mistake."""
    return Check(part, name) if fine else found(part, name, mistake, *told)


@cache
def _messages() -> dict[str, str]:
    tables = tomllib.loads((resources.files("code_rl.audit") / "messages.toml").read_text("utf-8"))
    return {name: text for table in tables.values() for name, text in table.items()}


@dataclass(slots=True)
class Checklist:
    """All checks of one target, said as they come."""

    kind: str
    target: str
    say: Callable[[str], None]
    checks: list[Check] = field(default_factory=list)

    def add(self, checks: Iterable[Check]) -> None:
        """Keep them, and say them."""
        for check in checks:
            self.checks.append(check)
            for line in check.lines():
                self.say(line)

    @property
    def clean(self) -> bool:
        """Whether nothing failed."""
        return not any(check.status == "failed" for check in self.checks)

    def mistakes(self) -> set[str]:
        """The names of what failed or differs."""
        return {check.mistake for check in self.checks if check.mistake}

    def findings(self) -> list[str]:
        """What failed, one line each."""
        return [f"{check.part}: {check.says or check.name}" for check in self.checks if check.status == "failed"]

    def parts(self) -> dict[str, list[Check]]:
        """In the order in which they came."""
        parts: dict[str, list[Check]] = {}
        for check in self.checks:
            parts.setdefault(check.part, []).append(check)
        return parts

    def to_json(self) -> dict[str, Any]:
        """As in `audit.json`."""
        counts = {
            part: {status: sum(c.status == status for c in checks) for status in _MARKS}
            for part, checks in self.parts().items()
        }
        checks = [{name: value for name, value in asdict(check).items() if value} for check in self.checks]
        return {
            self.kind: self.target,
            "clean": self.clean,
            "findings": self.findings(),
            "parts": counts,
            "checks": checks,
        }


def shown(value: Any) -> str:
    """Numbers to five places, lists cut."""
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, list):
        return "[" + ", ".join(map(shown, value[:16])) + (", …]" if len(value) > 16 else "]")
    return one_line(str(value)[:200])


def one_line(text: str) -> str:
    """Somebody else's words on one line of a terminal or a page: control characters and lone surrogates escaped."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in " ".join(text.split())
    )
