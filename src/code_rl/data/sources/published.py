"""Rows of AceCode and EvolveCoder (a question and Python asserts) and of NeMo Gym (a chat and unit
tests)."""

from __future__ import annotations

import builtins
from collections.abc import Mapping

from code_rl.data.sources import asserts, records
from code_rl.data.sources.records import Ambiguous, Origin, Row, RowError, field, filled, items
from code_rl.data.sources.testcases import with_calls, with_tests_of
from code_rl.grading import Problem


def read_acecode(row: Row, origin: Origin) -> Problem:
    """Read a question and its asserts, in `test_cases` or `tests`. Models' answers that passed all
    of them (`inferences`) are the solutions, so these do not show that the tests are right."""
    stated = items(row, "test_cases" if row.get("test_cases") is not None else "tests", str)
    statements = [part for source in stated for part in asserts.read_statements(source)]
    candidates = sorted(asserts.called_by_all(statements) - set(dir(builtins)))
    if len(candidates) != 1:
        raise RowError("entry_point_unclear", f"candidates {candidates}")
    name = candidates[0]
    answers = row.get("inferences") or []
    passed = [one["completion"] for one in answers if one["pass_rate"] == 1.0]
    draft = records.make_problem(
        origin,
        records.stated_id(row, "id"),
        filled(row, "question"),
        fn_name=name,
        solutions=tuple(passed[:3]),
    )
    found = asserts.read_asserts(asserts.AssertReader(name), statements)
    problem = asserts.asserted(draft, found)
    return with_calls(problem, name, problem.tests)


@records.named(lambda row, origin: records.stated_id(row, "hash_id") or origin.row_id)
def read_nemo_gym(row: Row, origin: Origin) -> Problem | Ambiguous:
    """Read the last message of `responses_create_params` (with the set's own wording) and the unit
    tests of `verifier_metadata`."""
    messages = field(row, "responses_create_params", dict).get("input")
    last = messages[-1] if isinstance(messages, list) and messages else {}
    if not isinstance(last, Mapping):
        raise RowError("blank_statement", "responses_create_params has no message")
    draft = records.make_problem(
        origin, records.stated_id(row, "hash_id"), filled(last, "content").strip()
    )
    return with_tests_of(draft, field(field(row, "verifier_metadata", dict), "unit_tests", dict))
