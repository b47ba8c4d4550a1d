"""The result file: a line of JSON for each test and one for the end, read without trusting them."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any

from code_rl.grading.sandbox.executor import Execution, Status

DETAIL_CHARS = 2000


@dataclass(frozen=True, slots=True)
class Records:
    """The content of a result file. `executions` are the tests from the chunk's first on, without
    gaps.

    `end` is why the harness stopped (done, failed, bytes, deadline, traces, error), or None if the
    file ends before its last line.
    """

    executions: tuple[Execution, ...]
    end: str | None
    detail: str


def read_records(data: bytes, nonce: str, count: int) -> Records:
    """Read up to `count` executions. Never raises: an unreadable part ends the records."""
    executions: list[Execution] = []
    for line in data.split(b"\n"):
        try:
            row = json.loads(line)
            if row["nonce"] != nonce:
                break
            if "end" in row:
                return Records(
                    tuple(executions), str(row["end"]), str(row["detail"])[:DETAIL_CHARS]
                )
            if row["index"] != len(executions) or len(executions) >= count:
                break
            executions.append(execution_of(row))
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
            break
    return Records(tuple(executions), None, "no last line")


def execution_of(row: dict[str, Any]) -> Execution:
    """Return the execution of a row. Raises KeyError, TypeError or ValueError for a malformed
    row."""
    code, value = row["exit_code"], row.get("value")
    return Execution(
        status=Status(row["status"]),
        stdout=base64.b64decode(row.get("stdout", "")),
        value=None if value is None else base64.b64decode(value),
        stderr=base64.b64decode(row.get("stderr", "")),
        exit_code=None if code is None else int(code),
        cpu_s=float(row["cpu_s"]),
        wall_s=float(row["wall_s"]),
        peak_memory_bytes=int(row.get("peak_memory_bytes", 0)),
        detail=str(row["detail"])[:DETAIL_CHARS],
        compile_s=float(row.get("compile_s", 0.0)),
    )
