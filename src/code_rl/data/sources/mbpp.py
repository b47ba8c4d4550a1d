"""MBPP, its sanitized subset, MBPP+ (full and OriginFmt), AceCode and EvolveCoder: questions with
asserts of one function.

MBPP names its function only in its tests, so the first assert is part of the statement and its test
is public, as in EvalPlus. MBPP+'s special oracles are views: eight tasks compare as sets, and three
only check whether something was found. Two of EvalPlus's oracles tolerate wrong references
(`are_equivalent` accepts any answer, `sum_div` also accepts 0) and are not reproduced.

MBPP+ inputs are JSON, which has no tuple, set or complex number. The row has the same
base inputs twice, as JSON lists and as Python literals in `assertion`. The literals show which type
the inputs have at each argument and depth.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from code_rl.data.sources import asserts
from code_rl.data.sources.records import (
    Draft,
    Origin,
    Row,
    RowError,
    field,
    filled,
    items,
    make_problem,
    named,
    number,
    stated_id,
)
from code_rl.data.sources.testcases import solutions, with_calls
from code_rl.grading import Problem

SET_VIEWS = (
    "similar_elements",
    "find_char_long",
    "common_in_nested_lists",
    "extract_singly",
    "larg_nnum",
    "intersection_array",
    "find_dissimilar",
    "Diff",
)
FOUND_VIEWS = ("check_str", "text_match_three", "text_starta_endb")
DEEP_TUPLES = ("extract_even", "average_tuple", "remove_nested")
"""Tasks about tuples nested to any depth: JSON lists are tuples even below the depth of the
asserts."""

CONTAINERS = (list, tuple, set)
NUMBERS = {int, float, complex}
COMPLEX_TEXT = re.compile(r"\(?[-+\d.e]*[-+\d.e]j\)?")
"""JSON has no complex numbers: the text `"(1+2j)"` is one."""


def _row_id(row: Row, _origin: Origin | None = None) -> str:
    """Return the row's id, `Mbpp/N` for a number, `?` without one."""
    task_id = str(row.get("task_id", "?"))
    return f"Mbpp/{task_id}" if task_id.isdecimal() else task_id


@named(_row_id)
def read_mbpp(row: Row, _origin: Origin) -> Problem:
    """Read an MBPP row, original (`text`) or sanitized (`prompt`); its first test is public and
    part of the statement. Raises RowError for missing or malformed fields and unknown asserts."""
    text = filled(row, "text" if row.get("text") is not None else "prompt")
    solution, stated = field(row, "code", str).replace("\r\n", "\n"), items(row, "test_list", str)
    statements = _statements(stated)
    name = entry_point(solution, statements)
    imports = items(row, "test_imports", str) if "test_imports" in row else []
    setup = "\n".join([*imports, str(row.get("test_setup_code") or "")]).strip()
    problem = _problem(
        row, "mbpp", name, _statement(row, text, stated), solution=solution, setup=setup
    )
    return asserts.asserted(
        problem, asserts.read_asserts(asserts.AssertReader(name), statements), public=1
    )


@named(_row_id)
def read_mbpp_plus(row: Row, _origin: Origin) -> Draft:
    """Read an MBPP+ row (`base_input`, `plus_input`, `canonical_solution`); the reference computes
    the expected values. Raises RowError for missing or malformed fields."""
    name, solution = field(row, "entry_point", str), field(row, "canonical_solution", str)
    stated = [
        part
        for part in asserts.read_statements(field(row, "assertion", str))
        if isinstance(part, ast.Assert)
    ]
    reader = asserts.AssertReader(name)
    literal = [reader.arguments(part) for part in stated]
    unseen = tuple if name in DEEP_TUPLES else list
    calls = cast_calls(literal, _calls(row, "base_input"), _calls(row, "plus_input"), unseen)
    problem = _problem(
        row,
        "mbppplus",
        name,
        field(row, "prompt", str).strip().strip('"').strip(),
        solution=solution,
    )
    return Draft(problem, tuple(calls), number(row, "atol"), public=1)


@named(_row_id)
def read_mbpp_plus_origin(row: Row, _origin: Origin) -> Problem | Draft:
    """Read an MBPP+ row in the original format, whose `test` lists `inputs` and `results` (or a
    reference function: then the result is a Draft). Raises RowError for any other form."""
    solution, stated = field(row, "code", str), items(row, "test_list", str)
    name = entry_point(solution, _statements(stated))
    inputs, results, atol = asserts.read_tables(asserts.read_statements(field(row, "test", str)))
    statement = _statement(row, field(row, "prompt", str), stated)
    problem = _problem(row, "mbppplus-origin", name, statement, solution=solution)
    if results is not None and name in SET_VIEWS:
        results = [set(value) for value in results]
    return asserts.tabled(problem, inputs, results, atol, public=1)


