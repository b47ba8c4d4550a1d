"""Python source as a syntax tree."""

from __future__ import annotations

import ast
import threading
import warnings

_one_at_a_time = threading.Lock()
"""CPython up to 3.11 counts the depth of all threads' trees together, and raises SystemError if two
are built at once (its issue 106905)."""


def parse(source: str) -> ast.Module:
    """Return the syntax tree of a program, which may begin with a byte order mark, as in a file.
    Threads take turns. Raises SyntaxError for anything that does not parse, without a line if
    CPython names none; Python's warnings are dropped."""
    with _one_at_a_time, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(source.removeprefix("\ufeff"))
        except (ValueError, RecursionError, MemoryError) as error:
            raise SyntaxError(str(error) or type(error).__name__) from error
