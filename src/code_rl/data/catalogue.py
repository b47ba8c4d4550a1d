"""The data sets known by name, their repositories on the hub, and mixtures of them.

Any other hub id (`owner/name`, `owner/name/config`) works too if its rows have a shape of
`sources.shapes`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A data set by name. `splits` maps the hub's splits to their public names; the first is for
    training."""

    repository: str
    config: str | None = None
    splits: Sequence[str] = ("train", "test")


@dataclass(frozen=True, slots=True)
class Mixture:
    """Data sets read one after the other for training (a seeded shuffle mixes them), and the
    held-out ones by name."""

    train: Sequence[str]
    test: Mapping[str, str]


with Path(__file__).with_name("catalogue.toml").open("rb") as _file:
    _told = tomllib.load(_file)
CATALOGUE = {name: CatalogueEntry(**told) for name, told in _told["sets"].items()}
MIXTURES = {name: Mixture(**told) for name, told in _told["mixtures"].items()}

BUILTIN = "builtin"
SHIPPED = {"functions": Path(__file__).parent / "functions"}
"""Prepared folders that come with this package (scripts/write_functions.py)."""
KNOWN_NAMES = (BUILTIN, *SHIPPED, *MIXTURES, *CATALOGUE)
"""Every name that `dataset=` knows."""
