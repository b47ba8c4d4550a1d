"""The status of a test's end, and the line that names an exception."""

from __future__ import annotations

import subprocess
import sys

import pytest

from code_rl.grading.sandbox.ending import Allowed, Ended, exception_line, status_of


@pytest.mark.parametrize(
    ("program", "line"),
    [
        ("raise ValueError('a\\n  b\\nc')", "ValueError: a"),
        ("try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise KeyError('x\\ny') from None", "KeyError: 'x\\ny'"),
        (
            "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise ValueError('\\nTraceback') from e",
            "ValueError: ",
        ),
        ("import sys\nsys.exit('bad\\ninput')", "input"),
        (
            "class E(Exception): pass\ndef f(n): return f(n - 1) if n else g()\ndef g(): raise E('\\n')\nf(9)",
            "E: ",
        ),
    ],
    ids=["several lines", "handled before", "chained", "no traceback", "many frames"],
)
def test_an_exception_is_named_by_its_class_whatever_its_message(program, line):
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert exception_line(ran.stderr).rstrip() == line.rstrip()


WELL = Ended(0, cpu_s=0.5, wall_s=0.6, peak_bytes=1 << 19, stderr=b"", over_time=False, killed_for_memory=False)


@pytest.mark.parametrize(
    ("seen", "status"),
    [
        ({}, "ok"),
        ({"stderr": b"MemoryError"}, "ok"),
        ({"exit_code": 1, "stderr": b"MemoryError"}, "memory_limit"),
        ({"exit_code": 3}, "runtime_error"),
        ({"unanswered": "it exited"}, "runtime_error"),
        ({"exit_code": -9, "killed_for_memory": True}, "memory_limit"),
        ({"peak_bytes": 2 << 20}, "memory_limit"),
        ({"peak_bytes": 2 << 20, "over_time": True}, "time_limit"),
        ({"cpu_s": 1.01}, "time_limit"),
        ({"cpu_s": 1.01, "overflow": "stdout"}, "output_limit"),
    ],
)
def test_an_end_has_the_status_of_the_first_limit_that_it_broke(seen, status):
    assert status_of(WELL._replace(**seen), Allowed(cpu_s=1.0, wall_s=2.0, memory_bytes=1 << 20))[0] == status
