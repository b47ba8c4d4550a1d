"""Python source as a syntax tree."""

from __future__ import annotations

import ast
import threading
import warnings

_one_at_a_time = threading.Lock()
"""CPython up to 3.11 counts the depth of all threads' trees in one place, and raises SystemError
when two are built at once (its issue 106905)."""


def parse(source: str) -> ast.Module:
    """The tree of a program, which a byte order mark may begin, as in a file. Raises SyntaxError,
    without a line where CPython names none, for whatever does not parse."""
    with _one_at_a_time, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(source.removeprefix("\ufeff"))
        except (ValueError, RecursionError, MemoryError) as error:
            raise SyntaxError(str(error) or type(error).__name__) from error
