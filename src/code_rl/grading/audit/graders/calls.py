"""How `shim` calls somebody's grader: {"target": "package.module:function", "shape": "trl", "path":
"/where/to/import/from"}."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import sys
from collections.abc import Callable
from typing import Any


def load(spec: dict[str, Any], module_of: Callable[[str, str], Any]) -> tuple[dict[str, Any], Any]:
    """The function, of a module or of a file `….py`, and its shape."""
    sys.path.insert(0, spec["path"])
    module_name, _, name = spec["target"].rpartition(":")
    if module_name.endswith(".py"):
        folder, file = os.path.split(os.path.abspath(module_name))
        sys.path.insert(0, folder)
        stem = file.removesuffix(".py")
        known = stem in sys.modules or stem in sys.stdlib_module_names
        found = module_of(
            "grader" if known else stem, module_name
        )  # the name by which another process can import it
    else:
        found = importlib.import_module(module_name)
    for part in name.split("."):
        found = getattr(found, part)
    return {}, (found, spec["shape"])


def answer(loaded: tuple[Callable[..., Any], str], question: dict[str, Any]) -> dict[str, Any]:
    """The score of one program."""
    function, shape = loaded
    return {"score": score_of(call_as(function, shape, question), shape)}


def told(error: BaseException, spec: dict[str, Any]) -> str:  # noqa: ARG001 - the seam's
    """An exception in words."""
    return f"{type(error).__name__}: {error}"


def call_as(function: Callable[..., Any], shape: str, given: dict[str, Any]) -> Any:
    """Call it as its framework would; what comes back is the score, or what holds it."""
    tests = json.dumps(given["input_output"])
    if shape == "trl":
        columns = {
            "answer": tests,
            "problem": given["native"],
            "ground_truth": tests,
            "input_output": tests,
            "lcb_input_output": json.dumps(given["lcb_input_output"]),
            "info": {"tests": given["test_cases"], "asserts": given["asserts"]},
            "test_cases": given["test_cases"],
            "asserts": given["asserts"],
            "verification_info": {"language": "python", "test_cases": given["test_cases"]},
            "fn_name": given["fn_name"],
        }
        message = [{"role": "assistant", "content": given["completion"]}]
        prompt = [{"role": "user", "content": given["statement"]}]
        return _call(
            function,
            prompts=[prompt],
            completions=[message],
            **{k: [v] for k, v in columns.items()},
        )
    if shape == "verl":
        extra = {
            "index": 0,
            "split": "train",
            "fn_name": given["fn_name"],
            "asserts": given["asserts"],
        }
        return _call(
            function,
            data_source="code",
            solution_str=given["completion"],
            ground_truth=tests,
            extra_info=extra,
        )
    if shape == "verifiers":
        message = [{"role": "assistant", "content": given["completion"]}]
        prompt = [{"role": "user", "content": given["statement"]}]
        state: dict[str, Any] = {
            "completion": message,
            "prompt": prompt,
            "answer": tests,
            "info": {"tests": given},
        }
        return _call(
            function,
            prompt=prompt,
            completion=message,
            answer=tests,
            info={**given},
            state=state,
            task="code",
        )
    return _call(function, code=given["code"], problem=given)


def _call(function: Callable[..., Any], **arguments: Any) -> Any:
    """With those arguments that it takes; awaited where it is to be."""
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


def score_of(value: Any, shape: str) -> float | None:
    """The number: TRL's in a list of one, others' by itself or in a dict under `score` or `reward`.
    Raises TypeError, ValueError."""
    if shape == "trl":
        given = value.tolist() if hasattr(value, "tolist") else value
        if not isinstance(given, list | tuple):
            raise TypeError(
                f"a list of scores was expected, one a completion, not {type(value).__name__}"
            )
        if len(given) != 1:
            raise ValueError(f"{len(given)} scores came back for 1 completion")
        value = given[0]
    elif isinstance(value, dict):
        value = value.get("score", value.get("reward"))
    if isinstance(value, list | tuple | str):
        raise TypeError(f"a number was expected, not {type(value).__name__} of length {len(value)}")
    return None if value is None else float(value)
