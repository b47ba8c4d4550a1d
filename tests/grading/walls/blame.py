"""Programs that want trouble of their own making to look like the sandbox's: a wrong program that is masked out costs its policy nothing."""

from __future__ import annotations

import dataclasses

from code_rl.grading.problem import Compare, Problem, StdinTest
from tests.grading.corpus.entries import sum_problem
from tests.grading.walls.programs import ABOUT, PASSED, UNPAID, Entry, source

SUM = sum_problem(time_limit_s=1.0, memory_limit_mb=256)
OFTEN = dataclasses.replace(sum_problem(time_limit_s=3.0, memory_limit_mb=256), tests=SUM.tests * 4)
"""Twenty tests: a program that loses its supervisor in each of them uses up what is tried again."""
SLOW = dataclasses.replace(OFTEN, tests=SUM.tests[:2])
_RIGHT = """
    import ctypes, fcntl, mmap, os, resource, signal, socket, sys, threading, time
    input()
    print(sum(map(int, input().split())), flush=True)
    libc = ctypes.CDLL(None, use_errno=True)
    def quietly(action, *arguments):
        try:
            return action(*arguments)
        except (OSError, ValueError, AttributeError, OverflowError):
            return None
    def children(count, work):
        for _ in range(count):
            if (quietly(os.fork) or 0) == 0 and os.getpid() != me:
                try:
                    work()
                finally:
                    os._exit(0)
    me = os.getpid()
    """


def _nested(depth: int, head: str, last: str = "x = 1") -> str:
    return "".join(f"{' ' * n}{head}\n" for n in range(depth)) + " " * depth + last + "\n"


def _finally(depth: int) -> str:
    lines = [f"{' ' * n}try:\n{' ' * n} x = {n}\n{' ' * n}finally:\n" for n in range(depth)]
    return "".join(lines) + " " * depth + "x = 1\n"


_COMPILED = {
    "nested_finally_18": ("a finally body is compiled twice at each depth", _finally(18)),
    "nested_finally_15": ("the same, three levels less", _finally(15)),
    "finally_with_loops": (
        "finally around loops with breaks, each of which copies the body",
        "while True:\n"
        + "".join(f"{' ' * (n + 1)}try:\n{' ' * (n + 2)}break\n{' ' * (n + 1)}finally:\n" for n in range(16))
        + " " * 17
        + "x = 1\n",
    ),
    "nested_with": ("with in with, up to the limit of blocks", _nested(19, "with open('x') as f:")),
    "nested_ifs": ("conditions up to the limit of indentation", _nested(98, "if x:")),
    "nested_functions": ("functions in functions", _nested(98, "def f():")),
    "nested_classes": ("classes in classes, whose qualified names grow", _nested(98, f"class {'C' * 3000}:", "pass")),
    "nested_lambdas": ("lambdas in lambdas", "f = " + "lambda: " * 3000 + "1\n"),
    "nested_parentheses": ("parentheses beyond the parser's limit", "x = " + "(" * 5000 + "1" + ")" * 5000 + "\n"),
    "nested_unary": ("minus signs in a row", "x = " + "-" * 90000 + "1\n"),
    "nested_ternaries": ("conditional expressions in a row", "x = " + "1 if x else " * 20000 + "2\n"),
    "long_sum": ("a sum of very many terms, which nests to the left", "x = " + "x+" * 90000 + "1\n"),
    "long_attributes": ("a chain of attributes", "x = x" + ".a" * 90000 + "\n"),
    "long_comparison": ("a comparison of very many terms", "x = " + "1<" * 90000 + "2\n"),
    "nested_comprehensions": ("comprehensions in comprehensions", "x = " + "[" * 18 + "1" + " for a in b]" * 18 + "\n"),
    "nested_fstrings": ("format fields in format fields", "x = f'" + "{1:" * 2000 + "}" * 2000 + "'\n"),
    "many_lines": ("two hundred thousand statements", "a = b + 1\n" * 200_000),
    "many_names": ("a hundred thousand names", "".join(f"n{n} = {n}\n" for n in range(100_000))),
    "many_lists": ("a literal of three hundred thousand lists", "x = [" + "[]," * 300_000 + "]\n"),
    "many_warnings": ("fifty thousand warnings of the compiler", "x = '\\d' is 1\n" * 50_000),
    "many_defaults": (
        "functions with annotations and defaults",
        "def f(" + ",".join(f"a{n}: b = {n}" for n in range(30000)) + "): pass\n",
    ),
    "many_decorators": ("decorators without number", "@f\n" * 60_000 + "def f(): pass\n"),
    "huge_number": ("a decimal constant of a million digits", f"x = {'7' * 1_000_000}\n"),
    "huge_powers": (
        "constants that the compiler folds",
        "x = [" + "((1 << 127) ** 1 << 127) * 'a' if 0 else 'a' * 4000 * 1," * 4000 + "]\n",
    ),
    "huge_match": (
        "a pattern of very many alternatives",
        "match x:\n case " + "|".join(map(str, range(60000))) + ": pass\n",
    ),
    "huge_string": ("text of twenty million characters", f"x = '{'a' * 20_000_000}'\n"),
    "null_byte": ("a source with a zero byte", "x = 1\0\n"),
    "lone_encoding": ("a source that claims another encoding", "# -*- coding: utf-7 -*-\nx = 1\n"),
}
"""What is slow or large to compile; below each stands a right program, which the compiler may reach or not."""

