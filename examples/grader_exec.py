"""A grader of the common kind: answer and checks in one process, paid if nothing raised."""

import json
import subprocess
import sys
from typing import Any

HARNESS = """import io, json, signal, sys; signal.alarm(9)
answer, name, cases = json.load(sys.stdin)
def check(found, wanted): assert found == wanted
for given, wanted in cases:
    sys.stdin, sys.stdout = io.StringIO(str(given)), io.StringIO()
    exec(answer, globals())
    check(getattr(Solution(), name)(*given) if name else sys.stdout.getvalue().split(), wanted)"""


def grade(code: str, problem: dict[str, list[Any]]) -> float:
    wanted = problem["outputs"] if problem["fn_name"] else [each.split() for each in problem["outputs"]]
    asked = json.dumps([code, problem["fn_name"], [*zip(problem["inputs"], wanted, strict=True)]]).encode()
    return float(
        subprocess.run([sys.executable, "-I", "-c", HARNESS], input=asked, capture_output=True).returncode == 0
    )
