"""Rows of the native format, in files and tables.

Beside the tests of `grading.native` they may have tests of the kind `assert`, which MBPP's reader
turns into calls: `{"kind": "assert", "code": "assert f(2) == 4"}`.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Mapping
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
from code_rl.util.data_files import short
from code_rl.util.errors import DataError

ASSERT = "assert"
_ASSERT_FIELDS = {"kind": TEXT, "code": TEXT, "public": FLAG}


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
        return problem_from_json(_without_asserts(fields, origin.where), origin.where)
    except DataError as error:
        raise RowError("bad_native_row", str(error)) from error


def _without_asserts(fields: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Return the fields with asserts as calls, and with the rule and the view that they need."""
    stored = fields.get("tests")
    tests: list[Any] = stored if isinstance(stored, list) else []
    kinds = [_kind(test) for test in tests]
    if ASSERT not in kinds:
        return fields
    stated: dict[int, list[ast.stmt]] = {}
    for index, test in enumerate(tests):
        if kinds[index] == ASSERT:
            here = f"{where}: tests[{index}]"
            code = read_fields(test, _ASSERT_FIELDS, ("kind", "code"), here)["code"]
            stated[index] = asserts.read_statements(code, f"{here}: code")
            if not any(isinstance(part, ast.Assert) for part in stated[index]):
                raise DataError(f"{here}: code={short(code)} has no assert")
    name = fields.get("fn_name") or _called(where, chain(*stated.values()))
    reader = asserts.AssertReader(str(name))
    found: dict[int, list[asserts.CallAssert]] = {}
    for index, body in stated.items():
        try:
            found[index] = asserts.read_asserts(reader, body)
        except RowError as error:
            raise DataError(f"{where}: tests[{index}]: code: {error}") from error
        if not found[index]:
            raise DataError(f"{where}: tests[{index}]: code has no assert about {name}")
    try:
        view = asserts.common_view(chain(*found.values()))
    except RowError as error:
        raise DataError(f"{where}: tests: {error}") from error
    meta = dict(fields.get("meta") or {})
    if view is not None:
        if len(found) < len(kinds):
            raise DataError(f"{where}: tests: an assert about {view} goes with asserts alone")
        meta["setup"] = meta.get("setup", "") + asserts.view_setup(str(name), view)
    calls = [
        [test_to_json(one) | {"public": test.get("public", False)} for one in found[index]]
        if index in found
        else [test]
        for index, test in enumerate(tests)
    ]
    rest = {"tests": [one for group in calls for one in group], "fn_name": name, "meta": meta}
    return {"compare": "python", **fields, **rest}


def _kind(test: Any) -> Any:
    return test.get("kind") if isinstance(test, dict) else None


def _called(where: str, statements: Iterable[ast.stmt]) -> str:
    """Return the one function that every assert calls by name and Python does not define. Raises
    DataError."""
    called = [
        {
            part.func.id
            for part in ast.walk(statement)
            if isinstance(part, ast.Call) and isinstance(part.func, ast.Name)
        }
        for statement in statements
        if isinstance(statement, ast.Assert)
    ]
    names = set.intersection(*called) - set(dir(builtins)) if called else set[str]()
    if len(names) != 1:
        raise DataError(
            f"{where}: fn_name is missing, and the asserts do not all call one function; found "
            f"{sorted(names)}"
        )
    return names.pop()
