"""The data sets known by name, where each lies on the hub, and the mixtures made of them.

Any other hub id works as well (`owner/name`, `owner/name/config`), as long as its rows have a shape of `sources.shapes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

DEEPCODER = "agentica-org/DeepCoder-Preview-Dataset"


@dataclass(frozen=True, slots=True)
class Entry:
    """A data set by name. `splits` maps the hub's splits to what a user may call them; the first is what training reads."""

    repository: str
    config: str | None = None
    splits: tuple[str, ...] = ("train", "test")

    @property
    def test_split(self) -> str | None:
        """The split that evaluation reads, when it is not the one that training reads."""
        return "test" if "test" in self.splits[1:] else None


@dataclass(frozen=True, slots=True)
class Mixture:
    """Data sets read one after the other for training (a seeded shuffle mixes them), and the held-out ones by name."""

    train: tuple[str, ...]
    test: Mapping[str, str] = field(default_factory=dict)


CATALOGUE: dict[str, Entry] = {
    "deepcoder/primeintellect": Entry(DEEPCODER, "primeintellect", ("train",)),
    "deepcoder/taco": Entry(DEEPCODER, "taco", ("train",)),
    "deepcoder/lcbv5": Entry(DEEPCODER, "lcbv5"),
    "deepcoder/codeforces": Entry(DEEPCODER, "codeforces", ("test",)),
    "livecodebench": Entry("livecodebench/code_generation_lite", None, ()),
    "taco": Entry("BAAI/TACO", "ALL"),
    "taco-verified": Entry("likaixin/TACO-verified", None, ("train",)),
    "apps": Entry("codeparrot/apps"),
    "code_contests": Entry("deepmind/code_contests", None, ("train", "valid", "test")),
    "leetcode": Entry("newfacade/LeetCodeDataset"),
    "code-r1-12k": Entry("ganler/code-r1-12k"),
    "humaneval": Entry("openai/openai_humaneval", None, ("test",)),
    "humanevalplus": Entry("evalplus/humanevalplus", None, ("test",)),
    "mbpp": Entry("google-research-datasets/mbpp", "full", ("train", "test", "validation", "prompt")),
    "mbpp-sanitized": Entry("google-research-datasets/mbpp", "sanitized", ("train", "test", "validation", "prompt")),
    "mbppplus": Entry("evalplus/mbppplus", None, ("test",)),
}

MIXTURES: dict[str, Mixture] = {
    "deepcoder": Mixture(
        train=("deepcoder/primeintellect:train", "deepcoder/taco:train", "deepcoder/lcbv5:train"),
        test={"codeforces": "deepcoder/codeforces:test", "lcbv5": "deepcoder/lcbv5:test"},
    ),
    "code-r1": Mixture(train=("leetcode:train", "taco-verified:train"), test={"leetcode": "leetcode:test"}),
}

BUILTIN = "builtin"
SHIPPED = {"functions": Path(__file__).parent / "functions"}
"""Prepared folders that come with this package (scripts/write_functions.py)."""


def known_names() -> list[str]:
    """Every name that `dataset=` knows."""
    return [BUILTIN, *SHIPPED, *MIXTURES, *CATALOGUE]