def read_acecode(row: Row, origin: Origin) -> Problem:
    """Read a question and its asserts, in `test_cases` or `tests`. Models' answers that passed all
    of them (`inferences`) are the solutions, so these do not show that the tests are right. Raises
    RowError for unknown asserts."""
    stated = items(row, "test_cases" if row.get("test_cases") is not None else "tests", str)
    statements = _statements(stated)
    name = asserts.entry_point(asserts.called_by_all(statements) - set(dir(builtins)))
    answers = row.get("inferences") or []
    passed = [one["completion"] for one in answers if one["pass_rate"] == 1.0]
    draft = make_problem(
        origin,
        stated_id(row, "id"),
        filled(row, "question"),
        fn_name=name,
        solutions=solutions(passed),
    )
    problem = asserts.asserted(draft, asserts.read_asserts(asserts.AssertReader(name), statements))
    return with_calls(problem, name, problem.tests)


def _statements(stated: Iterable[str]) -> list[ast.stmt]:
    """Return the statements of all sources, in order. Raises RowError for one that is not
    Python."""
    return [part for source in stated for part in asserts.read_statements(source)]


def _problem(
    row: Row, source: str, name: str, statement: str, *, solution: str, setup: str = ""
) -> Problem:
    """Return the problem `name` without its tests; its `meta` holds the setup and, for MBPP+, the
    official view."""
    view = "set" if name in SET_VIEWS else "found" if name in FOUND_VIEWS else None
    meta = {"setup": setup} if setup else {}
    if source.startswith("mbppplus"):
        meta = dict(asserts.with_view(meta, name, view))
    return Problem(
        _row_id(row), statement, (), fn_name=name, solutions=(solution,), source=source, meta=meta
    )


def _statement(row: Row, text: str, stated: list[str]) -> str:
    """Return the statement with the first test, as MBPP's prompt has it. Raises RowError without
    tests."""
    if not stated:
        raise RowError("no_tests", _row_id(row))
    return f"{text.strip()}\n\nYour code should pass this test:\n{stated[0].strip()}"


def entry_point(solution: str, statements: list[ast.stmt]) -> str:
    """Return the function under test: the one name that every assert calls and `solution` defines
    at the top level.

    Raises RowError if there is none, or more than one.
    """
    defined = {
        part.name for part in asserts.read_statements(solution) if isinstance(part, ast.FunctionDef)
    }
    return asserts.entry_point(defined & asserts.called_by_all(statements))


def _calls(row: Row, name: str) -> list[list[Any]]:
    """Return the inputs under `name`. One row of the set has an empty object instead of an empty
    list. Raises RowError for anything else."""
    return [] if row.get(name) == {} else items(row, name, list)


def _cast(value: Any, shown: Sequence[Any], unseen: type) -> Any:
    """Return `value` (from JSON) with the types that the examples `shown` have at its position. A
    sequence at a position without an example becomes `unseen`. Raises TypeError if the examples
    differ."""
    if isinstance(value, list):
        sequences = [one for one in shown if isinstance(one, CONTAINERS)]
        kinds = {type(one) for one in sequences}
        if len(kinds) > 1:
            raise TypeError(f"both {' and '.join(sorted(kind.__name__ for kind in kinds))}")
        inner = list(chain.from_iterable(sequences))
        return (kinds.pop() if kinds else unseen)(_cast(item, inner, unseen) for item in value)
    if isinstance(value, dict):
        entries = [entry for one in shown if isinstance(one, dict) for entry in one.values()]
        return {key: _cast(entry, entries, list) for key, entry in value.items()}
    return complex(value) if any(type(one) is complex for one in shown) else value


def cast_calls(
    literal: Sequence[Sequence[Any]],
    base: Sequence[Sequence[Any]],
    extra: Sequence[Sequence[Any]],
    unseen: type = list,
) -> list[tuple[Any, ...]]:
    """Return the calls of `base`, then of `extra` (JSON), with typed arguments; `literal` has the
    base calls as written in the row's asserts. `unseen` is the type of sequences without an
    example.

    Raises RowError `input_types_unknown` if the examples contradict each other or their types do
    not fit the JSON.
    """
    calls = (*base, *extra)
    shown: list[list[Any]] = [[] for _ in range(max(map(len, (*literal, *calls)), default=0))]
    numerals: set[int] = set()  # positions where a number may be written as text
    for call, texts in zip(literal, base, strict=False):
        for place, (value, text) in enumerate(zip(call, texts, strict=False)):
            shown[place].append(value)
            numerals |= {place} if type(value) in NUMBERS and isinstance(text, str) else set()
    for call in extra:  # complex text at a position of numbers makes all of them complex
        for examples, text in zip(shown, call, strict=False):
            if isinstance(text, str) and COMPLEX_TEXT.fullmatch(text):
                examples.append(0j)
    try:
        cast = [[_cast(*each, unseen) for each in zip(call, shown, strict=False)] for call in calls]
        return [
            tuple(
                float(arg) if place in numerals and isinstance(arg, str) else arg
                for place, arg in enumerate(call)
            )
            for call in cast
        ]
    except (TypeError, ValueError) as error:
        raise RowError("input_types_unknown", str(error)) from error
