"""Front doors of packages: names imported from their files on first use.

A process of the sandbox imports some of these packages, so a door itself imports almost nothing.
"""

from __future__ import annotations

import importlib
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Lazy:
    """A module that is imported as soon as one of its names is read: annotations can be resolved
    (`typing.get_type_hints`), and nothing heavy is loaded before."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._module), name)


def names(package: str) -> dict[str, str]:
    """Return {name: module:object} of everything imported under `if TYPE_CHECKING:` in a package's
    `__init__`, by parsing its file. The package must be in `sys.modules`; its other `if` blocks are
    read too."""
    import ast
    from pathlib import Path

    tree = ast.parse(Path(str(sys.modules[package].__file__)).read_text(encoding="utf-8"))
    blocks = (node.body for node in tree.body if isinstance(node, ast.If))
    imports = (node for body in blocks for node in body if isinstance(node, ast.ImportFrom))
    return {
        alias.asname or alias.name: f"{node.module}:{alias.name}"
        for node in imports
        for alias in node.names
    }


def door(package: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package whose `if TYPE_CHECKING:` block lists its names. It
    imports a name on first use and stores it in the package; it raises AttributeError for
    others."""
    modules: dict[str, str] = {}

    def get(name: str) -> Any:
        """Import the object called `name` and store it in the package, so that this is called once
        per name. Raises AttributeError for a name that the block does not list, and any exception
        of its module."""
        if not modules:
            modules.update(names(package))
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, known = modules[name].partition(":")
        value = getattr(importlib.import_module(module), known)
        setattr(sys.modules[package], name, value)
        return value

    return get
