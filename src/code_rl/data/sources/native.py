"""Rows of the native format, in files and tables.

Beside the tests of `grading.native` they may have tests of the kind `assert`, which MBPP's reader
turns into calls: `{"kind": "assert", "code": "assert f(2) == 4"}`.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from itertools import chain
from typing import Any

from code_rl.data.sources import asserts
from code_rl.data.sources.records import Origin, RowError, from_json
from code_rl.grading import Problem
from code_rl.grading.native import (
    FLAG,
    FORMS,
    NATIVE_FIELDS,
    NESTED,
    TEXT,
    problem_from_json,
    read_fields,
    test_to_json,
    wrong_field,
)
from code_rl.util.errors import DataError

ASSERT = "assert"
_ASSERT_FIELDS = {"kind": TEXT, "code": TEXT, "public": FLAG}


def read_native(row: Mapping[str, Any], origin: Origin) -> Problem:
    """Read a row of a file or a table in the native format. Nested fields may be JSON text, and
    fields that are None count as absent. Raises RowError (`bad_native_row`), with the row's
    position and the field, for anything else."""
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
        return problem_from_json(_without_asserts(fields, origin.where), origin.where)
    except DataError as error:
        raise RowError("bad_native_row", str(error)) from error


def _without_asserts(fields: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Return the fields with asserts as calls, and with the rule and the view that they need;
    unchanged without asserts. Raises DataError, which begins with `where`, for asserts that cannot
    be read or stand beside other tests."""
    stored = fields.get("tests")
    tests: list[Any] = stored if isinstance(stored, list) else []
    are_asserts = [isinstance(test, dict) and test.get("kind") == ASSERT for test in tests]
    if not any(are_asserts):
        return fields
    if not all(are_asserts):
        raise DataError(f"{where}: tests: asserts go with asserts alone; make all tests asserts")
    bodies = []
    for index, test in enumerate(tests):
        here = f"{where}: tests[{index}]"
        code = read_fields(test, _ASSERT_FIELDS, ("kind", "code"), here)["code"]
        bodies.append(asserts.read_statements(code, f"{here}: code"))
    try:
        called = asserts.called_by_all(chain(*bodies)) - set(dir(builtins))
        name = str(fields.get("fn_name") or asserts.entry_point(called))
        reader = asserts.AssertReader(name)
        found = [asserts.read_asserts(reader, body) for body in bodies]
        view = asserts.common_view(chain(*found))
    except RowError as error:
        raise DataError(f"{where}: tests: {error}") from error
    if not all(found):
        raise DataError(f"{where}: tests[{found.index([])}]: code has no assert about {name}")
    calls = [
        test_to_json(call) | {"public": test.get("public", False)}
        for test, made in zip(tests, found, strict=True)
        for call, _ in made
    ]
    meta = asserts.with_view(fields.get("meta") or {}, name, view)
    return {"compare": "python", **fields, "tests": calls, "fn_name": name, "meta": meta}
