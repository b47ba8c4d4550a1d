"""Rows of competition problems: DeepCoder's four configs, TACO and TACO-verified, APPS,
CodeContests, open-r1/codeforces, NeMo Gym's code tasks, and copies of these in other projects.

Each function reads one raw row. Columns that are None count as absent, since concatenated sets fill
them in. A row's time and memory limits were set for compiled languages; they are kept in `meta`,
and the problem gets the default limits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from datetime import date
from typing import Any

from code_rl.data.sources.records import (
    Ambiguous,
    Origin,
    Row,
    RowError,
    asked_by_user,
    field,
    filled,
    from_json,
    make_problem,
    named,
    stated_id,
)
from code_rl.data.sources.testcases import ALLCLOSE, MAX_SOLUTIONS, solutions, with_tests_of
from code_rl.grading import Compare, Problem, StdinTest

LANGUAGES = {"": (3, "PYTHON3"), "_cpp": (2, "CPP"), "_java": (4, "JAVA")}
"""CodeContests' language of a solution (the class number, or its name), by the suffix of its
field."""

CODE_CONTESTS = Compare("contest", abs_tol=1e-5, ignore_case=True)
"""The rule of the set's own tester (`OutputsMatch` of google-deepmind/code_contests): tokens
compare without case, numbers within 1e-5."""

_TACO_META = ("difficulty", "url", "name", "tags", "raw_tags", "skill_types", "picture_num")


def _own_id(row: Row, origin: Origin) -> str:
    """Return the row's id. A number gets the set as prefix, since APPS and TACO number the rows of
    every split from zero; without an id it is the row's position."""
    own = stated_id(row, "id", "problem_id", "question_id")
    return f"{origin.prefix}/{own}" if own.isdecimal() else own or origin.row_id


@named(_own_id)
def read_deepcoder(row: Row, origin: Origin) -> Problem | Ambiguous:
    """Read `problem`, `tests`, optional `solutions`, `starter_code`, `metadata`: any of DeepCoder's
    configs. Raises RowError for missing or malformed fields."""
    return with_tests_of(
        _draft(row, origin, "problem"), field(row, "tests", object), row.get("metadata")
    )


@named(_own_id)
def read_apps(row: Row, origin: Origin) -> Problem | Ambiguous:
    """Read `question`, `input_output`, optional `solutions`, `starter_code`: APPS, TACO,
    TACO-verified. Stated limits go into `meta` and do not apply. Raises RowError for missing or
    malformed fields."""
    stated = from_json(row.get("metadata") or {}, "metadata")
    meta = {
        name: value
        for name in _TACO_META
        if (value := row.get(name, stated.get(name))) not in (None, "", "[]")
    }
    for name in ("time_limit", "memory_limit"):
        if row.get(name):
            meta[f"stated_{name}"] = str(row[name])
    try:
        day = date.fromisoformat(str(row.get("date"))[:10]).isoformat()
    except ValueError:
        day = None
    return with_tests_of(
        _draft(row, origin, "question", date=day, meta=meta), field(row, "input_output", object)
    )


@named(lambda row, origin: stated_id(row, "name") or origin.row_id)
def read_code_contests(row: Row, origin: Origin) -> Problem:
    """Read a CodeContests row: `description` and public, private and generated tests. Its solutions
    and wrong solutions are kept, those in other languages than Python 3 in `meta`, where
    `Problem.in_language` finds them. Raises RowError for problems with files, without tests, or
    with malformed fields."""
    for name in ("input_file", "output_file"):
        if row.get(name):
            raise RowError(
                "file_io", f"{name}={str(row[name])[:40]!r}: the program is to use a file"
            )
    tests = [
        StdinTest(*pair, public=name == "public_tests")
        for name in ("public_tests", "private_tests", "generated_tests")
        for pair in _texts(row, name)
    ]
    if not tests:
        raise RowError("no_tests")
    meta: dict[str, Any] = {
        name: row[name] for name in ("cf_rating", "cf_tags", "difficulty") if row.get(name)
    }
    right, wrong = (
        _pairs(row, name, "language", "solution") for name in ("solutions", "incorrect_solutions")
    )
    for suffix, spellings in LANGUAGES.items():
        meta[f"solutions{suffix}"] = _written_in(spellings, right)
        meta[f"wrong_solutions{suffix}"] = _written_in(spellings, wrong)
    meta = {name: value for name, value in meta.items() if value}
    with contextlib.suppress(TypeError, LookupError):  # some rows state none
        seconds = row["time_limit"]["seconds"] + row["time_limit"]["nanos"] / 1e9
        meta["stated_time_limit"] = f"{seconds:g} seconds"
    known = tuple(meta.pop("solutions", ()))
    statement = filled(row, "description")
    return make_problem(
        origin, row.get("name"), statement, tests, solutions=known, compare=CODE_CONTESTS, meta=meta
    )


