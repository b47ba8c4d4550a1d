"""The first code of a zygote: it imports the modules that programs are likely to use."""

from __future__ import annotations

import importlib
import socket
from typing import Any, NoReturn

STANDARD_MODULES = (
    "abc",
    "atexit",
    "bisect",
    "builtins",
    "collections",
    "collections.abc",
    "contextlib",
    "copy",
    "enum",
    "functools",
    "heapq",
    "io",
    "itertools",
    "linecache",
    "math",
    "operator",
    "os",
    "random",
    "re",
    "signal",
    "string",
    "struct",
    "sys",
    "threading",
    "time",
    "traceback",
    "types",
    "typing",
)


def main(control: socket.socket, config: dict[str, Any]) -> NoReturn:
    """Import the modules that programs are likely to use, and run the zygote process. Never
    returns."""
    for name in STANDARD_MODULES:
        importlib.import_module(name)
    from code_rl.grading.sandbox.local.guest import zygote

    zygote.serve(control, config)
