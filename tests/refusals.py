"""Errors by their kind and the names in them (a setting, a field, a file), never by their words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from code_rl.util.errors import ConfigError


@contextmanager
def refused(*names: str, kind: type[Exception] = ConfigError) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """An error of this kind, on one line, that has all the names."""
    with pytest.raises(kind) as caught:
        yield caught
    names_all(str(caught.value), *names)


def one_line(capsys: pytest.CaptureFixture[str], *names: str) -> str:
    """The single line on stderr of a command that failed; it has all the names."""
    said = capsys.readouterr().err
    assert said.startswith("error: "), said
    assert said.endswith("\n")
    names_all(said.rstrip("\n"), *names)
    return said


def names_all(said: str, *names: str) -> None:
    assert "\n" not in said, said
    assert not [name for name in names if name not in said], said
