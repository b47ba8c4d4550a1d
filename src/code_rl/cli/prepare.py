"""The verb `prepare`."""

from __future__ import annotations

from collections.abc import Mapping

from code_rl.data.preparation import PrepareConfig, prepare
from code_rl.util.settings import make_settings


def prepare_command(given: Mapping[str, str]) -> int:
    """Run `code-rl prepare` with its settings as text. Return 0 if every problem was decided, 1 if
    a failure of this machine left some undecided. Raises ConfigError and DataError for bad
    input."""
    return prepare(make_settings(PrepareConfig, given))
