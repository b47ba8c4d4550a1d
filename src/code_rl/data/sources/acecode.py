"""Rows of AceCode and EvolveCoder: a question, and Python asserts of one function."""

from __future__ import annotations

import builtins

from code_rl.data.sources import asserts, records
from code_rl.data.sources.records import Origin, Row, filled, items
from code_rl.data.sources.testcases import solutions, with_calls
from code_rl.grading import Problem


def read_acecode(row: Row, origin: Origin) -> Problem:
    """Read a question and its asserts, in `test_cases` or `tests`. Models' answers that passed all
    of them (`inferences`) are the solutions, so these do not show that the tests are right."""
    stated = items(row, "test_cases" if row.get("test_cases") is not None else "tests", str)
    statements = [part for source in stated for part in asserts.read_statements(source)]
    name = asserts.entry_point(asserts.called_by_all(statements) - set(dir(builtins)))
    answers = row.get("inferences") or []
    passed = [one["completion"] for one in answers if one["pass_rate"] == 1.0]
    draft = records.make_problem(
        origin,
        records.stated_id(row, "id"),
        filled(row, "question"),
        fn_name=name,
        solutions=solutions(passed),
    )
    found = asserts.read_asserts(asserts.AssertReader(name), statements)
    problem = asserts.asserted(draft, found)
    return with_calls(problem, name, problem.tests)
