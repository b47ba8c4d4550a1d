"""The facts about a setting, once: default, meaning, range, when it may change, and which back ends
honour it.

`Config` is made of these; the refusals of a resume and of a back end, and the tables of the docs,
are read from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import chz

from code_rl.engine import BackendKind
from code_rl.util.setting import Check


class Change(Enum):
    """When a setting may change during the life of a run: on any resume, or never."""

    MUTABLE = "free"
    FIXED = "fixed"


MUTABLE, FIXED = Change


@dataclass(frozen=True, slots=True)
class SupportedBackends:
    """The back ends that honour a setting, its meaning there (empty: it is the loop's own), and the
    refusal of the others."""

    honoured: tuple[BackendKind, ...] = tuple(BackendKind)
    note: str = ""
    refusal: str = ""


ANYWHERE = SupportedBackends()
"""Settings of the loop, the sandbox and the run directory, the same on every back end."""


def everywhere(note: str) -> SupportedBackends:
    """It reaches every back end."""
    return SupportedBackends(note=note)


def embedded(note: str, refusal: str) -> SupportedBackends:
    """Only the embedded engine honours it."""
    return SupportedBackends((BackendKind.EMBEDDED,), note, refusal)


def hosted(note: str, refusal: str) -> SupportedBackends:
    """Only hosted Tinker honors it."""
    return SupportedBackends((BackendKind.TINKER,), note, refusal)


@dataclass(frozen=True, slots=True)
class SettingFacts:
    """The facts about a setting beside default and meaning."""

    change: Change
    reach: SupportedBackends

    @property
    def fixed(self) -> bool:
        """A resumed run keeps it."""
        return self.change is not MUTABLE


def setting(
    default: Any, change: Change, reach: SupportedBackends, doc: str, check: Check | None = None
) -> Any:
    """A field of `Config`. `check` raises ConfigError for a value out of range."""
    return chz.field(
        default=default, doc=doc, validator=check, metadata={"facts": SettingFacts(change, reach)}
    )


def facts_of(cls: type[Any]) -> Mapping[str, SettingFacts]:
    """Return the facts about each field of a settings class. Raises TypeError, naming it, for one
    that was not made by `setting`."""
    found = {}
    for name, field in chz.chz_fields(cls).items():
        if not field.metadata:
            raise TypeError(
                f"{cls.__name__}.{name} does not say who honours it and when it may change: make "
                "it with setting()"
            )
        found[name] = field.metadata["facts"]
    return found
