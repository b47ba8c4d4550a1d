"""MBPP, its sanitized subset, MBPP+ (full and OriginFmt) and AceCoder: raw row to problem.

MBPP names its function only in its tests, so the first assert is part of the statement and its test is public, as EvalPlus shows it.
MBPP+ special oracles are kept as views: eight tasks compare as sets, three ask only whether something was found. Two of EvalPlus's
oracles forgive wrong references (`are_equivalent` accepts any answer, `sum_div` also accepts 0) and are not reproduced.

MBPP+ inputs are JSON, which has no tuple, set, complex number or integer key. The row shows the same base inputs twice, as JSON lists and as
Python literals in `assertion`: a `Cast` is learned from the literals, one for each argument and depth, and then applied to all inputs.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from code_rl.problems.problem import Problem
from code_rl.problems.sources.asserts import (
    AssertReader,
    asserted,
    read_asserts,
    read_statements,
    read_tables,
    tabled,
    view_setup,
)
from code_rl.problems.sources.records import Draft, Origin, Row, RowError, field, filled, make_problem, number, strings
from code_rl.problems.sources.testcases import MAX_SOLUTIONS, unfenced

SET_VIEWS = (
    "similar_elements", "find_char_long", "common_in_nested_lists", "extract_singly", "larg_nnum", "intersection_array", "find_dissimilar", "Diff",
)  # fmt: skip
FOUND_VIEWS = ("check_str", "text_match_three", "text_starta_endb")
DEEP_TUPLES = ("extract_even", "average_tuple", "remove_nested")
"""Tasks about tuples nested to any depth: deeper than their asserts show, lists of the JSON are tuples too."""

CONTAINERS = (list, tuple, set, frozenset)
NUMBERS = {int, float, complex}
COMPLEX_TEXT = re.compile(r"\(?[-+\d.e]*[-+\d.e]j\)?")
"""JSON has no complex numbers: where the asserts show only numbers, `"(1+2j)"` is one."""


def read_mbpp(row: Row, _origin: Origin) -> Problem:
    """An MBPP row, original (`text`) or sanitized (`prompt`)."""
    text = field(row, "text" if "text" in row else "prompt", str)
    solution, asserts = field(row, "code", str).replace("\r\n", "\n"), strings(row, "test_list")
    statements = [part for source in asserts for part in read_statements(source)]
    name = entry_point(solution, statements)
    imports = strings(row, "test_imports") if "test_imports" in row else []
    setup = "\n".join([*imports, str(row.get("test_setup_code") or "").replace("\r\n", "\n")]).strip()
    problem = _problem(row, "mbpp", name, _statement(row, text, asserts), solution=solution, setup=setup)
    return asserted(problem, list(read_asserts(AssertReader(name), statements)), public=1)


def read_mbpp_plus(row: Row, _origin: Origin) -> Draft:
    """An MBPP+ row (`base_input`, `plus_input`, `canonical_solution`)."""
    name, solution = field(row, "entry_point", str), field(row, "canonical_solution", str)
    asserts = [part for part in read_statements(field(row, "assertion", str)) if isinstance(part, ast.Assert)]
    reader = AssertReader(name)
    literal = [reader.arguments(part) for part in asserts]
    unseen = tuple if name in DEEP_TUPLES else list
    try:
        calls = cast_calls(literal, _calls(row, "base_input"), _calls(row, "plus_input"), unseen)
    except CastError as error:
        raise RowError("input_types_unknown", str(error)) from error
    problem = _problem(row, "mbppplus", name, field(row, "prompt", str).strip().strip('"').strip(), solution=solution)
    return Draft(problem, tuple(calls), solution, number(row, "atol"), public=1)


def read_mbpp_plus_origin(row: Row, _origin: Origin) -> Problem | Draft:
    """An MBPP+ row in the original format, whose `test` lists `inputs` and `results` (or a reference function)."""
    solution, asserts = field(row, "code", str), strings(row, "test_list")
    name = entry_point(solution, [part for source in asserts for part in read_statements(source)])
    inputs, results, atol = read_tables(read_statements(field(row, "test", str)))
    statement = _statement(row, field(row, "prompt", str), asserts)
    problem = _problem(row, "mbppplus-origin", name, statement, solution=solution)
    if results is not None and name in SET_VIEWS:
        results = [set(value) for value in results]
    return tabled(problem, inputs, results, atol, public=1)


def read_acecode(row: Row, origin: Origin) -> Problem:
    """An AceCoder row: `question`, `test_cases` (asserts), perhaps `inferences`, of which those that pass every test are solutions."""
    statements = [part for source in strings(row, "test_cases") for part in read_statements(source)]
    name = entry_point(None, statements)
    passing = [one for one in row.get("inferences") or () if isinstance(one, Mapping) and one.get("pass_rate") == 1.0]
    known = tuple(unfenced(str(one.get("completion", ""))) for one in passing[:MAX_SOLUTIONS])
    problem = make_problem(origin, row.get("id"), filled(row, "question").strip(), fn_name=name, solutions=known)
    return asserted(problem, list(read_asserts(AssertReader(name), statements)))


def _row_id(row: Row) -> str:
    task_id = str(row.get("task_id", "?"))
    return task_id if task_id.startswith("Mbpp/") else f"Mbpp/{task_id}"


def _problem(row: Row, source: str, name: str, statement: str, *, solution: str, setup: str = "") -> Problem:
    view = "set" if name in SET_VIEWS else "found" if name in FOUND_VIEWS else None
    if view is not None and source.startswith("mbppplus"):
        setup += view_setup(name, view)
    meta = {"setup": setup} if setup else {}
    return Problem(_row_id(row), statement, (), fn_name=name, solutions=(solution,), source=source, meta=meta)


def _statement(row: Row, text: str, asserts: list[str]) -> str:
    if not asserts:
        raise RowError("no_tests", _row_id(row))
    return f"{text.strip()}\n\nYour code should pass this test:\n{asserts[0].strip()}"


def entry_point(solution: str | None, statements: list[ast.stmt]) -> str:
    """The function that the tests call: the one name that every assert calls and `solution` (None: not Python) defines at the top.

    Raises RowError when there is none, or more than one.
    """
    called: set[str] | None = None
    for statement in statements:
        if isinstance(statement, ast.Assert):
            calls = (part.func for part in ast.walk(statement) if isinstance(part, ast.Call))
            names = {function.id for function in calls if isinstance(function, ast.Name)}
            called = names if called is None else called & names
    if solution is None:
        candidates = sorted((called or set()) - set(dir(builtins)))
    else:
        defined = {part.name for part in read_statements(solution) if isinstance(part, ast.FunctionDef)}
        candidates = sorted(defined & (called or set()))
    if len(candidates) != 1:
        raise RowError("entry_point_unclear", f"candidates {candidates}")
    return candidates[0]


def _calls(row: Row, name: str) -> list[list[Any]]:
    """The inputs under `name`. One row of the set writes its empty list of inputs as an empty object."""
    if row.get(name) == {}:
        return []
    calls = field(row, name, list)
    if not all(isinstance(call, list) for call in calls):
        raise RowError("wrong_field_type", f"{name} must be a list of argument lists")
    return calls


class CastError(ValueError):
    """The literals do not determine the types of the JSON inputs."""


@dataclasses.dataclass(slots=True)
class Cast:
    """How JSON values at one place become Python values. `container` None: nothing seen there but scalars."""

    container: type | None = None
    items: Cast | None = None
    scalars: set[type] = dataclasses.field(default_factory=set)
    keys: Cast | None = None
    entries: Cast | None = None
    numerals: bool = False

    def learn(self, value: Any) -> None:
        """Take in one typed example. Raises CastError when two examples disagree on the container."""
        if isinstance(value, dict):
            self.keys, self.entries = self.keys or Cast(), self.entries or Cast()
            for key, entry in value.items():
                self.keys.learn(key)
                self.entries.learn(entry)
        elif isinstance(value, CONTAINERS):
            if self.container not in (None, type(value)):
                raise CastError(f"both {self.container.__name__ if self.container else ''} and {type(value).__name__}")
            self.container, self.items = type(value), self.items or Cast()
            for item in value:
                self.items.learn(item)
        else:
            self.scalars.add(type(value))

    def apply(self, value: Any, unseen: type = list) -> Any:
        """`value` (from JSON) as the type learned here; a sequence at a place that no example showed becomes `unseen`."""
        if isinstance(value, list):
            return (self.container or unseen)((self.items or Cast()).apply(item, unseen) for item in value)
        if isinstance(value, dict):
            keys, entries = self.keys or Cast(), self.entries or Cast()
            kind = int if keys.scalars == {int} else str
            return {kind(key): entries.apply(entry) for key, entry in value.items()}
        if complex in self.scalars and self.scalars <= NUMBERS and not isinstance(value, bool):
            return complex(value)
        if self.numerals and isinstance(value, str):
            return float(value)
        return value


def cast_calls(
    literal: Sequence[Sequence[Any]],
    base: Sequence[Sequence[Any]],
    extra: Sequence[Sequence[Any]],
    unseen: type = list,
) -> list[tuple[Any, ...]]:
    """The calls of `base` and `extra` (JSON) with typed arguments; `literal` holds the base calls as the row's asserts write them.

    Raises CastError when the examples contradict each other or the types learned do not fit the JSON.
    """
    casts: list[Cast] = []
    for call, shown in zip(literal, base, strict=False):
        casts.extend(Cast() for _ in range(len(call) - len(casts)))
        for cast, value, text in zip(casts, call, shown, strict=False):
            cast.learn(value)
            cast.numerals |= type(value) in NUMBERS and isinstance(text, str)  # a number may be written as text
    for call in extra:  # complex text among arguments that are numbers makes all of them complex
        for cast, text in zip(casts, call, strict=False):
            if cast.scalars and cast.scalars <= NUMBERS and isinstance(text, str) and COMPLEX_TEXT.fullmatch(text):
                cast.scalars.add(complex)
    calls = (*base, *extra)
    casts += [Cast() for _ in range(max(map(len, calls), default=0) - len(casts))]
    try:
        return [tuple(cast.apply(value, unseen) for cast, value in zip(casts, call, strict=False)) for call in calls]
    except (TypeError, ValueError) as error:
        raise CastError(str(error)) from error
