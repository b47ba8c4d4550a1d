"""The settings of a training run, recipes, and how both conventions of `group_size` resolve.

Others import from here, and `setting` where settings of their own are declared: verbs, `evaluation`
and `preparation`.
"""

from code_rl.training.config.derived import (
    BatchShape,
    batch_shape,
    context_schedule,
    refuse_idle,
    refuse_settings,
    unused,
)
from code_rl.training.config.fields import FACTS, Config, refuse_buffer
from code_rl.training.config.recipes import (
    RECIPES,
    changed_settings,
    make_config,
    published_values,
    read_recipe,
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
    "make_config",
    "published_values",
    "read_recipe",
    "refuse_buffer",
    "refuse_idle",
    "refuse_settings",
    "resolve_places",
    "unused",
]
