"""Which mutants a set's own tests kill: a plain trusted run, with a comparison written apart from the judge's.

Runs as a child process (`python oracle.py` with a pickled `Question` on stdin, a JSON list of fates on stdout), because mutants loop and
crash. Each mutant runs in a fork of the child with its own CPU and memory limits.
"""

from __future__ import annotations

import copy
import json
import math
import os
import pickle
import resource
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SURVIVED, KILLED, UNDECIDED = "survived", "killed", "undecided"


@dataclass(frozen=True)
class Question:
    """Everything plain: source texts, typed arguments, and how the set compares."""

    reference: str
    entry_point: str
    calls: tuple[tuple[Any, ...], ...]
    mutants: tuple[str, ...]
    atol: float
    view: str = ""
    cpu_s: int = 4


def fates(question: Question) -> list[str]:
    """SURVIVED, KILLED or UNDECIDED (out of time or memory) for each mutant, in order."""
    run = subprocess.run(
        [sys.executable, str(Path(__file__))], input=pickle.dumps(asdict(question)), capture_output=True, check=True
    )
    return list(json.loads(run.stdout))


def same(out: Any, expected: Any, atol: float) -> bool:
    """EvalPlus's equality: `==`, or closeness where the expected value is a float or a flat sequence of floats."""
    if bool(out == expected):
        return True
    if atol == 0 and _floats(expected):
        atol = 1e-6
    return atol != 0 and _close(out, expected, atol)


def _floats(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(isinstance(item, float) for item in value)
    return isinstance(value, float)


def _close(out: Any, expected: Any, atol: float) -> bool:
    if isinstance(expected, list | tuple):
        return (
            type(out) is type(expected)
            and len(out) == len(expected)
            and all(_close(a, b, atol) for a, b in zip(out, expected, strict=True))
        )
    if not isinstance(out, int | float) or not isinstance(expected, int | float):
        return False
    return out == expected or (math.isfinite(out) and abs(out - expected) <= atol + 1e-7 * abs(expected))


def _viewed(value: Any, view: str) -> Any:
    if view == "set":
        return set(value)
    if view == "found":
        return value if isinstance(value, bool) else value is not None
    return value


def _is_root(coefficients: list[Any], root: Any) -> bool:
    return abs(sum(c * math.pow(root, power) for power, c in enumerate(coefficients))) <= 1e-4


def _function(source: str, name: str) -> Any:
    space: dict[str, Any] = {"__name__": "candidate"}
    exec(compile(source, "candidate", "exec"), space)
    return space[name]


def _fate(question: Question, source: str, expected: list[Any]) -> str:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (question.cpu_s, question.cpu_s))
            resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
            function = _function(source, question.entry_point)
            right = True
            for call, value in zip(question.calls, expected, strict=True):
                out = _viewed(function(*copy.deepcopy(call)), question.view)
                right = _is_root(call[0], out) if question.view == "root" else same(out, value, question.atol)
                if not right:
                    break
            code = 0 if right else 1
        except MemoryError:
            code = 2
        except BaseException:  # noqa: BLE001 - a mutant may raise anything; that kills it
            code = 1
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return UNDECIDED if os.WTERMSIG(status) in (signal.SIGKILL, signal.SIGXCPU) else KILLED
    return {0: SURVIVED, 1: KILLED}.get(os.WEXITSTATUS(status), UNDECIDED)


def main() -> None:
    """Answer the question on stdin."""
    question = Question(**pickle.load(sys.stdin.buffer))
    answers = os.fdopen(os.dup(1), "w")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    sys.set_int_max_str_digits(0)
    reference = _function(question.reference, question.entry_point)
    expected = [_viewed(reference(*copy.deepcopy(call)), question.view) for call in question.calls]
    json.dump([_fate(question, source, expected) for source in question.mutants], answers)
    answers.close()


if __name__ == "__main__":
    main()