_SIGNALS = {
    "alarms_to_init": (
        "sends SIGALRM to PID 1 for two seconds",
        "end = time.time() + 2\nkill = libc.kill\nwhile time.time() < end:\n    for _ in range(1000):\n        kill(1, 14)",
    ),
    "alarms_to_parent": (
        "sends SIGALRM to its parent for a second",
        "end = time.time() + 1\nwhile time.time() < end:\n    quietly(os.kill, os.getppid(), signal.SIGALRM)",
    ),
    "alarms_from_children": (
        "sends SIGALRM to PID 1 from eight processes",
        "def work():\n    while True:\n        quietly(os.kill, 1, signal.SIGALRM)\nchildren(8, work)\ntime.sleep(5)",
    ),
    "every_signal_to_init": (
        "sends PID 1 every signal there is",
        "for n in range(1, 65):\n    for _ in range(50):\n        quietly(os.kill, 1, n)\n        quietly(os.kill, os.getppid(), n)",
    ),
    "every_signal_queued": (
        "queues real-time signals to PID 1 up to the limit",
        "info = ctypes.create_string_buffer(128)\nctypes.c_int.from_buffer(info, 8).value = -1\nfor n in range(200000):\n    libc.syscall(129, 1, 34 + n % 30, info)\n    libc.syscall(129, os.getppid(), 34 + n % 30, info)",
    ),
    "stops_init": (
        "stops PID 1 and its parent",
        "for _ in range(1000):\n    quietly(os.kill, 1, signal.SIGSTOP)\n    quietly(os.kill, os.getppid(), signal.SIGSTOP)\n    quietly(os.kill, -1, signal.SIGSTOP)",
    ),
    "kills_group": (
        "kills its process group and all that it may",
        "for target in (0, -1, 1, os.getppid()):\n    for n in (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL):\n        if target != 0:\n            quietly(os.kill, target, n)\nquietly(os.killpg, 0, signal.SIGKILL)",
    ),
    "child_deaths": (
        "floods PID 1 with deaths of orphans",
        "def work():\n    for _ in range(300):\n        if quietly(os.fork) == 0:\n            os._exit(0)\nchildren(20, work)",
    ),
    "terminal_signals_from_orphans": (
        "orphans go on sending signals when the test is over",
        "def work():\n    quietly(os.setsid)\n    while True:\n        for n in (14, 17, 1, 2, 3, 10, 12, 15, 26, 27):\n            quietly(os.kill, 1, n)\nchildren(4, work)\nos._exit(0)",
    ),
    "timers_that_signal_others": (
        "makes timers and descriptors that signal PID 1",
        "for command, value in ((8, 1), (10, 14), (15, 1)):\n    for fd in range(3):\n        quietly(fcntl.fcntl, fd, command, value)\nfor fd in range(3):\n    quietly(fcntl.fcntl, fd, 1026, 0x8000003F)\nquietly(signal.setitimer, signal.ITIMER_REAL, .01, .01)\ntime.sleep(.5)",
    ),
}

