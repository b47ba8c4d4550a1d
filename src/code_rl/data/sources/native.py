"""Rows of the native format, in files and tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from code_rl.data.sources.records import Origin, RowError, from_json
from code_rl.grading import Problem
from code_rl.grading.native import FORMS, NATIVE_FIELDS, NESTED, problem_from_json, wrong_field
from code_rl.util.errors import DataError


def read_native(row: Mapping[str, Any], origin: Origin) -> Problem:
    """Read a row of a file or a table in the native format. Nested fields may be JSON text, and
    fields that are None count as absent. Raises RowError."""
    fields = {
        name: value for name, value in row.items() if value is not None or name not in NATIVE_FIELDS
    }
    try:
        for name in NESTED:
            value = fields.get(name)
            if isinstance(value, str) and (name != "compare" or value.lstrip()[:1] in ('"', "{")):
                try:
                    fields[name] = from_json(value, name)
                except RowError as error:
                    raise wrong_field(
                        name, value, f"{FORMS[name].wanted} (or JSON text of it)", origin.where
                    ) from error
        return problem_from_json(fields, origin.where)
    except DataError as error:
        raise RowError("bad_native_row", str(error)) from error
