"""Every `NAME=` in a message that a verb raises is a setting of that verb, or of another that the message names: checked for each
error that any test causes."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from pkgutil import resolve_name
from typing import Any

import chz

from code_rl.cli.main import VERBS
from code_rl.util.errors import CodeRLError

NAME = re.compile(r"(?<![\w.'\"\[{/])([a-z][a-z0-9_]*)=(?!=)")
FIELDS = re.compile(r", line \d+.*")
OTHER_VERB = re.compile(r"code-rl (\w+)")


def check_names() -> None:
    """Wrap the command of every verb, before any test imports it."""
    for name, verb in VERBS.items():
        module, _, attribute = verb.command.partition(":")
        setattr(resolve_name(module), attribute, _checked(name, resolve_name(verb.command)))


def _checked(verb: str, command: Callable[[Mapping[str, str]], int]) -> Callable[[Mapping[str, str]], int]:
    @functools.wraps(command)
    def run(given: Mapping[str, Any]) -> int:
        try:
            return command(given)
        except CodeRLError as error:
            foreign = foreign_names(verb, str(error)) - given.keys()
            if foreign:
                raise AssertionError(f"{verb} has no {foreign}, which its message names") from error
            raise

    return run


def foreign_names(verb: str, message: str) -> set[str]:
    verbs = {verb, *OTHER_VERB.findall(message)} & VERBS.keys()
    known = {name for each in verbs for name in chz.chz_fields(VERBS[each].settings_class())}
    return {*NAME.findall(FIELDS.sub("", message))} - known