_PLACES = {
    "chmod_tmp": ("takes all rights from /tmp", "os.chmod('/tmp', 0)"),
    "chmod_here": ("takes all rights from the working directory", "os.chmod('.', 0)"),
    "chmod_here_after_files": (
        "leaves files in a directory without rights",
        "open('a', 'w').close()\nos.mkdir('b')\nopen('b/c', 'w').close()\nquietly(os.chmod, 'b', 0)\nquietly(os.chmod, '.', 0o111)",
    ),
    "removes_here": (
        "removes or renames the working directory",
        "quietly(os.rmdir, os.getcwd())\nquietly(os.rename, os.getcwd(), '/tmp/elsewhere')\nquietly(os.rename, os.getcwd(), os.getcwd() + '.old')\nquietly(os.symlink, '/', os.getcwd() + '/root')",
    ),
    "odd_names": (
        "leaves names that are no text, and very long ones",
        "for name in (b'\\xff\\xfe', b'new\\nline', b'a' * 255, b'-rf', b' ', b'\\x01'):\n    quietly(os.mkdir, name)\n    quietly(lambda: open(name + b'/x' , 'w').close())",
    ),
    "deep_directories": (
        "makes directories in directories, three thousand deep",
        "for n in range(3000):\n    try:\n        os.mkdir('d' * 200)\n        os.chdir('d' * 200)\n    except OSError:\n        break",
    ),
    "many_files": (
        "makes more files than there is room for",
        "for n in range(20000):\n    try:\n        open(f'f{n}', 'w').close()\n    except OSError:\n        break",
    ),
    "special_files": (
        "leaves fifos, sockets, sparse and unreadable files",
        "quietly(os.mkfifo, 'fifo')\nquietly(os.mknod, 'node')\nquietly(lambda: os.truncate('node', 1 << 40))\nquietly(lambda: socket.socket(socket.AF_UNIX).bind('socket'))\nquietly(os.symlink, 'loop', 'loop')\nquietly(os.link, 'node', 'link')\nquietly(os.chmod, 'node', 0)",
    ),
    "sticky_and_immutable": (
        "sets odd modes and flags",
        "for mode in (0o1777, 0o2777, 0o4000, 0o000, 0o7777):\n    quietly(os.chmod, '.', mode)\nfd = os.open('.', os.O_RDONLY)\nfor flag in (0x10, 0x20, 0x30):\n    quietly(fcntl.ioctl, fd, 0x40086602, flag.to_bytes(8, 'little'))",
    ),
    "fills_disk": (
        "fills the working directory to the last byte",
        "with open('full', 'wb') as f:\n    try:\n        while True:\n            f.write(bytes(1 << 20))\n    except OSError:\n        pass",
    ),
    "busy_directory": (
        "children sit in the directory and write while it is removed",
        "def work():\n    end = time.time() + 20\n    while time.time() < end:\n        quietly(lambda: open('x%d' % os.getpid(), 'w').close())\n        quietly(os.unlink, 'x%d' % os.getpid())\nchildren(6, work)\nos._exit(0)",
    ),
}

