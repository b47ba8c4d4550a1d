"""The members of every stand-in for a sandbox, beside its runs."""

from __future__ import annotations


class StandIn:
    """An executor's members other than `run`."""

    description, slots, retries = "a stand-in", 4, 0

    async def check(self) -> None:
        """Nothing to try."""

    async def aclose(self) -> None:
        """Nothing to release."""
