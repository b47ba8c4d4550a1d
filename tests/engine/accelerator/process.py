"""The process that has the simulated card: only there are torch and the engine imported."""

from __future__ import annotations

from typing import Any


def run_case(name: str, *args: Any) -> Any:
    """Run a function of `cases`."""
    from tests.engine.accelerator import cases

    return getattr(cases, name)(*args)