_MEMORY = {
    "many_small_processes": (
        "eats memory in many processes, each below the limit",
        "def work():\n    block = bytearray(60 << 20)\n    for at in range(0, len(block), 4096):\n        block[at] = 1\n    time.sleep(1)\nchildren(40, work)\ntime.sleep(1)",
    ),
    "many_small_processes_spin": (
        "the same, and they compute",
        "def work():\n    block = bytearray(b'x' * (40 << 20))\n    while True:\n        block[1] ^= 1\nchildren(40, work)\ntime.sleep(1)",
    ),
    "grandchildren": (
        "eats memory in a chain of processes",
        "while quietly(os.fork) == 0:\n    keep = bytearray(b'x' * (30 << 20))\ntime.sleep(2)",
    ),
    "shared_mapping": (
        "eats memory in mappings shared by children",
        "blocks = []\nwhile True:\n    block = mmap.mmap(-1, 32 << 20)\n    block.write(b'x' * (32 << 20))\n    blocks.append(block)",
    ),
    "anonymous_files": (
        "eats memory in anonymous files",
        "while True:\n    fd = quietly(os.memfd_create, 'm') or quietly(os.open, '.', os.O_TMPFILE | os.O_RDWR)\n    if fd is None:\n        break\n    for _ in range(60):\n        quietly(os.write, fd, b'x' * (1 << 20))",
    ),
    "pipes": (
        "eats memory in full pipes",
        "while True:\n    pair = quietly(os.pipe)\n    if pair is None:\n        break\n    quietly(fcntl.fcntl, pair[1], 1031, 1 << 20)\n    os.set_blocking(pair[1], False)\n    quietly(os.write, pair[1], b'x' * (1 << 20))",
    ),
    "socket_buffers": (
        "eats memory in socket buffers",
        "pairs = []\nwhile len(pairs) < 500:\n    pair = quietly(socket.socketpair)\n    if pair is None:\n        break\n    pairs.append(pair)\n    pair[0].setblocking(False)\n    for _ in range(50):\n        quietly(pair[0].send, b'x' * 65536)",
    ),
    "thread_stacks": (
        "eats memory in the stacks of threads",
        "threading.stack_size(64 << 20)\ndef deep(n):\n    block = ctypes.create_string_buffer(1 << 20)\n    ctypes.memset(block, 1, 1 << 20)\n    time.sleep(2)\n    return block\nfor _ in range(400):\n    try:\n        threading.Thread(target=deep, args=(1,), daemon=True).start()\n    except (RuntimeError, MemoryError):\n        break\ntime.sleep(1)",
    ),
    "page_tables": (
        "eats memory in page tables, a page touched in each two megabytes",
        "for _ in range(4000):\n    try:\n        block = mmap.mmap(-1, 64 << 20)\n    except (OSError, ValueError):\n        break\n    for at in range(0, 64 << 20, 2 << 20):\n        block[at] = 1\n    keep = globals().setdefault('keep', [])\n    keep.append(block)",
    ),
    "output_files": (
        "eats memory in its standard streams",
        "for fd in (0, 1, 2):\n    quietly(os.ftruncate, fd, 1 << 40)\n    quietly(os.posix_fallocate, fd, 0, 300 << 20)\n    quietly(os.pwrite, fd, b'x' * (200 << 20), 1 << 30)",
    ),
    "fork_bomb": ("forks without end", "while True:\n    quietly(os.fork)"),
    "thread_bomb": (
        "starts threads without end",
        "while True:\n    try:\n        threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n    except (RuntimeError, MemoryError):\n        pass",
    ),
}

