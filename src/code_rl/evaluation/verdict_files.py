"""Files of verdicts: rows are appended as they come and put in order at the end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from code_rl.grading import VerdictKind
from code_rl.util.errors import DataError
from code_rl.util.files import KeyedLog, only_writer, sized_lines, writes


@contextlib.contextmanager
def open_verdicts(out: str) -> Iterator[KeyedLog[str]]:
    """Open the verdicts in the file `out`, by the `key` of each program.

    Raises DataError if the file cannot be written, has any other content, or is in use.
    """
    path = Path(os.path.realpath(out))
    if not out or (path.exists() and not path.is_file()):
        raise DataError(f"out={out} must be a file; name one")
    lock = path.with_name(f"{path.name}.lock")
    with only_writer(lock, f"out={out}", DataError, stays=False), contextlib.ExitStack() as stack:
        try:
            if (
                path.exists()
                and path.stat().st_size
                and not any(map(_key, (row for _, row in sized_lines(path))))
            ):
                raise DataError("no whole line")  # opening removes an incomplete last row
            with writes(out, "file", DataError):
                log = stack.enter_context(contextlib.closing(KeyedLog(path, _key)))
        except (DataError, KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"out={out} holds something else than such verdicts ({error}); name another file"
            ) from error
        try:
            yield log
        except BaseException:
            if not log:
                path.unlink()
            raise


def put_in_order(log: KeyedLog[str], keys: Iterable[str]) -> None:
    """Put the rows under `keys` first, in this order, followed by the others."""
    mine = dict.fromkeys(keys)
    program_of = {key: _program(row) for key in log if (row := log.get(key))}
    judged = {program_of[key] for key in mine}
    log.rewrite([*mine, *(key for key, program in program_of.items() if program not in judged)])


def is_judged(row: Mapping[str, Any] | None) -> bool:
    """Return True if a row has a verdict about its program."""
    return row is not None and not VerdictKind(row["verdict"]).undecided


def _key(row: Mapping[str, Any]) -> str:
    VerdictKind(row["verdict"]), _program(row)
    return str(row["key"])


def _program(row: Mapping[str, Any]) -> tuple[object, object]:
    return row["problem_id"], row["program_id"]
