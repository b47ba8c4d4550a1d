"""The package imports the distributions that `pyproject.toml` asks for: in the core, or in the extra of the room that imports it; the core's own rooms load the core alone."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NAMES = {"dotenv": "python-dotenv", "google": "protobuf", "yaml": "pyyaml"}
"""Distributions that are not called as the module that they bring."""
FRAMEWORKS = ("harbor", "nemo-gym", "openenv", "tinker-cookbook", "verifiers")
ROOMS = {"engine/local": "engine", "engine/serve": "serve"} | {
    f"integrations/{name.replace('-', '_')}": name for name in FRAMEWORKS
}
"""Places that nobody enters without the packages of an extra; `train` is that of all the others."""
CORE = [
    "code_rl",
    "code_rl.cli.main",
    "code_rl.data.load",
    "code_rl.policy.sample",
    "tinker_utils.env",
    "tinker_utils.lcb",
]
"""What is there without any extra, beside grading and the integrations."""
VERBS_OF_GRADING = ("audit/", "sandbox/server/")
"""Rooms of grading that are entered by a verb, which needs the extra `train`."""


@cache
def declared(*extras: str) -> set[str]:
    """Distributions of the core and of extras, those included that an extra names by another of this package."""
    found: set[str] = set()
    for line in [*PROJECT["dependencies"], *(line for extra in extras for line in PROJECT["optional-dependencies"][extra])]:  # fmt: skip
        name, inner = re.match(r"([\w.-]+)(?:\[([\w-]+)\])?", line).groups()
        found |= declared(inner) if name == PROJECT["name"] else {name.lower().replace("_", "-")}
    return found


parsed = cache(lambda path: ast.parse(path.read_text()))


@cache
def imports(path: Path) -> list[tuple[str, bool]]:
    """Distribution of each import from outside, and whether it happens when the module is loaded."""
    tree, found = parsed(path), []
    loaded = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
        for top in (
            {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names) - {"code_rl", "tinker_utils"}
        ):
            found.append((NAMES.get(top, top.lower().replace("_", "-")), id(node) in loaded))
    return found


@pytest.mark.parametrize("package", ["src/code_rl", "tinker_utils"])
def test_every_import_is_declared_where_it_is_needed(package):
    folder, extras = ROOT / package, PROJECT["optional-dependencies"]
    missing = set()
    for path in sorted(folder.rglob("*.py")):
        place = path.relative_to(folder).as_posix()
        room = [extra for prefix, extra in ROOMS.items() if place.startswith(prefix)]
        for name, loaded in imports(path):
            if name not in declared("train", *(room if loaded else extras)):
                missing.add((place, name))
    assert missing == set()


def file_of(module: str) -> Path | None:
    """Where a module of ours is; None for another module."""
    base = (ROOT if module.startswith("tinker_utils") else ROOT / "src") / module.replace(".", "/")
    return next((path for path in (base / "__init__.py", base.with_suffix(".py")) if path.is_file()), None)


def loaded_with(module: str) -> set[str]:
    """The modules of ours that importing `module` loads, itself included."""
    found, waiting = set[str](), [module]
    while waiting:
        name = waiting.pop()
        if name in found or (path := file_of(name)) is None:
            continue
        found.add(name)
        waiting.append(name.rpartition(".")[0])
        for node in parsed(path).body:
            if isinstance(node, ast.ImportFrom) and node.module:
                waiting += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                waiting += [alias.name for alias in node.names]
    return found


def core_modules() -> Iterator[str]:
    yield from CORE
    for wing in ("grading", "integrations"):
        folder = ROOT / "src" / "code_rl" / wing
        for path in folder.rglob("*.py"):
            if not path.relative_to(folder).as_posix().startswith(VERBS_OF_GRADING):
                yield ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)


def test_a_room_of_the_core_loads_nothing_that_the_core_does_not_bring():
    outside = set()
    for module in core_modules():
        room = [extra for extra in FRAMEWORKS if module == f"code_rl.integrations.{extra.replace('-', '_')}"]
        for each in loaded_with(module.removesuffix(".__init__")):
            outside |= {(module, each, name) for name, loaded in imports(file_of(each)) if loaded} - {
                (module, each, name) for name in declared(*room)
            }
    assert outside == set()
