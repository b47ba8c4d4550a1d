"""Limits of one test: CPU time decides, the rest contains."""

import asyncio
import os
import subprocess
import sys
import time

import pytest

from code_rl.grading.sandbox import Job, Status
from code_rl.grading.sandbox.executor import Execution
from tests.boxes import shared_box
from tests.grading.jobs import collect, stdin_job
from tests.grading.sandbox.sandbox_boxes import LEVELS, run, run_one

level = pytest.mark.parametrize("level", LEVELS)
# Busy machines meet the same clocks at each level: CI is busy at the first.
busy_level = pytest.mark.parametrize(
    "level",
    [pytest.param(each, marks=pytest.mark.slow if number else pytest.mark.long) for number, each in enumerate(LEVELS)],
)
SPIN = "while True: pass"


def test_cpu_time_counts_even_when_the_program_finished():
    code = "import time\nwhile time.process_time() < .3: pass\nprint('right')"
    assert run_one(code, cpu_s=0.2).status is Status.TIME_LIMIT
    assert run_one(code, cpu_s=6).status is Status.OK


def test_cpu_time_of_forked_children_counts_also_of_those_never_waited_for():
    spin = "import time\n    while time.process_time() < .4: pass\n    os._exit(0)"
    waited = f"import os\nif os.fork() == 0:\n    {spin}\nos.wait()"
    # The orphans hold the pipe open until they end, so that the program outlives them without waiting for them as its children.
    orphans = f"import os\nr, w = os.pipe()\nfor _ in range(2):\n  if os.fork() == 0:\n    if os.fork(): os._exit(0)\n    {spin}\nos.close(w)\nos.read(r, 1)"
    for code in (waited, orphans):
        done = run_one(code, cpu_s=0.3)
        assert done.status is Status.TIME_LIMIT, done


def test_ignoring_the_kernels_timer_signals_gains_nothing():
    code = "import signal\nfor s in (signal.SIGXCPU, signal.SIGALRM, signal.SIGPROF, signal.SIGTERM): signal.signal(s, signal.SIG_IGN)\n"
    assert run_one(code + SPIN, cpu_s=0.3).status is Status.TIME_LIMIT


def test_reserved_stacks_are_not_memory():
    code = "import threading, sys\nthreading.stack_size(400 << 20)\nt = threading.Thread(target=print, args=('deep',))\nt.start(); t.join()"
    assert run_one(code, memory_mb=256).stdout == b"deep\n"


@pytest.mark.parametrize("memory_mb", [128, 1024])
def test_as_many_threads_have_stacks_as_may_be_processes(memory_mb):
    code = "import threading\nfor _ in range(500): threading.Thread(target=threading.Event().wait, daemon=True).start()\nprint(threading.active_count())"
    assert run_one(code, memory_mb=memory_mb, processes=600).stdout == b"501\n"


def test_as_many_files_can_be_open_as_the_limit_says():
    code = "held = []\ntry:\n    while True: held.append(open('/dev/null'))\nexcept OSError:\n    print(len(held))"
    few, many = (int(run_one(code, open_files=most).stdout) for most in (100, 1000))
    assert 100 - 8 <= few < 100
    assert many == few + 900


def test_deep_recursion_has_the_stack_it_needs():
    code = "import sys, functools\nsys.setrecursionlimit(10**6)\n@functools.cache\ndef f(n): return n and 1 + f(n - 1)\nprint(f(100_000))"
    assert run_one(code).stdout == b"100000\n"


@level
def test_output_in_one_piece_or_many_on_either_stream(level):
    for code in (
        "print('x' * 300_000)",
        "while True: print('x' * 1000)",
        "import os\nwhile True: os.write(1, b'x' * 65536)",
    ):
        done = run_one(code, level=level, output_bytes=200_000, cpu_s=3)
        assert done.status is Status.OUTPUT_LIMIT
        assert len(done.stdout) == 200_000
    assert run_one("import sys\nsys.stderr.write('x' * 10_000_000)", level=level).status is Status.OK


def test_processes_are_limited_and_a_fork_bomb_ends():
    count = "import os, time\nn = 0\ntry:\n  while True:\n    if os.fork() == 0: time.sleep(9)\n    n += 1\nexcept OSError: print(n)"
    counted = run_one(count, processes=10)
    assert int(counted.stdout) <= 10
    bomb = run_one("import os\nwhile True:\n  try: os.fork()\n  except OSError: pass", cpu_s=0.2, processes=20)
    assert bomb.status is Status.TIME_LIMIT


def test_files_are_limited_in_size():
    code = "try:\n  with open('f', 'wb') as f: f.write(bytes(5 << 20))\nexcept OSError: print('too large')"
    assert run_one(code, file_mb=2, output_bytes=1000).stdout == b"too large\n"
    assert run_one(code, file_mb=8).stdout == b""


@pytest.mark.long
def test_what_the_compiler_takes_counts_for_the_submission():
    """Each test spoils its working directory, so that each has the program compiled anew."""
    lines = "".join(f"def g{n}():\n" + _nested(14) for n in range(2))
    lines += "open('x', 'w').close()\nprint(1)"
    once = run(stdin_job(lines, b"", total_s=9.0))[0].compile_s
    total = 4 * once
    done = run(stdin_job(lines, *[b""] * 12, total_s=total))
    compiled = [one.compile_s for one in done]
    assert done[0].status is Status.OK
    assert [one.status for one in done][-1] is Status.TIME_LIMIT
    assert sum(compiled) < total + 2 * max(compiled)


