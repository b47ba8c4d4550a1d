"""Values that follow from several settings: the batch's shape, the loss's thresholds, and the token
limits by stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import chz

from code_rl.engine import BUILT_IN, kind_of
from code_rl.training.config.fields import FACTS, Config
from code_rl.training.config.recipes import recipe_of
from code_rl.util.errors import ConfigError
from code_rl.util.options import SamplingOptions
from code_rl.util.registry import GIVEN, given_object

FAR = 10.0
"""A setting that differs from its recipe's by more than this factor is mentioned at the start."""
LEAST_SPREAD = 0.01
"""A `temperature` or `top_p` below this value samples the likeliest token nearly always."""


@dataclass(frozen=True, slots=True)
class BatchShape:
    """P prompts with G completions each."""

    prompts: int
    samples_per_prompt: int

    def __str__(self) -> str:
        """Return `P prompts × G completions`, for messages."""
        return f"{self.prompts} prompts × {self.samples_per_prompt} completions"


def batch_shape(config: Config) -> BatchShape:
    """Return P and G from either convention of `group_size`: completions per prompt with
    `groups_per_batch`, else prompts. Raises ConfigError if the batch cannot be divided into equal
    micro-batches, or into prompts."""
    shape = _batch_shape(config)
    parts = config.num_substeps * config.num_minibatches
    if shape.prompts % parts:
        raise ConfigError(
            f"num_substeps={config.num_substeps} times num_minibatches={config.num_minibatches} "
            f"does not divide the {shape.prompts} prompts of a batch; choose factors of it"
        )
    return shape


def _batch_shape(config: Config) -> BatchShape:
    """Return P and G from `groups_per_batch` and `group_size` (completions per prompt), or from
    `batch_size` (completions) and `group_size` (prompts). Raises ConfigError if the second pair
    does not divide."""
    if config.groups_per_batch is not None:
        return BatchShape(config.groups_per_batch, config.group_size)
    if config.batch_size % config.group_size:
        raise ConfigError(
            f"batch_size={config.batch_size} is not divisible by group_size={config.group_size} "
            "(the number of prompts); "
            "choose a multiple, or give groups_per_batch= and group_size= (completions per prompt)"
        )
    return BatchShape(config.group_size, config.batch_size // config.group_size)


def refuse_idle(config: Config) -> None:
    """Raise ConfigError, naming the setting, if a run would train without ever learning anything:
    one completion per prompt, or sampling that makes completions nearly equal."""
    shape = batch_shape(config)
    if shape.samples_per_prompt == 1:
        name = "batch_size" if config.groups_per_batch is None else "group_size"
        raise ConfigError(
            f"{name}={getattr(config, name)} leaves one completion per prompt ({shape}): a "
            "completion is compared with the others of its prompt, so nothing would be learned; "
            f"choose a multiple, at least {2 * getattr(config, name)}"
        )
    for name, least in (("temperature", LEAST_SPREAD), ("top_p", LEAST_SPREAD), ("top_k", 2)):
        if 0 <= (value := getattr(config, name)) < least:
            raise ConfigError(
                f"{name}={value:g} makes the completions of a prompt nearly equal, so nothing "
                f"would be learned; choose at least {least}"
            )


def unused(config: Config) -> list[str]:
    """Return a line for each evaluation setting of a run without evaluations that differs from its
    default and its recipe. The settings are kept, since a resume may turn evaluations on."""
    fields, recipe = chz.chz_fields(Config), recipe_of(chz.asdict(config))
    given = {
        name: getattr(config, name)
        for name in ("eval_limit", "eval_samples")
        if config.eval_every < 0
    }
    return [
        f"{name}={value} has no effect with eval_every=-1: nothing is evaluated"
        for name, value in given.items()
        if value not in (fields[name]._default, recipe.get(name))
    ]


def doubtful(config: Config) -> list[str]:
    """Return a line for each number that differs from its recipe's by more than a factor of 10, and
    for a data set that the built-in model cannot learn. They are notices; nothing is refused."""
    lines = []
    for name, theirs in recipe_of(chz.asdict(config)).items():
        ours = getattr(config, name)
        numbers = isinstance(ours, int | float) and isinstance(theirs, int | float)
        if not (numbers and FACTS[name].fixed and ours > 0 and theirs > 0):
            continue
        ratio = ours / theirs
        if ratio > FAR or ratio < 1 / FAR:
            times = f"{ratio:.3g} times" if ratio > 1 else f"1/{1 / ratio:.3g} of"
            lines.append(
                f"{name}={ours:g} is {times} that of recipe={config.recipe} ({theirs:g}); "
                "leave it out unless that is meant"
            )
    if config.model_name == BUILT_IN and not on_built_in_problems(config.dataset):
        lines.append(
            f"dataset={config.dataset}: the built-in model can solve the built-in problems alone; "
            "give model_name= for others"
        )
    return lines


def on_built_in_problems(dataset: str) -> bool:
    """Return True if some of the training problems are among those that the built-in model was made
    for: `builtin` in `dataset`, or a given list whose first problem is built in. A given list is
    known only to the process that has it; in another one the answer is True."""
    if dataset.startswith(GIVEN):
        given = given_object(dataset)
        return not isinstance(given, Sequence) or given[0].id.startswith("builtin/")
    return "builtin" in dataset.split(",")


def refuse_settings(config: SamplingOptions) -> None:
    """Raise ConfigError, naming the setting, if the back end of a run or an evaluation would ignore
    it. Settings at their defaults are never refused."""
    kind, fields = kind_of(config.backend), chz.chz_fields(config)
    for name, facts in FACTS.items():
        if name not in fields:
            continue
        value: Any = getattr(config, name)
        if kind not in facts.honoured and value != fields[name]._default:
            raise ConfigError(
                f"{name}={value} has no effect on backend={config.backend}: "
                f"{facts.refusal}; leave it out"
            )
