"""The outage of a service: reported once, waited for up to a limit, and its end reported once. If
it ends a command, a note says how to go on."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator

from code_rl.util.errors import OutageError

logger = logging.getLogger("code_rl.outages")


class Outage:
    """How long one service has not answered. `limit_s` is the setting `outage_timeout`."""

    def __init__(self, service: str, limit_s: float, error: type[Exception]) -> None:
        """`error` is raised once the outage is longer than the limit."""
        self.service, self.limit_s, self._error = service, limit_s, error
        self._since: float | None = None

    @property
    def away(self) -> bool:
        """True during an outage."""
        return self._since is not None

    @property
    def seconds(self) -> float:
        """The length of the outage so far, in seconds; 0 if there is none."""
        return 0.0 if self._since is None else time.monotonic() - self._since

    def missed(self, why: str) -> None:
        """Record that the service does not answer; the first time, log a warning. Raises `error`
        once the outage is longer than the limit. It does not wait: the caller pauses between
        tries."""
        if self.seconds > self.limit_s:
            raise self._error(
                f"{self.service} has not answered for {self.seconds:.0f} s "
                f"(outage_timeout={self.limit_s:g}): {why}"
            )
        if self._since is None:
            self._since = time.monotonic()
            logger.warning(
                "%s does not answer (%s); waiting for up to %g s", self.service, why, self.limit_s
            )

    def answered(self) -> None:
        """Record that the service answers. It ends the outage, if there is one, with a log line."""
        if self._since is not None:
            logger.warning("%s answers again after %.0f s", self.service, self.seconds)
        self._since = None


@contextlib.contextmanager
def noted(how: Callable[[], str | None]) -> Iterator[None]:
    """Add a note to the OutageError or KeyboardInterrupt that ends the block: `how`, called then,
    returns how to go on, or None if nothing is kept."""
    try:
        yield
    except (KeyboardInterrupt, OutageError) as error:
        if (note := how()) is not None:
            error.add_note(note)
        raise
