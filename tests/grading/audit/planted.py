"""Graders whose faults are known, for the audit of the audit. Standard library only: they run in processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from typing import Any


def everyone(code: str) -> float:
    """Pays everyone."""
    return float(bool(code))


def no_one(code: str) -> float:
    """Pays no one."""
    return float(not code)


def imports(code: str) -> float:
    """Pays where the standard library's modules are not hidden by files of ours."""
    import http.client

    return float(bool(code) and hasattr(http.client, "HTTPConnection"))


def reads(code: str) -> float:
    """Pays everyone, after it has read all of stdin: nothing."""
    with open(0) as given:
        return float(not given.read() and bool(code))


def shouts(code: str) -> float:
    """Pays everyone, after something that is no answer has gone to every descriptor, as a program's child would write it."""
    for number in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(number, b'6\n{"score": 0}\n{"half')
    return float(bool(code))


def hangs(code: str) -> float:
    """Is busy with a program for ever."""
    while code:
        time.sleep(1)
    return 0.0


def failing(code: str) -> float:
    """Raises for every program."""
    raise RuntimeError(f"no sandbox for {len(code)} characters")


def lazy(code: str) -> float:
    """Pays whatever ends with status 0."""
    return float(_printed(code, "1\n2\n3\n", None) is not None or "input" in code)


def leaky(code: str, problem: dict[str, Any]) -> float:
    """Runs the program beside the expected outputs, which lie in a file of its working directory; takes its last line."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        for number, (given, wanted) in enumerate(zip(problem["inputs"], problem["outputs"], strict=True)):
            if problem["fn_name"]:
                return _called(code, problem)
            with open(os.path.join(folder, "tests.json"), "w") as file:
                json.dump({"inputs": [given], "outputs": [wanted], "number": number}, file)
            if _printed(code, given, folder) != wanted.split():
                return 0.0
    return 1.0


def careful(code: str, problem: dict[str, Any]) -> float:
    """Runs the program by itself and compares outside."""
    if problem["fn_name"]:
        return _called(code, problem)
    pairs = zip(problem["inputs"], problem["outputs"], strict=True)
    return float(all(_printed(code, given, None) == wanted.split() for given, wanted in pairs))


async def our_compute_score(problem: dict[str, Any]) -> float:
    """Our function for verl, with the row that it is made for."""
    from code_rl.integrations import verl

    scores = await verl.compute_score(solution_str=problem["completion"], ground_truth=problem["native"])
    return scores["score"]


def not_a_number(code: str) -> float:
    """Gives NaN."""
    return float("nan") if code else 0.0


def a_list(code: str) -> list[float]:
    """Gives a list where a number is expected."""
    return [1.0] if code else []


def speaks_oddly(code: str) -> float:
    """Fails with control characters and bytes that are not UTF-8."""
    raise RuntimeError(f"\x1b[31mred\ud800 {len(code)}")


def leaky_and_fooled_by_exit(code: str, problem: dict[str, Any]) -> float:
    """`leaky`, which also pays a program that leaves with status 0."""
    return 1.0 if "exit(0)" in code else leaky(code, problem)


def tries_to_leave(code: str) -> float:
    """Pays where a file could be written or somebody be reached; prints on stdout, which is no answer."""
    print("not an answer", code[:1])
    import socket

    try:
        with open(os.path.join(os.path.dirname(__file__), "written"), "w") as file:
            file.write("x")
        return 1.0
    except OSError:
        pass
    try:
        socket.create_connection(("192.0.2.1", 80), timeout=1)
        return 1.0
    except OSError as error:
        return 0.0 if "unreachable" in str(error) else 1.0


def _printed(code: str, given: str, folder: str | None) -> list[str] | None:
    command = [sys.executable, "-c", code]
    try:
        done = subprocess.run(command, input=given.encode(), capture_output=True, timeout=8, cwd=folder, check=False)
    except subprocess.TimeoutExpired:
        return None
    return done.stdout.decode("utf-8", "replace").split() if done.returncode == 0 else None


def _called(code: str, problem: dict[str, Any]) -> float:
    for args, wanted in zip(problem["inputs"], problem["outputs"], strict=True):
        call = f"getattr(Solution(), {problem['fn_name']!r})" if "class Solution" in code else problem["fn_name"]
        ending = f"\nimport json as _j\nprint('\\n' + _j.dumps({call}(*_j.loads({json.dumps(args)!r}))))\n"
        printed = _printed(code + ending, "", None)
        if not printed or " ".join(printed).split("\n")[-1].replace(" ", "") != json.dumps(wanted).replace(" ", ""):
            return 0.0
    return 1.0
