"""The settings of a run, from the given ones, a recipe or an earlier run, and the values of
`auto`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import chz

from code_rl.data import with_absolute_paths
from code_rl.engine import BUILT_IN, BackendKind, resolve_backend
from code_rl.engine.names import with_absolute_path
from code_rl.grading.sandbox import resolve_executor
from code_rl.training.config.fields import FACTS, Config
from code_rl.util.errors import ConfigError
from code_rl.util.registry import GIVEN
from code_rl.util.settings import make_settings
from code_rl.util.suggestion import suggestion

HOSTED_RECIPE = "course"
PUBLISHED = "published"
PATHS = {
    **dict.fromkeys(("init_from", "prices"), lambda path: str(Path(path).expanduser().absolute())),
    "recipe": lambda name: (
        str(Path(name).expanduser().absolute()) if name.endswith(".toml") else name
    ),
    **dict.fromkeys(("dataset", "test_dataset"), with_absolute_paths),
    "model_name": with_absolute_path,
}
"""The settings that name paths, each with the function that makes them absolute."""
RECIPES = Path(__file__).parent.parent / "recipes"


def make_config(given: Mapping[str, Any], earlier: Mapping[str, Any] | None = None) -> Config:
    """Return the run's settings: defaults, then the recipe (or the `earlier` run's settings), then
    the given ones, with `auto` resolved and paths absolute. Recipes that are files are read.

    Raises ConfigError for an unknown setting, a wrong value, an unknown recipe, or settings that
    contradict each other.
    """
    if "groups_per_batch" in given and "group_size" not in given:
        raise ConfigError(
            "groups_per_batch= is given without group_size=, which is then the completions per "
            "prompt; type groups_per_batch=8 group_size=16"
        )
    if "groups_per_batch" in given and "batch_size" in given:
        raise ConfigError(
            "groups_per_batch= and batch_size= are both given; with groups_per_batch=, "
            "group_size= completes it"
        )
    config = (
        _with_recipe(given)
        if earlier is None
        else resolve_places(make_settings(Config, earlier, given))
    )
    for name, off, value in (
        ("keep_checkpoints", "save_every", 0),
        ("test_dataset", "eval_every", -1),
    ):
        if given.get(name) is not None and getattr(config, off) == value:
            raise ConfigError(
                f"{name}={given[name]} has no effect with {off}={value}; leave one of the two out"
            )
    return config


def defaults_here() -> dict[str, str]:
    """Return the defaults that a recipe sets on this machine, described as text by setting, for
    `--help`."""
    fields, config = chz.chz_fields(Config), make_config({})
    return {
        name: f"{value}  (of recipe={config.recipe}; without a recipe {fields[name]._default})"
        for name, value in chz.asdict(config).items()
        if name in recipe_of({"recipe": config.recipe}) and value != fields[name]._default
    }


def _with_recipe(given: Mapping[str, Any]) -> Config:
    """Return the defaults, overridden by the recipe's values, overridden by the given ones. A given
    `batch_size` or `group_size` takes the recipe's `groups_per_batch` away. Raises ConfigError."""
    draft = resolve_places(make_settings(Config, given))
    recipe = draft.recipe or _default_recipe(draft)
    if recipe is None:
        return draft
    values = read_recipe(recipe)
    if "batch_size" in given or "group_size" in given:
        values.pop("groups_per_batch", None)
    return resolve_places(make_settings(Config, values, given, {"recipe": recipe}))


def _default_recipe(config: Config) -> str | None:
    """Return the recipe of a run that names none, or None for no recipe. The built-in model has its
    own; a remote back end gets the course's; any other model on the embedded engine gets none."""
    embedded = config.backend == BackendKind.EMBEDDED
    if config.model_name == BUILT_IN or (embedded and config.model_name is None):
        return BUILT_IN
    return None if embedded else HOSTED_RECIPE


def resolve_places(config: Config) -> Config:
    """Return the settings with `auto` resolved and relative paths made absolute. Raises ConfigError
    for back ends, samplers and executors that this version does not support."""
    backend, executor = resolve_backend(config.backend), resolve_executor(config.executor)
    paths = {
        name: absolute(value)
        for name, absolute in PATHS.items()
        if (value := getattr(config, name))
        and (name != "model_name" or backend == BackendKind.EMBEDDED)  # else the server's name
    }
    return chz.replace(config, backend=backend, executor=executor, **paths)


def read_recipe(name: str) -> dict[str, Any]:
    """Return the settings of a recipe by its name or by a path `FILE.toml`, without its published
    values. Raises ConfigError for an unknown name, with the known ones, and for a file that cannot
    be read."""
    return {setting: value for setting, value in _read(name).items() if setting != PUBLISHED}


def recipe_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the packaged recipe that a run's settings name; an empty dict for none,
    an unknown name, or a file."""
    name = settings.get("recipe")
    return read_recipe(name) if isinstance(name, str) and name in _names() else {}


def published_values(name: str) -> list[dict[str, Any]]:
    """Return the values published for a recipe: `benchmark`, `figure` (pass@1 by default), `before`
    and `after`, in per cent. The list is empty for an unknown name."""
    if name not in _names():
        return []
    return [{"figure": "pass@1", **value} for value in _read(name).get(PUBLISHED, [])]


def _names() -> list[str]:
    """Return the names of the packaged recipes, sorted."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def _read(name: str) -> dict[str, Any]:
    """Return the content of a packaged recipe by its name, or of a file of settings by its path
    `FILE.toml`. Raises ConfigError if the name is unknown or the file cannot be read."""
    names, path = _names(), RECIPES / f"{name}.toml"
    if name.endswith(".toml"):
        path = Path(name)
    elif name not in names:
        raise ConfigError(
            f"unknown recipe {name!r}{suggestion(name, names)}; there are: {', '.join(names)}; or "
            "give a file of settings, FILE.toml"
        )
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"recipe={name} cannot be read: {error}") from error


def changed_settings(was: Config, now: Config) -> list[str]:
    """Return the names of the settings that may not change on a resume and whose values differ;
    empty if `now` may go on from `was`. An object without an importable name cannot be compared;
    one given in its place is accepted."""
    pairs = {
        name: (getattr(was, name), getattr(now, name))
        for name, facts in FACTS.items()
        if facts.fixed
    }
    return [
        name
        for name, pair in pairs.items()
        if pair[0] != pair[1] and not all(str(value).startswith(GIVEN) for value in pair)
    ]
