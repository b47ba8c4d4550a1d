"""The settings of a training run, recipes, and both conventions of `group_size`.

Other packages import from here.
"""

from code_rl.training.config.derived import (
    BatchShape,
    batch_shape,
    doubtful,
    on_built_in_problems,
    refuse_idle,
    refuse_settings,
    unused,
)
from code_rl.training.config.fields import FACTS, Config
from code_rl.training.config.recipes import (
    RECIPES,
    changed_settings,
    defaults_here,
    make_config,
    published_values,
    recipe_of,
)

__all__ = [
    "FACTS",
    "RECIPES",
    "BatchShape",
    "Config",
    "batch_shape",
    "changed_settings",
    "defaults_here",
    "doubtful",
    "make_config",
    "on_built_in_problems",
    "published_values",
    "recipe_of",
    "refuse_idle",
    "refuse_settings",
    "unused",
]
