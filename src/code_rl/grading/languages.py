"""Languages of programs, as data: `languages.toml`, and files of the same form that users add."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from code_rl.util.errors import ConfigError

PYTHON = "python"
_BUILTIN = Path(__file__).with_name("languages.toml")
_REQUIRED = ("fences", "file", "run", "version")


@dataclass(frozen=True, slots=True)
class Language:
    """How programs of a language are found in an answer, compiled and run; `languages.toml`
    explains the fields."""

    name: str
    fences: tuple[str, ...]
    file: str
    run: str
    version: str
    title: str = ""
    compile: str = ""
    spare_mb: int = 0
    fusion: str = ""

    def run_command(self, memory_mb: int) -> str:
        """Return the shell command of one test, with the problem's memory limit in its place."""
        return self.run.replace("{memory_mb}", str(memory_mb))


def read_languages(path: Path) -> dict[str, Language]:
    """Return the languages of a TOML file by name. Nothing is registered (see `add_languages`).
    Raises ConfigError for a file that cannot be read and for a malformed table."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"languages={str(path)!r}: it cannot be read: {error}") from error
    return {name: _language(name, table, f"{path}: [{name}]") for name, table in tables.items()}


def add_languages(path: Path) -> None:
    """Make the languages of a file known to this process, in place of earlier ones of the same
    name. Raises ConfigError, and then adds none of them."""
    _known.update(read_languages(path))


def language(name: str) -> Language:
    """Return a known language by its name. Python is not among them, since the sandbox runs it
    directly. Raises ConfigError for any other name."""
    if name not in _known:
        known = ", ".join((PYTHON, *_known))
        raise ConfigError(
            f"language={name!r} is unknown; use one of {known}, or add it with add_languages"
        )
    return _known[name]


def language_of_fusion(name: str) -> str | None:
    """Return our name of a language that Sandbox Fusion calls `name`, or None. Python is not among
    them."""
    return next((ours for ours, each in _known.items() if name and each.fusion == name), None)


def fences_of(name: str) -> tuple[str, ...]:
    """Return the tags of a language's code blocks, in lower case, the usual one first. Raises
    ConfigError for Python, too, and for an unknown name."""
    return language(name).fences


def _language(name: str, table: Any, where: str) -> Language:
    """Read one language's table, with tags in lower case and the name as the default title. Raises
    ConfigError that begins with `where` and names the field."""
    kinds = {field.name: field.type for field in fields(Language) if field.name != "name"}
    if not isinstance(table, dict) or name == PYTHON:
        raise ConfigError(f"{where}: a language is a table, and its name is not {PYTHON!r}")
    for key, value in table.items():
        if key not in kinds:
            raise ConfigError(f"{where}: {key} is no field; use {', '.join(kinds)}")
        fits = {
            "fences": isinstance(value, list) and all(isinstance(tag, str) for tag in value),
            "spare_mb": type(value) is int and value >= 0,
        }.get(key, isinstance(value, str))
        if not fits:
            raise ConfigError(f"{where}: {key}={value!r} has the wrong type")
    for key in _REQUIRED:
        if not table.get(key):
            raise ConfigError(f"{where}: {key} is missing")
    if "/" in table["file"] or table["file"] in (".", ".."):
        raise ConfigError(f"{where}: file={table['file']!r}: use a name without directories")
    fences = tuple(tag.lower() for tag in table["fences"])
    return Language(name, **{"title": name, **table, "fences": fences})


_known = read_languages(_BUILTIN)
