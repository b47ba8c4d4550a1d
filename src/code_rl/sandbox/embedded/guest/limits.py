"""The limits that the sandbox inherits from whoever starts it (`ulimit`): those that it sets for tests must fit beneath them."""

from __future__ import annotations

import resource

_NEEDED = (
    (resource.RLIMIT_AS, 3 << 30, "memory as address space (ulimit -v)"),
    (resource.RLIMIT_FSIZE, 256 << 20, "the size of a file (ulimit -f)"),
    (resource.RLIMIT_NOFILE, 256, "open files (ulimit -n)"),
)
"""(kind, what a test of the default limits may need, what it is called)."""


def lift() -> str:
    """Lift inherited hard limits, where this process may. Returns what then still is in the way of a test, or nothing."""
    for kind, needed, name in _NEEDED:
        soft, hard = resource.getrlimit(kind)
        if hard == resource.RLIM_INFINITY:
            continue
        try:
            # The kernel knows no infinity of open files.
            lifted = max(hard, needed) if kind == resource.RLIMIT_NOFILE else resource.RLIM_INFINITY
            resource.setrlimit(kind, (soft, lifted))
        except (ValueError, OSError):
            if hard < needed:
                return f"the limit of {name} is {hard} here, and the embedded sandbox needs {needed}: raise it, or use another executor"
    return ""
