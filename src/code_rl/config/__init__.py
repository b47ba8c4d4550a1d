"""The settings of a training run, recipes, and how both conventions of `group_size` resolve."""

from code_rl.config.derived import BatchShape, batch_shape, context_schedule, loss_config
from code_rl.config.fields import Config, parse_difficulty
from code_rl.config.recipes import RECIPES, changed_settings, make_config, read_recipe, resolve_places

__all__ = [
    "RECIPES",
    "BatchShape",
    "Config",
    "batch_shape",
    "changed_settings",
    "context_schedule",
    "loss_config",
    "make_config",
    "parse_difficulty",
    "read_recipe",
    "resolve_places",
]
