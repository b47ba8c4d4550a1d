"""The facts about a setting: its default, meaning and range, when it may change, and which back
ends support it.

The fields of `Config` are declared with these. A resume and a back end read from them which
settings to refuse, and the tables of the documents are generated from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import chz

from code_rl.engine import BackendKind
from code_rl.util.options import Check, SandboxOptions

MUTABLE, FIXED = False, True
"""Whether a setting is fixed: a resume may not change it."""


@dataclass(frozen=True, slots=True)
class SupportedBackends:
    """The back ends that support a setting, its meaning there (empty: the same everywhere), and the
    message with which the others refuse it."""

    honoured: tuple[BackendKind, ...] = tuple(BackendKind)
    note: str = ""
    refusal: str = ""


ANYWHERE = SupportedBackends()
"""Settings of the loop, the sandbox and the run directory, the same on every back end."""


def everywhere(note: str) -> SupportedBackends:
    """Every back end supports the setting."""
    return SupportedBackends(note=note)


def embedded(note: str, refusal: str) -> SupportedBackends:
    """Only the embedded engine supports the setting."""
    return SupportedBackends((BackendKind.EMBEDDED,), note, refusal)


@dataclass(frozen=True, slots=True)
class SettingFacts:
    """The facts about a setting apart from its default and meaning. `fixed` is True if it may not
    change on a resume."""

    fixed: bool
    reach: SupportedBackends


def setting(
    default: Any, fixed: bool, reach: SupportedBackends, doc: str, check: Check | None = None
) -> Any:
    """A field of `Config`. `check` raises ConfigError for a value out of range."""
    return chz.field(
        default=default, doc=doc, validator=check, metadata={"facts": SettingFacts(fixed, reach)}
    )


def facts_of(cls: type[Any], inherited: Mapping[str, SettingFacts]) -> Mapping[str, SettingFacts]:
    """Return the facts about each field of a settings class: `inherited` ones, and those declared
    with `setting`. Options of the sandbox may change, on any back end. Raises TypeError for any
    other field."""
    shared = chz.chz_fields(SandboxOptions)
    found = dict(inherited)
    for name, field in chz.chz_fields(cls).items():
        if name in inherited:
            continue
        if not field.metadata and name not in shared:
            raise TypeError(
                f"{cls.__name__}.{name} does not say who honours it and when it may change: make "
                "it with setting()"
            )
        found[name] = (field.metadata or {}).get("facts", SettingFacts(MUTABLE, ANYWHERE))
    return found
