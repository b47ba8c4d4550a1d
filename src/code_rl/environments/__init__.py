"""Environments: what a problem is to a policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from code_rl.environments.base import Environment, Grader, Reply
from code_rl.environments.repair import Repair
from code_rl.environments.single import Single
from code_rl.errors import ConfigError
from code_rl.registry import find

__all__ = ["ENVIRONMENTS", "Environment", "Grader", "Repair", "Reply", "Single", "get_environment"]

ENVIRONMENTS: Mapping[str, Callable[..., Environment]] = {"single": Single, "repair": Repair}


def get_environment(name: str, max_turns: int | None = None) -> Environment:
    """The environment called `name`, or made by the class that `package.module:object` is.

    Raises ConfigError for an unknown name, one that has not the two calls, or `max_turns` where it has no effect.
    """
    make = find("environment", name, ENVIRONMENTS)
    if max_turns is not None and make is Single:
        raise ConfigError(f"max_turns={max_turns} has no effect with environment=single; choose environment=repair")
    try:
        made = make() if max_turns is None else make(max_turns=max_turns)
    except TypeError as error:
        raise ConfigError(f"environment={name} cannot be made: {error}") from error
    for call in ("begin", "reply", "max_turns"):
        if not hasattr(made, call):
            raise ConfigError(f"environment={name} has no {call}; see code_rl.environments.Environment")
    return made
