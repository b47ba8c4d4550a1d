"""The settings of `code-rl replay`: a run, and those settings of a training run that can be changed on its record."""

from __future__ import annotations

from typing import Any, Optional

import chz

from code_rl.config import FACTS, Config

REPLAYABLE = tuple(name for name, facts in FACTS.items() if facts.replayable)


@chz.chz
class _Own:
    log_path: str = chz.field(doc="Directory of the recorded run.")
    verify: bool = chz.field(
        default=False,
        doc="Compute every reward, advantage and metric again and report what differs; exit code 1 if anything does.",
    )
    out: str | None = chz.field(
        default=None, doc="A file that gets the replayed metrics, one JSON object a step; replaced if it is there."
    )


def _with_replayable() -> type[Any]:
    """`_Own` with a field for each replayable setting of `Config`, absent by default."""
    fields = chz.chz_fields(Config)
    described = {name: chz.field(default=None, doc=fields[name]._doc) for name in REPLAYABLE}
    types = {name: Optional[fields[name].x_type] for name in REPLAYABLE}  # noqa: UP045 - a type that is only known here
    about = """Credit a run's recorded steps again under other settings of the algorithm, without model or sandbox.

    What is not given stays as the run had it.
    """
    body = {"__module__": __name__, "__doc__": about, "__annotations__": types, **described}
    return chz.chz(type("ReplayConfig", (_Own,), body))


ReplayConfig: Any = _with_replayable()
