"""verl's Parquet rows: `prompt` (a chat) and `reward_model.ground_truth` (tests of any shape of `testcases`, as JSON text)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from code_rl.problems.problem import Problem
from code_rl.problems.sources.records import Origin, Row, RowError, Unsettled, field, from_json
from code_rl.problems.sources.testcases import finish, solutions


def read_verl(row: Row, origin: Origin) -> Problem | Unsettled:
    """A row whose ground truth is tests. Raises RowError `not_tests` for answers (of mathematics, say) and tests that are programs."""
    truth = field(row, "reward_model", dict).get("ground_truth")
    extra = row.get("extra_info") if isinstance(row.get("extra_info"), Mapping) else {}
    try:
        tests = from_json(truth, "ground_truth")
    except RowError as error:
        raise RowError("not_tests", error.detail) from error
    if not isinstance(tests, list | dict) or (isinstance(tests, dict) and not {"inputs", "input"} & tests.keys()):
        raise RowError("not_tests", f"reward_model.ground_truth holds {str(tests)[:80]!r}")
    index = (extra or {}).get("index")
    draft = Problem(
        id=origin.row_id if index is None else f"{origin.prefix}/{index}",
        statement=_asked(row["prompt"]),
        tests=(),
        solutions=solutions((extra or {}).get("solutions")),
        source=str(row.get("data_source") or origin.source),
    )
    return finish(draft, tests)


def _asked(prompt: Any) -> str:
    """The last thing that the user says."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    said = [one.get("content") for one in messages if one.get("role") == "user"] if isinstance(messages, list) else []
    if not said or not isinstance(said[-1], str) or not said[-1].strip():
        raise RowError("blank_statement", "prompt has no message of the user")
    return said[-1].strip()
