"""The wall cap is for idle tests: those that wait for a processor go on, whatever else the machine does."""

import asyncio
import contextlib
import os
import subprocess
import sys

import pytest

from code_rl.sandbox.embedded.pool import EmbeddedSandbox
from code_rl.sandbox.executor import Status
from tests.sandbox.sandbox_boxes import LEVELS, collect, run_one, stdin_job

needs_full = pytest.mark.skipif("full" not in LEVELS, reason="needs the level full")
BURNERS = 12
BURN = "print(flush=True)\nwhile True: pass"
SPIN = "import time\nwhile time.process_time() < {}: pass\nprint('right')"
TAKING_TURNS = """
import threading, time
def turn(number):
    end = time.thread_time() + 0.02
    while time.thread_time() < end: pass
for number in range(6):
    thread = threading.Thread(target=turn, args=(number,))
    thread.start()
    thread.join()
print('right')
"""
IN_A_CHILD = "import os\nif os.fork() == 0:\n  import time\n  while time.process_time() < .15: pass\n  os._exit(0)\nos.wait()\nprint('right')"


@contextlib.contextmanager
def one_crowded_processor():
    """This process, and what it starts, on one processor that the burners started here share."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    burners = []

    def burn():
        for _ in range(BURNERS):
            # A session each: kernels that group by session would give all of them together as much as the sandbox.
            burner = subprocess.Popen([sys.executable, "-ISc", BURN], stdout=subprocess.PIPE, start_new_session=True)
            burners.append(burner)
        for burner in burners:
            burner.stdout.readline()

    try:
        yield burn
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
            burner.stdout.close()
        os.sched_setaffinity(0, before)


@needs_full
@pytest.mark.parametrize("code", [SPIN.format(0.15), TAKING_TURNS, IN_A_CHILD], ids=["alone", "threads", "child"])
def test_starved_programs_are_not_stopped(code):
    async def go():
        async with EmbeddedSandbox(1, "full") as box:
            await collect(box, stdin_job("pass"))
            burn()
            return await collect(box, stdin_job(code, cpu_s=3, wall_s=1.0))

    with one_crowded_processor() as burn:
        (done,) = asyncio.run(go())
    assert (done.status, done.stdout) == (Status.OK, b"right\n"), done


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
def test_a_strict_cap_stops_also_what_computes(level):
    done = run_one("while True: pass", level=level, cpu_s=600, wall_s=0.5, strict=True)
    assert done.status is Status.TIME_LIMIT
    assert done.cpu_s < 60
