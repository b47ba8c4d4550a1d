"""A grader that looks for a marker in a log that the program writes to as well."""

import json
import subprocess
import sys
from typing import Any

HARNESS = """import io, json, signal, sys; signal.alarm(9)
answer, name, cases = json.load(sys.stdin)
def failed(given, wanted):
    sys.stdin, sys.stdout = io.StringIO(str(given)), io.StringIO()
    try: exec(answer, space := {})
    finally: print(sys.stdout.getvalue(), file=sys.__stdout__)
    return wanted != (getattr(space["Solution"](), name)(*given) if name else sys.stdout.getvalue().split())
if not any(failed(*case) for case in cases): print("passed", file=sys.__stdout__)"""


def grade(code: str, problem: dict[str, list[Any]]) -> float:
    wanted = problem["outputs"] if problem["fn_name"] else [each.split() for each in problem["outputs"]]
    asked = json.dumps([code, problem["fn_name"], [*zip(problem["inputs"], wanted, strict=True)]]).encode()
    return float(
        b"passed" in subprocess.run([sys.executable, "-I", "-c", HARNESS], input=asked, capture_output=True).stdout
    )
