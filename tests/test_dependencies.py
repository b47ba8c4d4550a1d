"""What the package imports is what `pyproject.toml` asks for: in the core, or in the extra of the room that imports it."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NAMES = {"dotenv": "python-dotenv", "google": "protobuf", "yaml": "pyyaml"}
"""Distributions that are not called as the module that they bring."""
FRAMEWORKS = ("nemo-gym", "openenv", "verifiers")
ROOMS = {"engine/local": "embedded", "engine/serve": "serve"} | {
    f"integrations/{name.replace('-', '_')}": name for name in FRAMEWORKS
}
"""Places that nobody enters without the packages of an extra."""


def declared(*extras: str) -> set[str]:
    """Distributions of the core and of extras, those included that an extra names by another of this package."""
    found: set[str] = set()
    for line in [*PROJECT["dependencies"], *(line for extra in extras for line in PROJECT["optional-dependencies"][extra])]:  # fmt: skip
        name, inner = re.match(r"([\w.-]+)(?:\[([\w-]+)\])?", line).groups()
        found |= declared(inner) if name == PROJECT["name"] else {name.lower().replace("_", "-")}
    return found


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Distribution of each import from outside, and whether it happens when the module is loaded."""
    tree = ast.parse(path.read_text())
    loaded = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
        for top in (
            {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names) - {"code_rl", "tinker_utils"}
        ):
            yield NAMES.get(top, top.lower().replace("_", "-")), id(node) in loaded


@pytest.mark.parametrize("package", ["src/code_rl", "tinker_utils"])
def test_every_import_is_declared_where_it_is_needed(package):
    folder, extras = ROOT / package, PROJECT["optional-dependencies"]
    missing = set()
    for path in sorted(folder.rglob("*.py")):
        place = path.relative_to(folder).as_posix()
        room = [extra for prefix, extra in ROOMS.items() if place.startswith(prefix)]
        for name, loaded in imports(path):
            if name not in declared(*(room if loaded else extras)):
                missing.add((place, name))
    assert missing == set()
