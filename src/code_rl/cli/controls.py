"""The verb `controls`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import chz

from code_rl.training.config import make_config
from code_rl.training.controls import ControlPlan, run_controls
from code_rl.util.errors import ConfigError
from code_rl.util.options import ABOVE_0, check_that, option
from code_rl.util.settings import make_settings


@chz.chz
class ControlsConfig:
    """Train, and also train controls that learn nothing from verdicts, with the same problems,
    steps and tokens.

    All other settings are those of `train` and apply to each run. Finished runs are kept in out=;
    the same command continues.
    """

    out: str = chz.field(doc="Folder of the runs, controls.md and controls.json.")
    seeds: str = option("0,1,2", "Seeds, comma-separated; each arm runs with each.")
    arms: str = option(
        "rl,random,format,own",
        "rl (settings as given), random (reward by seed), format (reward for any program), own "
        "(supervised on the base's own unverified samples).",
    )
    base_temperatures: str = option("0.2,0.6,1.0", "Temperatures at which the base is evaluated.")
    own_temperature: float = option(0.6, "own: sampling temperature.", ABOVE_0)
    own_top_p: float = option(
        0.95,
        "own: nucleus sampling; 1: off.",
        check_that(lambda share: 0 < share <= 1, "above 0 and at most 1"),
    )
    dry_run: bool = option(False, "Print the plan, and stop.")


def controls_command(given: Mapping[str, str]) -> int:
    """Run `code-rl controls` with its settings as text and return the exit code: 0, or that of a
    run that a signal ended. Settings that it does not have are those of `train`; the run's own
    temperature is added to `base_temperatures`. Raises ConfigError for a wrong setting."""

    own = {name: value for name, value in given.items() if name in chz.chz_fields(ControlsConfig)}
    settings, rest = (
        make_settings(ControlsConfig, own),
        {name: value for name, value in given.items() if name not in own},
    )
    temperatures = _each(settings, "base_temperatures", float)
    plan = ControlPlan(
        given=rest,
        out=Path(settings.out).expanduser(),
        seeds=_each(settings, "seeds", int),
        arms=_each(settings, "arms", str),
        base_temperatures=sorted({*temperatures, make_config(rest).temperature}),
        own_temperature=settings.own_temperature,
        own_top_p=settings.own_top_p,
    )
    return asyncio.run(run_controls(plan, dry_run=settings.dry_run))


def _each(settings: ControlsConfig, name: str, kind: Callable[[str], Any]) -> list[Any]:
    """Return the values of a comma-separated setting, each read by `kind`; empty parts are dropped.
    Raises ConfigError for a value that `kind` refuses with ValueError."""
    words = [word.strip() for word in getattr(settings, name).split(",") if word.strip()]
    try:
        return [kind(word) for word in words]
    except ValueError as error:
        raise ConfigError(f"{name}={','.join(words)} must be numbers: {error}") from error
