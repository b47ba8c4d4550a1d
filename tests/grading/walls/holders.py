"""Programs that use little processor time and want to hold a worker for as long as they can, and honest ones that only look like them."""

from __future__ import annotations

from code_rl.grading.problem import Problem
from code_rl.grading.verdict import VerdictKind
from tests.grading.corpus.entries import PASSED, sum_problem
from tests.grading.walls.programs import UNPAID, Entry, source

CPU_S = 0.2
WALL_CAP_S = 4 * CPU_S + 2
CEILING = 8
"""How many times its wall cap a test may take at most, whatever the load, as docs/sandbox.md says."""

SHORT = sum_problem(time_limit_s=CPU_S, memory_limit_mb=256)
MANY = Problem("many", "many", sum_problem().tests * 8, time_limit_s=CPU_S)
"""Forty tests."""

HELD = frozenset({VerdictKind.TIME_LIMIT})
_HEAD = """
    import ctypes, fcntl, mmap, os, resource, select, signal, socket, sys, threading, time
    libc = ctypes.CDLL(None, use_errno=True)
    def quietly(action, *arguments):
        try:
            return action(*arguments)
        except (OSError, ValueError, RuntimeError, AttributeError):
            return None
    def fork():
        pid = quietly(os.fork)
        return 1 if pid is None else pid
    """
_BODIES: dict[str, tuple[str, str]] = {
    "thread_births": (
        "threads born between two looks",
        "while True:\n    t = threading.Thread(target=int)\n    t.start()\n    t.join()\n    time.sleep(.4)",
    ),
    "thread_relay": (
        "each thread starts the next one and ends",
        "def relay():\n    time.sleep(.05)\n    threading.Thread(target=relay).start()\nthreading.Thread(target=relay).start()\nwhile True:\n    time.sleep(.3)",
    ),
    "thread_births_fast": (
        "a thread every five milliseconds, whose life is a nap",
        "while True:\n    quietly(threading.Thread(target=time.sleep, args=(.02,)).start)\n    time.sleep(.005)",
    ),
    "fork_births": (
        "a process born between two looks, which ends at once",
        "while True:\n    if fork() == 0:\n        os._exit(0)\n    quietly(os.wait)\n    time.sleep(.3)",
    ),
    "fork_relay": (
        "each process forks the next one and ends: nobody is there for long",
        "if fork():\n    time.sleep(600)\nwhile True:\n    time.sleep(.05)\n    if fork():\n        os._exit(0)",
    ),
    "spins_beside_sleeper": (
        "a child computes while its parent sleeps",
        "if fork() == 0:\n    while True:\n        pass\ntime.sleep(600)",
    ),
    "spins_in_turns": (
        "children compute in turns, each for a moment",
        "while True:\n    if fork() == 0:\n        end = time.process_time() + .005\n        while time.process_time() < end:\n            pass\n        os._exit(0)\n    quietly(os.wait)\n    time.sleep(.25)",
    ),
    "sleeping_tree": ("a tree of sleepers", "for _ in range(5):\n    fork()\nwhile True:\n    time.sleep(100)"),
    "sleeping_orphans": (
        "the program ends rightly but for a child that holds its streams",
        "if fork() == 0:\n    os.setsid()\n    time.sleep(600)\nos.wait()",
    ),
    "vfork_chain": (
        "parents that wait in vfork",
        "libc.vfork() == 0 and (libc.sleep(600), libc._exit(0))\ntime.sleep(600)",
    ),
    "sigsuspend": (
        "sleeps until signals of a timer, again and again",
        "signal.signal(signal.SIGALRM, lambda *a: None)\nsignal.setitimer(signal.ITIMER_REAL, .01, .05)\nwhile True:\n    signal.pause()",
    ),
    "sigtimedwait": (
        "waits for signals that never come",
        "while True:\n    signal.sigtimedwait([signal.SIGUSR1], .02)",
    ),
    "pipe_read": ("reads a pipe that nobody writes to", "r, w = os.pipe()\nos.read(r, 1)"),
    "pipe_ping_pong": (
        "two processes pass a byte to and fro with naps",
        "a, b = os.pipe(), os.pipe()\nif fork() == 0:\n    a, b = b, a\nelse:\n    os.write(a[1], b'x')\nwhile True:\n    os.write(b[1], os.read(a[0], 1) or b'x')\n    time.sleep(.02)",
    ),
    "futex": ("waits for a lock that it holds", "lock = threading.Lock()\nlock.acquire()\nlock.acquire()"),
    "condition_herd": (
        "sixty threads wait for a condition and are woken for nothing",
        "c = threading.Condition()\ndef wait():\n    while True:\n        with c:\n            c.wait()\nfor _ in range(55):\n    quietly(threading.Thread(target=wait).start)\nwhile True:\n    with c:\n        c.notify_all()\n    time.sleep(.2)",
    ),
    "nanosleep_threads": (
        "sixty threads sleep",
        "for _ in range(55):\n    quietly(threading.Thread(target=time.sleep, args=(600,)).start)\ntime.sleep(600)",
    ),
    "duty_one_percent": (
        "computes one hundredth of the time",
        "while True:\n    end = time.process_time() + .0005\n    while time.process_time() < end:\n        pass\n    time.sleep(.05)",
    ),
    "duty_three_percent": (
        "computes three hundredths of the time, more than is called idle in some second",
        "while True:\n    end = time.process_time() + .0015\n    while time.process_time() < end:\n        pass\n    time.sleep(.05)",
    ),
    "duty_in_threads": (
        "threads compute one after another, none for long",
        "def work():\n    while True:\n        sum(range(300))\n        time.sleep(.3)\nfor _ in range(40):\n    quietly(threading.Thread(target=work).start)\nwhile True:\n    time.sleep(1)",
    ),
    "yields": (
        "gives up the processor at every turn, in processes of low priority",
        "quietly(os.nice, 19)\nquietly(os.sched_setscheduler, 0, os.SCHED_IDLE, os.sched_param(0))\nwhile True:\n    os.sched_yield()\n    time.sleep(.001)",
    ),
    "idle_class_crowd": (
        "many processes of the idle class, which seldom get a processor",
        "quietly(os.nice, 19)\nquietly(os.sched_setscheduler, 0, os.SCHED_IDLE, os.sched_param(0))\nfor _ in range(5):\n    fork()\nwhile True:\n    sum(range(1000))\n    time.sleep(.2)",
    ),
    "stops_itself": (
        "stops itself",
        "if fork() == 0:\n    while True:\n        time.sleep(.5)\n        quietly(os.kill, os.getppid(), signal.SIGCONT)\nwhile True:\n    os.kill(os.getpid(), signal.SIGSTOP)",
    ),
    "poll_forever": ("polls nothing", "while True:\n    select.poll().poll(10)"),
    "flock_wait": (
        "waits for a lock that a child holds",
        "f = open('lock', 'w')\nif fork() == 0:\n    g = open('lock', 'w')\n    fcntl.flock(g, fcntl.LOCK_EX)\n    time.sleep(600)\ntime.sleep(.1)\nfcntl.flock(f, fcntl.LOCK_EX)\ntime.sleep(600)",
    ),
    "fsync_loop": (
        "waits for its files to be written",
        "f = open('x', 'wb')\nwhile True:\n    f.write(b'x')\n    f.flush()\n    os.fsync(f.fileno())\n    f.seek(0)\n    time.sleep(.02)",
    ),
    "own_stdin": (
        "follows stdin for more input, as tail does",
        "while True:\n    os.read(0, 100)\n    time.sleep(.02)",
    ),
    "clones_of_main": (
        "the main thread ends, another one stays",
        "def stay():\n    while True:\n        time.sleep(.3)\nthreading.Thread(target=stay).start()\nlibc.syscall(60, 0)",
    ),
    "exit_handlers": (
        "sleeps in a handler at exit, after a wrong answer",
        "import atexit\natexit.register(time.sleep, 600)\nprint('no')",
    ),
}
_QUICK = ("thread_births", "spins_beside_sleeper", "duty_three_percent", "fork_relay")

