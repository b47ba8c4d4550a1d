"""Typed access to the fields of one JSON object, with errors that name field, value and remedy."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Mapping
from typing import Any

from code_rl.errors import DataError
from code_rl.problems.files import short
from code_rl.settings import suggestion

MOST_SECONDS, MOST_MEGABYTES = 3600.0, 1 << 20
"""No limit of a problem is larger: an hour, a terabyte. Kernels take no numbers without end."""


class Row:
    """Typed access to the fields of one JSON object; each method raises DataError for a value of another type."""

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        self.data = data
        self.where = where

    def wrong(self, name: str, wanted: str) -> DataError:
        """The error to raise: `name` must be what is `wanted`."""
        return DataError(f"{self.where}: {name}={short(self.data.get(name))} must be {wanted}")

    def text(self, name: str, default: str) -> str:
        """A string."""
        value = self.data.get(name, default)
        if not isinstance(value, str):
            raise self.wrong(name, "a string")
        return value

    def filled_text(self, name: str) -> str:
        """A string that is not blank."""
        value = self.text(name, "")
        if not value.strip():
            raise self.wrong(name, "a string that is not blank")
        return value

    def optional_text(self, name: str) -> str | None:
        """None, or a string that is not blank."""
        value = self.data.get(name)
        if value is not None and not (isinstance(value, str) and value.strip()):
            raise self.wrong(name, "null or a string that is not blank")
        return value

    def items(self, name: str) -> list[Any]:
        """A list."""
        value = self.data.get(name, [])
        if not isinstance(value, list):
            raise self.wrong(name, "a list")
        return value

    def texts(self, name: str) -> list[str]:
        """A list of strings."""
        value = self.data.get(name, [])
        if not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
            raise self.wrong(name, "a list of strings")
        return value

    def seconds(self, name: str, default: float) -> float:
        """A time limit."""
        number = self.number(name, default)
        if not 0 < number <= MOST_SECONDS:
            raise self.wrong(name, f"a number of seconds above 0, at most {MOST_SECONDS:g}")
        return number

    def number(self, name: str, default: float) -> float:
        """A finite number, 0 or more."""
        value = self.data.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max:
            raise self.wrong(name, "a finite number, 0 or more")
        return float(value)

    def tolerance(self, name: str) -> float | None:
        """A finite number, 0 or more; None when it is not given."""
        return None if self.data.get(name) is None else self.number(name, 0.0)

    def flag(self, name: str) -> bool:
        """A bool, false when it is not given."""
        value = self.data.get(name, False)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def megabytes(self, name: str, default: int) -> int:
        """A memory limit."""
        value = self.data.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MOST_MEGABYTES:
            raise self.wrong(name, f"a whole number of megabytes above 0, at most {MOST_MEGABYTES}")
        return value

    def date(self, name: str) -> str | None:
        """None, or a date."""
        value = self.data.get(name)
        if value is None:
            return None
        try:
            if datetime.date.fromisoformat(value).isoformat() != value:
                raise ValueError
        except (TypeError, ValueError):
            raise self.wrong(name, "null or a date as YYYY-MM-DD") from None
        return str(value)

    def meta(self, name: str) -> dict[str, Any]:
        """An object; the sources in it are text."""
        value = self.data.get(name, {})
        if not isinstance(value, dict):
            raise self.wrong(name, "an object")
        for key in ("preamble", "setup"):
            if not isinstance(value.get(key, ""), str):
                raise DataError(f"{self.where}: meta.{key}={short(value[key])} must be source text")
        return value


def check_fields(data: Mapping[str, Any], known: tuple[str, ...], required: tuple[str, ...], where: str) -> None:
    """Raise DataError for a field that is missing or unknown; one that is both is taken for misspelt."""
    missing = [name for name in required if name not in data]
    unknown = [name for name in data if name not in known]
    if unknown:
        alone = missing[0] if len(missing) == len(unknown) == 1 else None
        meant = f", did you mean {alone!r}?" if alone else suggestion(unknown[0], missing or known)
        also = f"; {missing[0]} is missing" if missing and alone is None else ""
        raise DataError(
            f"{where}: field {short(unknown[0])} is unknown{meant}{also}; known are {', '.join(known)} "
            "(anything else goes in a problem's meta)"
        )
    if missing:
        raise DataError(f"{where}: {missing[0]} is missing")
