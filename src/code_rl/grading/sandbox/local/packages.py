"""The packages outside the standard library that programs may import."""

from __future__ import annotations

import importlib.util
from pathlib import Path

PRELOADED_PACKAGES = ("numpy", "sortedcontainers")
SHOWN_PACKAGES = (
    *PRELOADED_PACKAGES,
    "scipy",
    "pandas",
    "networkx",
    "sympy",
    "mpmath",
    "more_itertools",
    "dateutil",
    "pytz",
    "six",
)
"""Packages that programs may import if installed here."""


def installed_packages() -> list[tuple[str, str]]:
    """Return (name under the packages directory, path here) of each package that programs may
    import."""
    found: list[tuple[str, str]] = []
    for name in SHOWN_PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            continue
        origin = Path(spec.origin)
        path = origin.parent if origin.name == "__init__.py" else origin
        found.append((path.name, str(path)))
        libraries = path.with_name(f"{name}.libs")
        if libraries.is_dir():
            found.append((libraries.name, str(libraries)))
    return found
