"""Names of base models: what a program asks for, and the local model that stands behind it."""

from __future__ import annotations

import tomllib
from pathlib import Path

from code_rl.backends.names import source_of
from code_rl.errors import ConfigError


class Names:
    """A map from names of the hosted service to local ones; names that are not in it stand for themselves."""

    def __init__(self, table: dict[str, str]) -> None:
        self.table = table
        for asked, local in table.items():
            try:
                source_of(local)
            except ConfigError as error:
                raise ConfigError(f"models: {asked!r} stands for {local!r}: {error}") from error

    @classmethod
    def read(cls, path: str | None) -> Names:
        """The map of a TOML file (a table `models`, name = local name); raises ConfigError naming what is wrong."""
        if path is None:
            return cls({})
        try:
            data = tomllib.loads(Path(path).expanduser().read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"models={path} cannot be read: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"models={path} is not TOML: {error}") from error
        table = data.get("models")
        surplus = sorted(set(data) - {"models"})
        if surplus or not isinstance(table, dict):
            raise ConfigError(f'models={path} must hold one table [models] with lines "name" = "local name or path"')
        for asked, local in table.items():
            if not isinstance(local, str) or not local:
                raise ConfigError(f"models={path}: {asked!r} must be a string, not {local!r}")
        return cls(dict(table))

    def local(self, asked: str) -> str:
        """The local model behind a name; raises ConfigError for a name that can be none."""
        local = self.table.get(asked, asked)
        source_of(local)
        return local
