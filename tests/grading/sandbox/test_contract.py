"""The contract of every executor: the embedded sandbox at each level that confines, and our server behind the client."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Callable

import pytest

from code_rl.grading import values
from code_rl.grading.sandbox import Job, Limits, Status
from code_rl.grading.sandbox.executor import Execution
from tests.grading.corpus.rooms import CONFINING, room
from tests.grading.jobs import call, call_job, collect, stdin_job
from tests.refusals import refused

Run = Callable[[Job], list[Execution]]


@pytest.fixture(params=CONFINING)
def run(request: pytest.FixtureRequest) -> Run:
    def executions(job: Job) -> list[Execution]:
        async def go() -> list[Execution]:
            async with room(request.param) as executor:
                return await collect(executor, job)

        return asyncio.run(go())

    return executions


@pytest.mark.long
def test_tests_run_in_order_each_on_its_own_input(run: Run) -> None:
    done = run(stdin_job("print(int(input()) * 2)", *(b"%d\n" % n for n in range(40))))
    assert [(one.status, one.exit_code, int(one.stdout)) for one in done] == [(Status.OK, 0, 2 * n) for n in range(40)]


def test_no_tests_no_executions(run: Run) -> None:
    assert run(Job("print(1)", ())) == []


def test_a_failed_test_does_not_hide_the_following_ones(run: Run) -> None:
    done = run(stdin_job("print(1 / int(input()))", b"1", b"0", b"2", b"0", b"4"))
    assert [one.status is Status.OK for one in done] == [True, False, True, False, True]


def test_bytes_arrive_unchanged(run: Run) -> None:
    data = bytes(range(256)) * 500 + b"\r\n\0\xff"
    (done,) = run(stdin_job("import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read())", data))
    assert done.stdout == data


@pytest.mark.long
def test_outputs_of_several_large_tests_arrive_whole(run: Run) -> None:
    done = run(stdin_job("n = int(input()); print('x' * n)", *[b"9000000"] * 3))
    assert [len(one.stdout) for one in done] == [9_000_001] * 3


@pytest.mark.parametrize(
    ("code", "limits", "status", "exit_code"),
    [
        ("print('fine')", {}, Status.OK, 0),
        ("raise ValueError('no')", {}, Status.RUNTIME_ERROR, 1),
        ("import sys; sys.exit(7)", {}, Status.RUNTIME_ERROR, 7),
        ("import os; os.kill(os.getpid(), 11)", {}, Status.RUNTIME_ERROR, -11),
        ("while True: pass", {"cpu_s": 0.3}, Status.TIME_LIMIT, None),
        ("import time; time.sleep(60)", {"cpu_s": 0.5, "wall_s": 1.0}, Status.TIME_LIMIT, None),
        ("x = b'x' * (1 << 32); print(len(x))", {"memory_mb": 128}, Status.MEMORY_LIMIT, 1),
        ("x = bytearray(200 << 20)\nprint(1)", {"memory_mb": 128}, Status.MEMORY_LIMIT, 0),
        ("while True: print('x' * 9999)", {"output_bytes": 100_000}, Status.OUTPUT_LIMIT, None),
    ],
)
def test_each_end_has_its_status(
    run: Run, code: str, limits: dict[str, float], status: Status, exit_code: int | None
) -> None:
    (done,) = run(stdin_job(code, b"", **limits))
    assert (done.status, done.exit_code) == (status, exit_code)


@pytest.mark.parametrize(
    "code",
    ["x = (", "(" * 100_000, "x = " + "-" * 300_000 + "1", "x = 1\0", "x = '\ud800'", "return 1", "x" * 10 + " = " * 3],
    ids=range(7),
)
def test_a_program_that_does_not_compile_is_one_compile_error_for_all_tests(run: Run, code: str) -> None:
    (done,) = run(stdin_job(code, b"1", b"2", b"3"))
    assert (done.status, done.exit_code) == (Status.COMPILE_ERROR, 1)
    assert "Error" in done.detail


REPORTS = {
    "one line": ("1 / 0", "ZeroDivisionError: division by zero"),
    "several lines": ("raise ValueError('a\\n  b\\nc')", "ValueError: a"),
    "handled before": (
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise KeyError('x\\ny') from None",
        "KeyError: 'x\\ny'",
    ),
    "chained": (
        "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise ValueError('\\nTraceback') from e",
        "ValueError:",
    ),
    "no traceback": ("import sys\nsys.exit('bad\\ninput')", "input"),
    "many frames": (
        "class E(Exception): pass\ndef f(n): return f(n - 1) if n else g()\ndef g(): raise E('\\n')\nf(9)",
        "E:",
    ),
}


@pytest.mark.parametrize(("code", "line"), REPORTS.values(), ids=REPORTS)
def test_an_exception_is_named_by_its_class_whatever_its_message(run: Run, code: str, line: str) -> None:
    (done,) = run(stdin_job(code))
    assert done.detail.rstrip() == line
    assert line.encode() in done.stderr


def test_a_process_left_behind_does_not_hold_up_the_test(run: Run) -> None:
    code = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    os.fork() or time.sleep(3600)\n    os._exit(0)\nprint(1)"
    assert run(stdin_job(code))[0].stdout == b"1\n"


def test_values_of_every_plain_type_come_back(run: Run) -> None:
    given = (1, -(10**5000), 1.5, "ñ\ud800", None, True, [1, [2]], (1, 2), {1, 2}, {"a": (1,)}, {1: 2}, b"\xff", 2j)
    done = run(call_job("def f(*a): return a", "f", given, ("x", {3: ["x"]})))
    assert [values.loads(one.value or b"") for one in done] == [given, ("x", {3: ["x"]})]


def test_a_method_is_called_with_keyword_arguments_between_preamble_and_setup(run: Run) -> None:
    code = "class Solution:\n    def f(self, x: List[int], y):\n        return helper(x) * y"
    job = Job(code, (call([1, 2], y=5),), "f", preamble="from typing import List", setup="def helper(x): return sum(x)")
    assert values.loads(run(job)[0].value or b"") == 15


NOT_RETURNED = {
    "exits": "import sys\ndef f(): sys.exit(0)",
    "exits_at_once": "import os\ndef f(): os._exit(0)",
    "exits_while_defined": "import sys\ndef f(): return 1\nsys.exit(0)",
    "exits_hard_while_defined": "import os\ndef f(): return 1\nos._exit(0)",
    "raises": "def f(): raise ValueError",
    "kills_itself": "import os\ndef f(): os.kill(os.getpid(), 9)",
    "not_there": "def g(): return 1",
    "not_callable": "f = 1",
    "unreadable_value": "def f(): return object()",
    "circle": "def f():\n    a = []\n    a.append(a)\n    return a",
    "writes_before": "import os\nfor fd in range(3, 20):\n    try: os.write(fd, b'x')\n    except OSError: pass\ndef f(): return 1",
    "writes_a_second_value": (
        "import os, struct, atexit\ndef f():\n    for fd in range(3, 20):\n        try: os.write(fd, struct.pack('<Q', 1) + b'1')\n"
        "        except OSError: pass\n    return 1"
    ),
    "closes_the_channel": "import os\nos.closerange(3, 100)\ndef f(): return 1",
    "fork_returns_twice": "import os\ndef f():\n    pid = os.fork()\n    if pid: os.waitpid(pid, 0)\n    return 1",
}


@pytest.mark.parametrize("code", NOT_RETURNED.values(), ids=NOT_RETURNED)
def test_a_call_that_did_not_return_exactly_once_is_a_runtime_error(run: Run, code: str) -> None:
    (done,) = run(call_job(code, "f", limits=Limits(cpu_s=3.0)))
    assert (done.status, done.value) == (Status.RUNTIME_ERROR, None)


@pytest.mark.parametrize("setting", ["cpu_s", "wall_s", "total_s"])
@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf])
def test_a_time_that_is_none_is_refused_by_name(setting: str, seconds: float) -> None:
    with refused(f"{setting}="):
        dataclasses.replace(Limits(), **{setting: seconds})  # type: ignore[arg-type]
