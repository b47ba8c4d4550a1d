"""Settings from the command line, for every verb: `key=value`, `--key=value` and `--key value` mean
the same.

A settings class is a `chz` class; its field types, defaults and docs are the only description of
the settings.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args, get_origin

import chz
from chz.blueprint import Blueprint, Castable, InvalidBlueprintArg, MissingBlueprintArg

from code_rl.util.errors import ConfigError
from code_rl.util.options import DeviceOptions, SandboxOptions
from code_rl.util.redaction import holds_key
from code_rl.util.suggestion import suggestion

Settings = TypeVar("Settings")


def read_arguments(argv: Sequence[str]) -> dict[str, str]:
    """Return raw settings (name: text) from command-line words; dashes in names become underscores.
    Raises ConfigError for words of another form, a name without a value, and repeated settings.
    Names and values are not checked."""
    raw: dict[str, str] = {}
    words = iter(argv)
    for word in words:
        name, separator, value = word.removeprefix("--").partition("=")
        name = name if name.startswith("-") else name.replace("-", "_")
        if not name.isidentifier() or not (separator or word.startswith("--")):
            raise ConfigError(
                f"cannot read the argument {word!r}; write key=value without spaces around =, "
                "or --key value"
            )
        if not separator:
            following = next(words, None)
            if following is None:
                raise ConfigError(f"--{name} needs a value, such as {name}=true")
            value = following
        if name in raw:
            raise ConfigError(f"{name} is given twice ({raw[name]!r} and {value!r}); give it once")
        raw[name] = value
    return raw


def make_settings(cls: type[Settings], *layers: Mapping[str, Any]) -> Settings:
    """Build `cls` from layers of values; later layers win. Strings are converted to the field's
    type, other values are not.

    Raises ConfigError for an unknown name (with a suggestion), a missing one, a value that does not
    fit its field or that a validator refuses, and a text that holds a key or a password.
    """
    merged: dict[str, Any] = {}
    for layer in layers:
        merged.update(layer)
    fields = chz.chz_fields(cls)
    for name in merged:
        if name not in fields:
            raise ConfigError(
                f"unknown setting {name!r}{suggestion(name, fields)}; --help lists all of them"
            )
    for name, value in merged.items():
        if isinstance(value, str) and holds_key(value):
            raise ConfigError(
                f"{name} holds what looks like a key or a password; settings are written down and "
                "shown, so keys belong into the environment or .env"
            )
    try:
        values = {
            name: Castable(value) if isinstance(value, str) else value
            for name, value in merged.items()
        }
        return Blueprint(cls).apply(values).make()
    except InvalidBlueprintArg:
        raise ConfigError(_misfit(cls, merged)) from None
    except MissingBlueprintArg as error:
        names = str(error).partition(": ")[2]
        raise ConfigError(f"missing: {names}; --help says what each is for") from None
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error)) from error


def describe(cls: type[Any], usage: str, holds: Mapping[str, str] | None = None) -> str:
    """Return the text of `--help`: usage, the class's docstring, then every setting with its
    default and meaning. `holds` has defaults by name that replace the class's own (None: no
    others)."""
    lines = [f"usage: {usage}", "", inspect.cleandoc(cls.__doc__ or ""), "", "settings:"]
    for name, field in fields_of(cls).items():
        default = field._default
        shown = "required" if type(default).__name__ == "MISSING_TYPE" else f"{default}"
        shown = (holds or {}).get(name, shown)
        lines.append(f"  {name}={shown}")
        lines.extend(
            f"      {line}"
            for line in textwrap.wrap(" ".join(field._doc.split()), 118, break_on_hyphens=False)
        )
    return "\n".join(lines)


def fields_of(cls: type[Any]) -> dict[str, Any]:
    """Return the fields of a settings class by name, in the order in which they are shown: those of
    the device and the sandbox last."""
    fields = chz.chz_fields(cls)
    last = [*chz.chz_fields(DeviceOptions), *chz.chz_fields(SandboxOptions)]
    first = [name for name in fields if name not in last]
    return {name: fields[name] for name in (*first, *last) if name in fields}


def _misfit(cls: type[Any], values: Mapping[str, Any]) -> str:
    """Return a message with the first setting whose value does not fit its type, and the type that
    it needs."""
    fields = chz.chz_fields(cls)
    for name, value in values.items():
        try:
            Blueprint(cls).apply(
                {name: Castable(value) if isinstance(value, str) else value}
            ).make()
        except InvalidBlueprintArg:
            return f"{name}={value!r} is not {_in_words(fields[name].x_type)}"
        # This error is about another field; only a value that does not fit is looked for
        except Exception:  # noqa: BLE001, S112
            continue
    return "a setting has a value of the wrong type"


def _in_words(kind: Any) -> str:
    """Return a field's type in a user's words, such as "a whole number"; None as an alternative is
    left out."""
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    alternatives = [each for each in get_args(kind) if each is not type(None)]
    if alternatives:
        return " or ".join(map(_in_words, alternatives))
    words = {int: "a whole number", float: "a number", bool: "true or false"}
    return words.get(kind, f"a {getattr(kind, '__name__', kind)}")
