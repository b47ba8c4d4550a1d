"""Names of parts that a user may bring: a name of ours, or `package.module:object`."""

from __future__ import annotations

import contextlib
import inspect
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from pkgutil import resolve_name
from typing import TypeVar, cast

from code_rl.util.errors import CodeRLError, ConfigError
from code_rl.util.suggestion import suggestion

T = TypeVar("T")
LARGEST = 1e38
"""What 32 bits hold, as they do rewards, advantages and log-probabilities in a datum."""


GIVEN = "given:"
"""Begins the name of an object that this process was given, and that no other can import."""
_given: dict[str, object] = {}
"""By a name that no other object ever has, so that a run keeps its own."""


def name_object(setting: str, value: object) -> str:
    """A name under which `find` has an object that `setting=` was given: `package.module:object`
    where it can be imported, else one that holds in this process alone."""
    module, name = getattr(value, "__module__", ""), getattr(value, "__qualname__", "")
    with contextlib.suppress(Exception):  # an attribute may raise what it likes
        if name and module != "__main__" and resolve_name(f"{module}:{name}") is value:
            return f"{module}:{name}"
    known = (given for given, each in _given.items() if each is value)
    given = next(known, None) or f"{GIVEN}{setting}_{secrets.token_hex(4)}"
    _given[given] = value
    return given


def require_given(settings: Mapping[str, object]) -> None:
    """Raise ConfigError for objects among `settings` that this process was not given."""
    missing = [
        f"{setting}=…"
        for setting, name in settings.items()
        if isinstance(name, str) and name.startswith(GIVEN) and name not in _given
    ]
    if missing:
        raise ConfigError(
            f"{', '.join(missing)} had objects of another process, which cannot be found again: "
            f"give them as then, code_rl.train({', '.join(missing)})"
        )


def find(setting: str, name: str, ours: Mapping[str, T]) -> T:
    """Return the object that `setting=name` means. The working directory is searched for modules
    too.

    Raises ConfigError: no part of ours has that name, the module cannot be imported, or it has no
    such object.
    """
    if name in ours:
        return ours[name]
    if name in _given:
        return cast(T, _given[name])
    require_given({setting: name})
    if ":" not in name:
        raise ConfigError(
            f"unknown {setting} {name!r}{suggestion(name, ours)}; there are: {', '.join(ours)}; "
            "or package.module:object for your own"
        )
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = resolve_name(name)
    except (Exception, SystemExit) as error:  # a user's module raises what it likes
        raise ConfigError(
            f"{setting}={name} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    return cast(T, found)


def about(part: object) -> tuple[str, str]:
    """Return a part's description: its `about`, or the first line of its docstring; and the rest,
    its source."""
    first, _, rest = (getattr(part, "about", "") or inspect.getdoc(part) or "").partition("\n")
    return first[:1].lower() + first[1:].rstrip("."), " ".join(rest.split()).rstrip(".")


@contextlib.contextmanager
def attribute_errors_to(setting: str, name: str) -> Iterator[None]:
    """Turn any exception of a user's part into a ConfigError that names the part."""
    try:
        yield
    except CodeRLError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{setting}={name} failed: {type(error).__name__}: {error}") from error


def require_finite(values: Sequence[float], what: str) -> None:
    """Raise ValueError for the first of `values` that is NaN or infinite, or would be in 32
    bits."""
    for index, value in enumerate(values):
        if not abs(value) <= LARGEST:
            raise ValueError(
                f"{what} {index} is {value}; every {what} must be a finite number, {LARGEST:.0e} "
                "at most"
            )