def _nested(depth: int) -> str:
    """Source that doubles in the compiler with each level."""
    levels = (f"{' ' * n}try: pass\n{' ' * n}finally:\n" for n in range(1, depth + 1))
    return "".join(levels) + " " * (depth + 1) + "pass\n"


def test_the_room_for_recursion_is_that_of_the_interpreter():
    code = "def f(n):\n    try:\n        return f(n + 1)\n    except RecursionError:\n        return n\nprint(f(1))"
    plain = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    assert {one.stdout for one in run(stdin_job(code, b"", b"", b""))} == {plain}
    assert run_one(code).stdout == plain


def test_memory_that_was_touched_is_measured():
    assert run_one("x = bytearray(200 << 20)").peak_memory_bytes > 200 << 20


@pytest.mark.long
@level
@pytest.mark.parametrize(
    "code",
    [
        "import time\nwhile True: time.sleep(.02)",
        "import time\nwhile time.process_time() < .2: pass\ntime.sleep(600)",
        "import threading\nthreads = [threading.Thread(target=threading.Event().wait) for _ in range(8)]\nfor t in threads: t.start()",
    ],
    ids=["naps", "after work", "threads"],
)
def test_idle_programs_are_stopped(code, level):
    done = run_one(code, level=level, cpu_s=20, wall_s=0.5)
    assert (done.status, done.exit_code) == (Status.TIME_LIMIT, None)
    assert done.cpu_s < 5


def test_work_in_children_meets_the_cpu_limit_while_the_program_waits():
    code = "import os, time\nwhile True:\n  if os.fork() == 0:\n    while time.process_time() < .1: pass\n    os._exit(0)\n  os.wait()"
    done = run_one(code, cpu_s=0.3, wall_s=600)
    assert done.status is Status.TIME_LIMIT
    assert done.cpu_s > 0.3


@level
def test_the_wall_cap_stops_also_what_computes(level):
    done = run_one("while True: pass", level=level, cpu_s=600, wall_s=0.5)
    assert done.status is Status.TIME_LIMIT
    assert done.cpu_s < 60


def at_once(level: str, *jobs: Job) -> list[list[Execution]]:
    """The executions of jobs that all run at the same time."""

    async def go() -> list[list[Execution]]:
        return await asyncio.gather(*(collect(shared_box(level, 64), job) for job in jobs))

    return asyncio.run(go())


@busy_level
def test_waiting_for_a_processor_is_not_wall_time(level):
    job = stdin_job("import time\nwhile time.process_time() < .25: pass\nprint(1)", cpu_s=2, wall_s=1)
    for (done,) in at_once(level, *[job] * (8 * len(os.sched_getaffinity(0)))):
        assert done.status is Status.OK, done.detail


@pytest.mark.long
@level
def test_a_child_that_a_test_leaves_takes_no_wall_time_from_the_next(level):
    code = "import os, time\nif os.fork() == 0:\n  time.sleep(20)\n  os._exit(0)\ntime.sleep(.3)\nprint(1)"
    (done,) = at_once(level, stdin_job(code, *"1234", cpu_s=2))
    assert [one.status for one in done] == [Status.OK] * 4
    assert min(one.wall_s for one in done) >= 0.3


@busy_level
def test_a_program_beside_hundreds_of_spinning_processes_is_judged_by_its_own_time(level):
    fork = "import os\nfor _ in range(240):\n  if os.fork() == 0:\n    while True: pass\nos.wait()"
    sums = "n = 4_000_000\nprint(sum(i for i in range(n)))"
    hogs, honest = [stdin_job(fork, cpu_s=2, wall_s=3)] * 3, stdin_job(sums, *"123", cpu_s=2, wall_s=1)
    *spun, done = at_once(level, *hogs, honest)
    assert {one.status for (one,) in spun} == {Status.TIME_LIMIT}
    assert [one.status for one in done] == [Status.OK] * 3


UNSEEN = """import os, signal, threading, time
try: signal.signal(signal.SIGCHLD, signal.SIG_IGN)
except OSError: pass
def burn(left):
    end = time.process_time() + .1
    while time.process_time() < end: pass
    if left and os.fork() == 0: burn(left - 1)
    os._exit(0)
def chain():
    r, w = os.pipe()
    if os.fork() == 0: burn(70)
    os.close(w)
    os.read(r, 1)
def row():
    for _ in range(70):
        if os.fork() == 0: burn(0)
        try: os.wait()
        except OSError: pass
def beside():
    thread = threading.Thread(target=chain)
    thread.start(); thread.join()
"""


@pytest.mark.long
@level
@pytest.mark.parametrize("how", ["chain", "row", "beside"])
def test_children_that_nobody_waits_for_do_not_hide_their_cpu_time(level, how):
    assert run_one(f"{UNSEEN}{how}()", level=level, cpu_s=0.5).status is Status.TIME_LIMIT


@level
def test_the_action_for_ended_children_is_not_the_programs_to_set(level):
    code = "import signal\ntry: signal.signal(signal.SIGCHLD, signal.SIG_IGN)\nexcept OSError: print('refused')"
    assert run_one(code, level=level).stdout == b"refused\n"


def test_a_test_that_ends_by_its_wall_time_alone_runs_once_more():
    """Asleep until a moment that only its second run reaches within its limit."""
    run_one("")  # so that the sandbox is there
    code = f"import time\ntime.sleep(max(0, {time.time() + 1.7} - time.time()) if input() == 'busy' else 0)"
    done = run(stdin_job(code, "a", "busy", "b", wall_s=1.0))
    assert [one.status for one in done] == [Status.OK] * 3
    assert done[1].wall_s < 1
