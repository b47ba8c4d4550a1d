"""The settings of a training run, recipes, and how both conventions of `group_size` resolve.

Others import from here, and `setting` where settings of their own are declared: verbs, `evaluation` and `preparation`.
"""

from code_rl.training.config.derived import BatchShape, batch_shape, context_schedule, loss_config, refuse_idle, unused
from code_rl.training.config.fields import FACTS, Config, parse_difficulty, refuse_buffer
from code_rl.training.config.recipes import (
    RECIPES,
    changed_settings,
    make_config,
    published_values,
    read_recipe,
    recipe_models,
    resolve_places,
)

__all__ = [
    "FACTS",
    "RECIPES",
    "BatchShape",
    "Config",
    "batch_shape",
    "changed_settings",
    "context_schedule",
    "loss_config",
    "make_config",
    "parse_difficulty",
    "published_values",
    "read_recipe",
    "recipe_models",
    "refuse_buffer",
    "refuse_idle",
    "resolve_places",
    "unused",
]