_STREAMS = {
    **{
        f"exit_{code}": (f"ends with {code} after a right output", f"os._exit({code})")
        for code in (17, 97, 98, 99, 125, 137, 255)
    },
    "dies_by_every_signal": ("dies by a real-time signal", "os.kill(os.getpid(), 40)\nos.abort()"),
    "closes_descriptors": ("closes all that is open", "os.closerange(0, 4096)"),
    "exhausts_descriptors": (
        "opens all descriptors that it may and leaves children with them",
        "while quietly(os.dup, 0) is not None:\n    pass\nchildren(5, lambda: time.sleep(9))\nos._exit(0)",
    ),
    "swaps_streams": (
        "puts stdin over stdout and the other way round",
        "keep = os.dup(1)\nos.dup2(0, 1)\nos.dup2(keep, 0)\nos.dup2(1, 2)",
    ),
    "seals_streams": (
        "seals the files behind its streams",
        "for fd in (0, 1, 2):\n    quietly(fcntl.fcntl, fd, 1033, 0x1F)",
    ),
    "sparse_output": (
        "moves the end of its output far away",
        "quietly(os.lseek, 1, 1 << 50, 0)\nquietly(os.write, 1, b'x')",
    ),
    "flags_of_streams": (
        "changes flags and owners of its streams",
        "for fd in (0, 1, 2):\n    for flags in (os.O_NONBLOCK, os.O_APPEND, os.O_ASYNC, os.O_DIRECT, os.O_NOATIME):\n        quietly(fcntl.fcntl, fd, fcntl.F_SETFL, flags)\n    quietly(fcntl.flock, fd, fcntl.LOCK_EX)\n    quietly(os.fchmod, fd, 0)",
    ),
    "flood_after_answer": ("prints without end after the answer", "while True:\n    os.write(1, b'x' * (1 << 20))"),
    "flood_of_stderr": (
        "complains without end after the answer",
        "end = time.process_time() + .5\nwhile time.process_time() < end:\n    quietly(os.write, 2, b'x' * (1 << 20))",
    ),
    "limits_of_its_own": (
        "sets every limit of its own to nothing",
        "for n in range(16):\n    quietly(resource.setrlimit, n, (0, 0))",
    ),
    "no_priority": (
        "takes the lowest priority there is, then computes",
        "quietly(os.nice, 19)\nquietly(os.sched_setscheduler, 0, os.SCHED_IDLE, os.sched_param(0))\nquietly(os.sched_setaffinity, 0, {0})\nend = time.process_time() + .3\nwhile time.process_time() < end:\n    pass",
    ),
    "own_filter": (
        "forbids itself system calls",
        "libc.prctl(38, 1, 0, 0, 0)\nlibc.prctl(22, 1, 0, 0, 0)\nlibc.prctl(4, 0, 0, 0, 0)\nlibc.prctl(36, 1, 0, 0, 0)\nlibc.prctl(1, 9, 0, 0, 0)",
    ),
    "giant_environment": (
        "leaves a giant environment",
        "for n in range(2000):\n    libc.putenv(ctypes.create_string_buffer(b'A%d=' % n + b'x' * 10000))\nos.environ.update({f'V{n}': 'x' * 5000 for n in range(3000)})",
    ),
    "giant_exception": ("raises an exception whose text is 50 MB of lines", "raise ValueError('\\n' * (50 << 20))"),
    "endless_repr": (
        "raises an exception whose text never ends",
        "class Endless(Exception):\n    def __str__(self):\n        while True:\n            pass\nraise Endless",
    ),
    "deep_cause": (
        "raises a chain of a hundred thousand causes",
        "error = None\nfor n in range(100000):\n    new = ValueError(n)\n    new.__cause__ = error\n    error = new\nraise error",
    ),
    "traced_children": (
        "children that cannot be waited for: stopped, traced, nested",
        "def work():\n    libc.ptrace(0, 0, 0, 0)\n    quietly(os.kill, os.getpid(), signal.SIGSTOP)\nchildren(10, work)\nos._exit(0)",
    ),
    "uninterruptible": (
        "children in vfork, whose parents cannot be interrupted",
        "def work():\n    if libc.vfork() == 0:\n        libc.sleep(30)\n        libc._exit(0)\nchildren(3, work)\nos._exit(0)",
    ),
}


_ORPHANS = {
    "alarms_from_orphans": (
        "ends after a right answer, while orphans go on sending SIGALRM to PID 1",
        "def work():\n    quietly(os.setsid)\n    kill = libc.kill\n    while True:\n        kill(1, 14)\nchildren(6, work)\nos._exit(0)",
    ),
    "alarms_until_the_end": (
        "sends SIGALRM to PID 1 with eight children for a quarter of a second",
        "end = time.time() + .25\ndef work():\n    kill = libc.kill\n    while time.time() < end:\n        for _ in range(1000):\n            kill(1, 14)\nchildren(8, work)\nwork()\nos._exit(0)",
    ),
}
"""Each of twenty tests may cost a supervisor."""


def _after(kind: dict[str, tuple[str, str]], problem: Problem, quick: tuple[str, ...]) -> tuple[Entry, ...]:
    return tuple(Entry(n, t, source(_RIGHT, body), problem, ABOUT, quick=n in quick) for n, (t, body) in kind.items())


