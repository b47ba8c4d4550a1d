"""Calls somebody's code, in the interpreter that has it, for each line of JSON on stdin; answers
each with a line. Standard library only.

Usage: python shim.py CALLS SPEC. CALLS is a file with `load(spec, module_of)`, `answer(loaded,
question)` and `told(error, spec)`; SPEC is JSON.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from types import ModuleType


def module_of(name: str, file: str) -> ModuleType:
    """A file as a module of that name; dataclasses and pickle look it up while it is executed."""
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Until stdin ends."""
    questions, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(
        os.open(os.devnull, os.O_RDONLY), 0
    )  # what the code reads is no question, and what it prints no answer
    os.dup2(2, 1)
    here = os.path.dirname(
        os.path.abspath(__file__)
    )  # Python puts it first, and no file of ours is what others import
    sys.path[:] = [place for place in sys.path if os.path.abspath(place) != here]
    calls, spec = module_of("_code_rl_calls", sys.argv[1]), json.loads(sys.argv[2])
    try:
        ready, loaded = calls.load(spec, module_of)
    except BaseException as error:  # noqa: BLE001 - whatever an import raises
        answers.write(json.dumps({"failed": calls.told(error, spec)}) + "\n")
        return
    answers.write(json.dumps(ready) + "\n")
    for line in questions:
        question = json.loads(line)
        signed = {
            "nonce": question.pop("nonce")
        }  # a hostile program may write to every descriptor that it inherits
        try:
            said = json.dumps({**calls.answer(loaded, question), **signed})
        except BaseException as error:  # noqa: BLE001 - the failure is what is asked for
            said = json.dumps({"failed": calls.told(error, spec), **signed})
        answers.write("\n" + said + "\n")


if __name__ == "__main__":
    main()
