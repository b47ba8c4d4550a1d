"""Calls a foreign grader, inside its own interpreter, for each line of JSON on stdin, and answers
with a line of JSON. The first line loads the grader. Standard library only.

Usage: python shim.py TARGET FOLDER, as in `package.module:function /import/from/here`.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def main() -> None:
    """Answer each line with a line until stdin ends. A question has a `nonce`, which its answer
    repeats beside `score`, or `failed` if anything was raised. The first question only loads the
    grader.

    The grader's own stdin is empty and its stdout goes to stderr, so it cannot mix with the
    answers.
    """
    questions, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w", buffering=1)
    # Keep the grader's own input and output apart from questions and answers
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    # Python puts this folder first, but graders must not import its files
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [place for place in sys.path if os.path.abspath(place) != here]
    target, folder = sys.argv[1:]
    function: Callable[..., Any] | None = None
    for line in questions:
        question = json.loads(line)
        # a hostile program may write to every descriptor that it inherits
        said = {"nonce": question.pop("nonce")}
        try:
            if function is None:
                function = load(target, folder)
            else:
                said["score"] = score_of(_call(function, code=question["code"], problem=question))
        except BaseException as error:  # noqa: BLE001 - the failure is the answer
            said["failed"] = f"{type(error).__name__}: {error}"
        answers.write("\n" + json.dumps(said) + "\n")


def _module_of(name: str, file: str) -> ModuleType:
    """Load a file as a module of that name. It is entered in `sys.modules` first, where dataclasses
    and pickle look it up during execution. Raises ImportError for a file of another type, and
    anything that the file raises."""
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load(target: str, folder: str) -> Callable[..., Any]:
    """Return the function from a module that can be imported from `folder`, or from a file `….py`.
    `folder`, and then the file's own, are put at the front of `sys.path`.

    Raises TypeError if it is no function or requires arguments other than `code` and `problem`.
    ImportError, AttributeError and the module's own exceptions pass.
    """
    sys.path.insert(0, folder)
    module_name, _, name = target.rpartition(":")
    if module_name.endswith(".py"):
        folder, file = os.path.split(os.path.abspath(module_name))
        sys.path.insert(0, folder)
        stem = file.removesuffix(".py")
        known = stem in sys.modules or stem in sys.stdlib_module_names
        # the name under which another process can import it
        found: Any = _module_of("grader" if known else stem, module_name)
    else:
        found = importlib.import_module(module_name)
    for part in name.split("."):
        found = getattr(found, part)
    for parameter in inspect.signature(found).parameters.values():
        given = parameter.name in ("code", "problem") or parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        )
        if not given and parameter.default is parameter.empty:
            raise TypeError(f"{name} needs {parameter.name}; a grader is given code and problem")
    return found  # type: ignore[no-any-return]


def _call(function: Callable[..., Any], **arguments: Any) -> Any:
    """Call the function with those arguments that it accepts by name, and await the result if
    needed. Exceptions of the function pass."""
    parameters = inspect.signature(function).parameters.values()
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        arguments = {
            parameter.name: arguments[parameter.name]
            for parameter in parameters
            if parameter.name in arguments
        }
    value = function(**arguments)
    return asyncio.run(_awaited(value)) if inspect.isawaitable(value) else value


async def _awaited(value: Any) -> Any:
    return await value


def score_of(value: Any) -> float | None:
    """Return a score as a float, or None for a grader without a verdict. Raises TypeError for a
    list, a tuple or a text, and whatever `float()` raises for other values."""
    if isinstance(value, list | tuple | str):
        raise TypeError(f"a number was expected, not {type(value).__name__} of length {len(value)}")
    return None if value is None else float(value)


if __name__ == "__main__":
    main()
