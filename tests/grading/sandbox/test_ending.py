"""By what a test's end is called."""

from __future__ import annotations

import subprocess
import sys

import pytest

from code_rl.grading.sandbox.ending import exception_line


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
