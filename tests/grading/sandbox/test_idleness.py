"""A test ends with its CPU seconds, or at its wall cap."""

import pytest

from code_rl.grading.sandbox.executor import Status
from tests.grading.sandbox.sandbox_boxes import LEVELS, run_one

needs_full = pytest.mark.skipif("full" not in LEVELS, reason="needs the level full")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "code",
    [
        "import time\ntime.sleep(600)",
        "import time\nwhile True: time.sleep(.02)",
        "import time\nwhile time.process_time() < .2: pass\ntime.sleep(600)",
        "import threading\nthreads = [threading.Thread(target=threading.Event().wait) for _ in range(8)]\nfor t in threads: t.start()",
    ],
    ids=["asleep", "naps", "after work", "threads"],
)
def test_idle_programs_are_stopped(code, level):
    done = run_one(code, level=level, cpu_s=20, wall_s=0.5)
    assert (done.status, done.exit_code) == (Status.TIME_LIMIT, None)
    assert done.cpu_s < 5


@needs_full
def test_a_tree_of_idle_processes_is_stopped():
    code = "import os, time\nfor _ in range(3):\n  if os.fork() == 0: time.sleep(600)\nos.wait()"
    assert run_one(code, level="full", wall_s=0.5).status is Status.TIME_LIMIT


@needs_full
def test_work_in_children_meets_the_cpu_limit_while_the_program_waits():
    code = "import os, time\nwhile True:\n  if os.fork() == 0:\n    while time.process_time() < .1: pass\n    os._exit(0)\n  os.wait()"
    done = run_one(code, level="full", cpu_s=0.5, wall_s=600)
    assert done.status is Status.TIME_LIMIT
    assert done.cpu_s > 0.5


@pytest.mark.parametrize("level", LEVELS)
def test_the_wall_cap_stops_also_what_computes(level):
    done = run_one("while True: pass", level=level, cpu_s=600, wall_s=0.5)
    assert done.status is Status.TIME_LIMIT
    assert done.cpu_s < 60