_SUM = "input()\nprint(sum(map(int, input().split())), flush=True)\n"

HOLDERS = (
    *(
        Entry(
            name,
            tries,
            source(_HEAD, body),
            SHORT,
            UNPAID
            if name in ("sleeping_orphans", "stops_itself", "spins_in_turns", "clones_of_main")
            else HELD | {VerdictKind.RUNTIME_ERROR},
            quick=name in _QUICK,
        )
        for name, (tries, body) in _BODIES.items()
    ),
    Entry(
        "slow_tests",
        "sleeps a little less than the wall cap in each of forty tests",
        source(_HEAD, _SUM, f"time.sleep({0.9 * WALL_CAP_S})"),
        MANY,
        HELD,
    ),
    Entry(
        "slow_tests_of_births",
        "the same with threads",
        source(
            _HEAD,
            _SUM,
            f"end = time.time() + {0.9 * WALL_CAP_S}\nwhile time.time() < end:\n    t = threading.Thread(target=int)\n    t.start()\n    t.join()\n    time.sleep(.1)",
        ),
        MANY,
        HELD,
    ),
)
PATIENT = (
    Entry(
        "naps",
        "an honest program that sleeps for a moment",
        source(_HEAD, "time.sleep(.3)", _SUM),
        SHORT,
        PASSED,
        quick=True,
    ),
    Entry(
        "threads_with_naps",
        "honest threads that wait for one another",
        source(
            _HEAD,
            "ts = [threading.Thread(target=time.sleep, args=(.1,)) for _ in range(8)]\n[t.start() for t in ts]\n[t.join() for t in ts]",
            _SUM,
        ),
        SHORT,
        PASSED,
        quick=True,
    ),
    Entry(
        "forty_short_tests",
        "an honest program with a nap in each of forty tests",
        source(_HEAD, "time.sleep(.1)", _SUM),
        MANY,
        PASSED,
    ),
)