_PARTS = {"input_format": "Input", "output_format": "Output", "note": "Note"}


def read_open_r1(row: Row, origin: Origin) -> Problem:
    """Read a row of open-r1/codeforces: `description` with its formats, `examples` and
    `official_tests`, of which those among the examples are public.

    Raises RowError if the official tests were truncated or are missing, or if the problem needs
    files, a dialog or a checker of its own.
    """
    unusable = {
        "file_io": row.get("input_mode") == "file",
        "interactive": row.get("interaction_format"),
        "truncated_tests": row.get("official_tests_complete") is False,
        "custom_checker": row.get("generated_checker"),
    }
    for reason in filter(unusable.get, unusable):
        raise RowError(reason)
    parts = [filled(row, "description")]
    for name, title in _PARTS.items():
        parts += [f"{title}\n\n{row[name]}"] if row.get(name) else []
    shown, official = _texts(row, "examples"), _texts(row, "official_tests")
    if not official:
        raise RowError("no_tests")
    tests = [StdinTest(given, wanted, (given, wanted) in shown) for given, wanted in official]
    meta = {name: row[name] for name in ("rating", "tags") if row.get(name)}
    if limit := row.get("time_limit"):
        meta["stated_time_limit"] = f"{limit} seconds"
    return make_problem(origin, stated_id(row, "id"), "\n\n".join(parts), tests, meta=meta)


@named(lambda row, origin: _gym_id(row) or origin.row_id)
def read_nemo_gym(row: Row, origin: Origin) -> Problem | Ambiguous:
    """Read a row of NeMo Gym's code tasks, Nemotron's competitive coding among them: the user's
    message is the statement, `verifier_metadata.unit_tests` the tests. Raises RowError for missing
    or malformed fields."""
    asked = field(row, "responses_create_params", dict).get("input")
    metadata = field(row, "verifier_metadata", dict)
    source = str(row.get("dataset") or origin.source)
    draft = make_problem(origin, _gym_id(row), asked_by_user(asked), source=source)
    return with_tests_of(draft, field(metadata, "unit_tests", object))


def _gym_id(row: Row) -> str:
    """Return the id of a NeMo Gym row: of its metadata, else its hash; empty without both."""
    metadata = row.get("verifier_metadata")
    own = stated_id(metadata, "problem_id") if isinstance(metadata, Mapping) else ""
    return own or stated_id(row, "hash_id")


def _draft(row: Row, origin: Origin, statement: str, **more: Any) -> Problem:
    """Return the problem without tests; the row's field `statement` has its statement, and `more`
    are further fields of the problem. Raises RowError for missing or malformed fields."""
    starter = "" if row.get("starter_code") is None else field(row, "starter_code", str)
    more |= {"solutions": solutions(row.get("solutions")), "compare": ALLCLOSE}
    return make_problem(
        origin, _own_id(row, origin), filled(row, statement), starter=starter, **more
    )


def _pairs(row: Row, name: str, first: str, second: str) -> list[tuple[Any, Any]]:
    """Return pairs of the columns `first` and `second` of a field that is an object of lists, or a
    list of objects; none if it is absent. Raises RowError if the lists differ in length."""
    found = row.get(name) or {}
    if isinstance(found, list):
        return [(one.get(first), one.get(second)) for one in found]
    firsts, seconds = found.get(first) or [], found.get(second) or []
    if len(firsts) != len(seconds):
        raise RowError(
            "bad_tests", f"{name} has {len(firsts)} {first}s and {len(seconds)} {second}s"
        )
    return list(zip(firsts, seconds, strict=True))


def _texts(row: Row, name: str) -> list[tuple[str, str]]:
    """Return the inputs and outputs of a field. Raises RowError unless all are texts."""
    pairs = _pairs(row, name, "input", "output")
    if not all(isinstance(text, str) for pair in pairs for text in pair):
        raise RowError("wrong_field_type", f"{name} must hold texts")
    return pairs


def _written_in(spellings: tuple[int, str], pairs: list[tuple[Any, Any]]) -> list[str]:
    """Return the first ten solutions in one language, whose number or name is in `spellings`."""
    found = [code for language, code in pairs if language in spellings and isinstance(code, str)]
    return found[:MAX_SOLUTIONS]
