"""One work shared by processes that know nothing of each other: the same command with `shard=i/n` in each, and with `merge=true` at the end."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from code_rl.errors import ConfigError

SHARD_DOC = (
    "Do only part i of n, as i/n from 1/n to n/n: the same command in every task of a Slurm array, say. What each leaves lies beside\n"
    "the others'; merge= puts it together."
)


@dataclass(frozen=True, slots=True)
class Shard:
    """Part `number`, from 1, `of` so many: every `of`-th item."""

    number: int
    of: int

    def taken(self, total: int) -> range:
        """The places of its items among `total`."""
        return range(self.number - 1, total, self.of)

    def path(self, stem: Path | str) -> Path:
        """Where it leaves its part of what will be merged into `stem`."""
        return Path(f"{stem}.{self.number}-of-{self.of}")

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


def read_shard(text: str | None) -> Shard | None:
    """The setting `shard=`. Raises ConfigError."""
    if text is None:
        return None
    found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise ConfigError(f"shard={text} must be i/n with i from 1 to n, as shard=3/16")
    return Shard(int(found[1]), int(found[2]))


def check_sharding(shard: str | None, merge: bool) -> None:
    """Raise ConfigError for what is no shard, or a shard that is also to merge."""
    if read_shard(shard) is not None and merge:
        raise ConfigError(f"shard={shard} and merge=true exclude each other: merge when every shard is done")


def shard_paths(stem: Path | str) -> dict[Shard, Path]:
    """What the shards left beside `stem`, by number. Raises ConfigError where there are none, one is missing, or they are of two divisions."""
    stem = Path(stem)
    pattern = re.compile(re.escape(stem.name) + r"\.([0-9]+)-of-([0-9]+)")
    beside = stem.parent.iterdir() if stem.parent.is_dir() else ()
    found = [Shard(int(name[1]), int(name[2])) for path in beside if (name := pattern.fullmatch(path.name))]
    divisions = sorted({shard.of for shard in found})
    if not divisions:
        raise ConfigError(f"merge=true: no shard has left {stem}.1-of-n; run the same command with shard=i/n first")
    if len(divisions) > 1:
        shown = " and ".join(f"{stem.name}.*-of-{of}" for of in divisions)
        raise ConfigError(f"merge=true: {shown} are both in {stem.parent}; remove those that are not meant")
    shards = [Shard(number, divisions[0]) for number in range(1, divisions[0] + 1)]
    missing = [str(shard) for shard in shards if shard not in found]
    if missing:
        raise ConfigError(f"merge=true: shard {', '.join(missing)} is missing beside {stem}: it has not been finished")
    return {shard: shard.path(stem) for shard in shards}