_FORGE = """
    info = ctypes.create_string_buffer(128)
    ctypes.c_int.from_buffer(info, 8).value = -1
    ctypes.c_int.from_buffer(info, 16).value = 0
    queue = {"x86_64": 129, "aarch64": 138}[os.uname().machine]
    time.sleep(.5)
    for _ in range(5):
        libc.syscall(queue, 1, signal.%s, info)
        time.sleep(.02)
    """


def _forged_ends() -> tuple[Entry, ...]:
    """What the watch says to PID 1 when a test is over its time, said by the test: it ends as it would without."""
    tries = "queues the watch's signal to PID 1, with a sender of 0 as if from outside the namespace"
    return tuple(
        Entry(f"forged_{name.lower()}", tries, source(_RIGHT, _FORGE % name), SLOW, PASSED, ("full",), quick=True)
        for name in ("SIGUSR1", "SIGUSR2")
    )


_PLAIN = "input()\nprint(sum(map(int, input().split())))\n"

_ONE = (StdinTest("6\n", "1\n"), StdinTest("9\n", "1\n"))
_FRAGILE = """
import json, sys
asked = json.loads(sys.stdin.read())
words = asked["output"].split()
number = int(words[0])
if number == 10**6:
    while True:
        pass
if number == 10**7:
    words *= 10**9
if number == 10**8:
    sys.exit(3)
if number < 0:
    print("the number is below nothing:", number)
else:
    print("ok" if 1 / number == 1 else "wrong: not one" + " ok" * (len(words) - 1))
"""
FRAGILE = Problem("fragile", "fragile", _ONE, compare=Compare("checker", checker=_FRAGILE))
"""Its checker is not made for every output; on the expected ones it decides."""
_FOR_CHECKERS = {
    "no_output": ("the checker indexes an empty list", "pass"),
    "a_word": ("the checker cannot read a number", "print('abc')"),
    "zero": ("the checker divides by zero", "print(0)"),
    "negative": ("the checker prints neither ok nor wrong", "print(-1)"),
    "endless": ("the checker does not end", "print(10**6)"),
    "memory": ("the checker runs out of memory", "print(10**7)"),
    "exits": ("the checker ends with an exit code", "print(10**8)"),
    "float": ("the checker cannot read a float", "print('1.5')"),
    "not_finite": ("the checker cannot read nan", "print('nan')"),
    "long_number": ("the checker's int refuses five thousand digits", "print('1' * 5000)"),
    "many_digits": ("the checker reads a million digits", "print('9' * 1000000)"),
    "odd_digits": ("digits of another script, with a zero byte", "print('\\u0661\\0')"),
    "surrogates": ("bytes that are no text", "import os\nos.write(1, b'\\xed\\xa0\\x80')"),
    "breaks_json": ("quotes and brackets for the checker's JSON", 'print(\'"}, "expected": "\')'),
    "speaks_for_it": ("lines that look like the checker's", "print('2 ok\\nok')"),
    "large_output": ("ten megabytes for the checker", "print('2 ' * 5000000)"),
}

BLAME = (
    *(
        Entry(
            n,
            t,
            code + _PLAIN,
            SUM,
            ABOUT,
            quick=n in ("nested_finally_18", "nested_lambdas", "many_warnings", "null_byte"),
        )
        for n, (t, code) in _COMPILED.items()
    ),
    *_after(_SIGNALS, SLOW, ("alarms_to_init", "kills_group")),
    *_forged_ends(),
    *_after(_ORPHANS, OFTEN, ("alarms_from_orphans",)),
    *_after(_PLACES, OFTEN, ("chmod_tmp", "chmod_here", "odd_names")),
    *_after(_MEMORY, SLOW, ("many_small_processes", "pipes")),
    *_after(_STREAMS, SUM, ("exit_17", "exit_98", "seals_streams", "giant_exception")),
)
BLAMED_CHECKERS = tuple(
    Entry(f"checker_{n}", t, code, FRAGILE, UNPAID, quick=n in ("a_word", "negative", "exits"))
    for n, (t, code) in _FOR_CHECKERS.items()
)
