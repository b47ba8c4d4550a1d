"""The course's harness: `run_test(sample, code)`, for a sandbox that gets this text as
`testing_util.py`.

Self-contained. Every test is a separate process with real stdin and stdout. Outputs are equal if
their stripped lines are equal, or if the lines' words are the same decimals. Here expected outputs
are in the sandbox, in the program's parent process; training never sends them there (`payload`).
"""

from __future__ import annotations

import decimal
import json
import os
import runpy
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import Any

TEST_CODE = """\
import json
import os
import sys

from testing_util import run_test

with open('test_cases.txt') as file:
    sample = json.load(file)
with open('code.py') as file:
    code = file.read()
os.remove('test_cases.txt')
result, metadata = run_test(sample, code, timeout=%(timeout)s)
if any(x != True for x in result):
    print(metadata)
    sys.exit(-1)
"""
"""The entry point, a template for the wall seconds per test. Exit code 0 means that every test
passed."""


def run_test(
    sample: dict[str, str],
    code: str,
    debug: bool = False,  # noqa: ARG001 - the course passes it
    timeout: float = 6,
) -> tuple[list[bool | int], dict[str, Any]]:
    """Run `code` on the tests of `sample["input_output"]` (the course's JSON text) up to the first
    failure. `timeout` is wall seconds per test; `debug` is ignored.

    Return one result per test that ran, and metadata about a failure (test, exit status, output,
    expected), else none. Results are True for passed, False for wrong, -1 for no answer in time,
    and -2 for an error. A script is written to `solution.py` in the working directory. The course
    calls this signature, so it must not change.
    """
    tests = json.loads(sample["input_output"])
    name = tests.get("fn_name")
    results: list[bool | int] = []
    for case, expected in zip(tests["inputs"], tests["outputs"], strict=True):
        body, text = (
            (_script(code), _lines(case)) if name is None else (_call(code, name, case), "")
        )
        status, output = _run(body, text.encode(), timeout)
        right = status == 0 and (
            _same_lines(output, _lines(expected)) if name is None else _same_value(output, expected)
        )
        results.append({None: -1, 0: right}.get(status, -2))
        if results[-1] is not True:
            metadata = {
                "test": len(results) - 1,
                "status": status,
                "output": output[:200],
                "expected": str(expected)[:200],
            }
            return results, metadata
    return results, {}


def _script(code: str) -> Callable[[], object]:
    """Write `solution.py` in the working directory, and return a body that runs it as a script."""
    with open("solution.py", "w") as file:
        file.write(code)
    return lambda: runpy.run_path("solution.py", run_name="__main__")


def _call(code: str, name: str, given: Any) -> Callable[[], object]:
    """Return a body that prints the function's (or the `Solution` method's) return value as JSON.
    The program's own output goes to stderr."""

    def body() -> None:
        """Load the program, call its function, and print the value as JSON. Exceptions of the
        program pass."""
        answer, sys.stdout = sys.stdout, sys.stderr
        namespace: dict[str, Any] = {"__name__": "solution"}
        # Running the program is the purpose of this file
        exec(compile(code, "solution.py", "exec"), namespace)  # noqa: S102
        function = namespace.get(name) or getattr(namespace["Solution"](), name)
        args = (
            [json.loads(line) for line in given.split("\n") if line.strip()]
            if isinstance(given, str)
            else given
        )
        json.dump(function(*args), answer)
        answer.flush()

    return body


def _run(body: Callable[[], object], given: bytes, timeout: float) -> tuple[int | None, str]:
    """Run `body` in its own process, with `given` as stdin, for up to `timeout` wall seconds.
    Return its wait status (0: success, None: not ended in time, and killed) and its stdout."""
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout:
        stdin.write(given)
        stdin.seek(0)
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            _run_and_exit(body, stdin.fileno(), stdout.fileno())
        end = time.monotonic() + timeout
        while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < end:
            time.sleep(0.002)
        if ended == (0, 0):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        stdout.seek(0)
        return None if ended == (0, 0) else ended[1], stdout.read().decode("utf-8", "replace")


def _run_and_exit(body: Callable[[], object], stdin: int, stdout: int) -> None:
    """Run `body` in this forked process on the given streams. Never returns: it exits with 0, or
    with 1 after an exception, which is printed, or a SystemExit with a code."""
    code = 1
    try:
        os.dup2(stdin, 0)
        os.dup2(stdout, 1)
        body()
        code = 0
    except SystemExit as asked:
        code = 1 if asked.code else 0
    except BaseException:  # noqa: BLE001 - the program's own, whatever it is
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _lines(value: Any) -> str:
    """Return a text as it is, and a list's items as lines."""
    return value if isinstance(value, str) else "\n".join(map(str, value))


def _same_lines(output: str, expected: str) -> bool:
    """Return True if both texts have the same lines, without whitespace around them, or lines of
    the same decimals."""
    ours, theirs = (
        [line.strip() for line in text.strip().split("\n")] for text in (output, expected)
    )
    return len(ours) == len(theirs) and all(
        a == b or _same_decimals(a, b) for a, b in zip(ours, theirs, strict=True)
    )


def _same_decimals(ours: str, theirs: str) -> bool:
    """Return True if both lines are the same numbers, word by word."""
    try:
        return [decimal.Decimal(word) for word in ours.split()] == [
            decimal.Decimal(word) for word in theirs.split()
        ]
    except decimal.InvalidOperation:
        return False


def _same_value(output: str, expected: Any) -> bool:
    """Return True if the output is JSON of the expected value, which is given as a value or as JSON
    text."""
    wanted = json.loads(expected) if isinstance(expected, str) else expected
    try:
        return bool(json.loads(output) == wanted)
    except ValueError:
        return False
