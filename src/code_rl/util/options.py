"""Fields of a verb's settings, and checks of their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import chz

from code_rl.util.errors import ConfigError

Check = Callable[[Any, str], None]


def option(default: Any, doc: str, check: Check | None = None) -> Any:
    """Return a field for the settings of a verb other than `train`."""
    return chz.field(default=default, doc=doc, validator=check)


def check_that(holds: Callable[[Any], bool], wanted: str) -> Check:
    """Return a check that a value, unless it is None, satisfies a condition; `wanted` describes the
    condition."""

    def check(settings: Any, name: str) -> None:
        value = getattr(settings, name)
        if value is not None and not holds(value):
            # chz prefixes the name of an unprocessed value with X_.
            raise ConfigError(f"{name.removeprefix('X_')}={value} must be {wanted}")

    return check


# With this bound, sums and products of rewards and hyperparameters stay well within 32-bit floats.
LARGEST = 1e9
AT_LEAST_0 = check_that(lambda count: count >= 0, "0 or above")
AT_LEAST_1 = check_that(lambda count: count >= 1, "at least 1")
FROM_0 = check_that(lambda value: 0 <= value <= LARGEST, "a number from 0 to 1e9")
PORT = check_that(lambda port: 0 <= port < 2**16, "a TCP port, 0 to 65535")
ABOVE_0 = check_that(lambda value: 0 < value <= LARGEST, "a number above 0, at most 1e9")
HOST = check_that(bool, "an address of this machine, such as 127.0.0.1")

# Documentation of the settings that several verbs share.
EXECUTOR_DOC = (
    "Where programs run: embedded, ray (docs/cluster.md), or Sandbox Fusion URLs, "
    "comma-separated. auto: SANDBOX_URL if set, else embedded."
)
ISOLATION_DOC = (
    "Isolation of the embedded sandbox: full, landlock, none, or auto (the strongest available)."
)
