"""Groups of settings that several verbs share, the fields that they are made of, and checks of
their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

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


@chz.chz
class ExecutorOptions:
    """Where a verb runs programs, how many at once, and how long it waits for servers."""

    executor: str = option(
        "auto",
        "Where programs run: embedded, ray (docs/cluster.md), or Sandbox Fusion URLs, "
        "comma-separated. auto: SANDBOX_URL if set, else embedded.",
    )
    isolation: Literal["auto", "full", "landlock", "none"] = option(
        "auto",
        "Isolation of the embedded sandbox: full, landlock, none, or auto (the strongest "
        "available).",
    )
    sandbox_concurrency: int | None = option(
        None, "Programs in flight at once, per server (None: the executor's default).", AT_LEAST_1
    )
    outage_timeout: float = option(
        600.0,
        "Seconds that the sandbox or a model's server may be away before the command stops, "
        "resumable.",
        ABOVE_0,
    )

    @property
    def connection(self) -> dict[str, Any]:
        """The arguments of `grading.sandbox.connect_executor`."""
        return {
            "executor": self.executor,
            "isolation": self.isolation,
            "concurrency": self.sandbox_concurrency,
            "outage_timeout_s": self.outage_timeout,
        }


@chz.chz
class SandboxOptions(ExecutorOptions):
    """The same, with a limit of the programs."""

    reward_timeout: float | None = option(
        None, "CPU seconds per test; a problem's own lower limit wins.", ABOVE_0
    )
