"""Right programs in forms that graders have been seen to fail: each must pass wherever it runs."""

from __future__ import annotations

import dataclasses
from typing import Any

from code_rl.grading.problem import CallTest, Compare, Problem
from tests.grading.corpus.entries import sum_problem
from tests.grading.walls.programs import PASSED, Entry, source

SUM = sum_problem()
SUM_64 = sum_problem(memory_limit_mb=64)
SUM_256 = sum_problem(memory_limit_mb=256)

_READ = "import sys\ninput()\nanswer = sum(map(int, input().split()))\n"
_STDIN: dict[str, tuple[str, str]] = {
    "detached_wrapper": (
        "wraps the detached stdout",
        "import io\nsys.stdout = io.TextIOWrapper(sys.stdout.detach(), encoding='utf-8')\nprint(answer)",
    ),
    "detached_buffered": (
        "wraps stdout with a buffer of its own and a line ending",
        "import io\nsys.stdout = io.TextIOWrapper(sys.stdout.detach(), encoding='ascii', newline='\\n', line_buffering=False, write_through=True)\nprint(answer)",
    ),
    "codecs_writer": (
        "writes by codecs.getwriter on the detached stdout",
        "import codecs\nsys.stdout = codecs.getwriter('utf-8')(sys.stdout.detach())\nprint(answer)",
    ),
    "codecs_writer_on_buffer": (
        "writes by codecs.getwriter on the buffer",
        "import codecs\nsys.stdout = codecs.getwriter('utf-8')(sys.stdout.buffer)\nprint(answer)",
    ),
    "detached_only": (
        "writes to the detached buffer",
        "out, sys.stdout = sys.stdout.detach(), None\nout.write(b'%d\\n' % answer)\nout.flush()",
    ),
    "detached_not_flushed": (
        "leaves the flushing of the detached buffer to its end",
        "out, sys.stdout = sys.stdout.detach(), None\nout.write(b'%d\\n' % answer)",
    ),
    "file_of_an_object": (
        "writes to a file that only an object with methods holds, and never closes it",
        "class Out:\n    def __init__(self):\n        self.file = open(1, 'w', closefd=False)\n    def say(self, text):\n        self.file.write(text)\nOUT = Out()\nOUT.say(f'{answer}\\n')",
    ),
    "detached_dunder": (
        "detaches what sys.__stdout__ names too",
        "out = sys.__stdout__.detach()\nout.write(b'%d\\n' % answer)\nout.flush()\nsys.stdout = None",
    ),
    "reconfigured": (
        "reconfigures stdout and prints",
        "sys.stdout.reconfigure(encoding='utf-8', line_buffering=True, errors='replace')\nprint(answer)",
    ),
    "closed_stdout": ("closes stdout after printing", "print(answer)\nsys.stdout.close()"),
    "stdout_is_none": (
        "prints, then sets stdout to None",
        "print(answer)\nsys.stdout.flush()\nsys.stdout = None\nsys.stderr = None",
    ),
    "fdopen_unbuffered": (
        "opens the descriptor anew without a buffer",
        "import os\nout = os.fdopen(1, 'wb', 0)\nout.write(b'%d\\n' % answer)",
    ),
    "opens_dev_stdout": (
        "opens /dev/stdout by name",
        "with open('/dev/stdout', 'w') as out:\n    print(answer, file=out)",
    ),
    "redirected": (
        "collects prints by redirect_stdout",
        "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()) as text:\n    print(answer)\nsys.stdout.write(text.getvalue())",
    ),
    "own_file": ("opens its own source", "assert 'own source' in open(__file__).read()\nprint(answer)"),
    "own_path": (
        "looks for its own folder",
        "import os\nassert os.path.basename(__file__).endswith('.py')\nassert os.path.isdir(os.path.dirname(os.path.abspath(__file__)))\nprint(answer)",
    ),
    "inspects_itself": (
        "asks inspect for the source of a function",
        "import inspect\ndef f():\n    return 'found'\nassert 'found' in inspect.getsource(f)\nprint(answer)",
    ),
    "generator_finally": (
        "prints in the finally of a generator that stands still",
        "def numbers():\n    try:\n        yield 1\n    finally:\n        print(answer)\ng = numbers()\nnext(g)",
    ),
    "del_at_exit": (
        "prints in __del__ of a global",
        "class Last:\n    def __del__(self):\n        print(answer)\nlast = Last()",
    ),
    "atexit_and_threads": (
        "prints at exit, while a daemon thread sleeps",
        "import atexit, threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\natexit.register(print, answer)",
    ),
    "thread_prints": (
        "prints from a thread that is not joined",
        "import threading, time\nthreading.Thread(target=lambda: (time.sleep(.05), print(answer))).start()",
    ),
    "recursion_in_thread": (
        "recurses 100,000 deep in a thread with a stack of its own",
        "import threading\nsys.setrecursionlimit(10**6)\nthreading.stack_size(512 << 20)\ndef depth(n):\n    return 0 if n == 0 else 1 + depth(n - 1)\nfound = []\nthread = threading.Thread(target=lambda: found.append(depth(10**5)))\nthread.start()\nthread.join()\nassert found == [10**5]\nprint(answer)",
    ),
    "recursion": (
        "recurses 100,000 deep without a thread",
        "sys.setrecursionlimit(10**6)\ndef depth(n):\n    return 0 if n == 0 else 1 + depth(n - 1)\nassert depth(10**5) == 10**5\nprint(answer)",
    ),
    "small_stacks": (
        "runs with the smallest stacks",
        "import threading\nthreading.stack_size(64 << 10)\nthread = threading.Thread(target=print, args=(answer,))\nthread.start()\nthread.join()",
    ),
    "threads_100": (
        "runs a hundred threads at once",
        "import threading\nbarrier = threading.Barrier(50)\nthreads = [threading.Thread(target=lambda: (sum([i for i in range(1000)]), None)) for _ in range(100)]\nfor t in threads:\n    t.start()\nfor t in threads:\n    t.join()\nprint(answer)",
    ),
    "sqlite_in_memory": (
        "adds by a database in memory",
        "import sqlite3\nbase = sqlite3.connect(':memory:')\nprint(base.execute('select ? + 0', (answer,)).fetchone()[0])",
    ),
    "sqlite_in_a_file": (
        "adds by a database in a temporary file",
        "import os, sqlite3, tempfile\nwith tempfile.TemporaryDirectory() as place:\n    base = sqlite3.connect(os.path.join(place, 'base'))\n    base.execute('create table t (n integer)')\n    base.execute('insert into t values (?)', (answer,))\n    base.commit()\n    print(base.execute('select n from t').fetchone()[0])\n    base.close()",
    ),
    "temporary_files": (
        "passes the answer through temporary files",
        "import tempfile\nwith tempfile.TemporaryFile('w+') as a, tempfile.NamedTemporaryFile('w+') as b:\n    a.write(str(answer))\n    a.seek(0)\n    b.write(a.read())\n    b.flush()\n    print(open(b.name).read())",
    ),
    "shelve_and_dbm": (
        "passes the answer through shelve",
        "import shelve\nwith shelve.open('shelf') as shelf:\n    shelf['a'] = answer\nwith shelve.open('shelf') as shelf:\n    print(shelf['a'])",
    ),
    "signal_handlers": (
        "sets handlers and an alarm, then cancels it",
        "import os, signal\ngot = []\nsignal.signal(signal.SIGALRM, lambda *a: got.append(1))\nsignal.signal(signal.SIGUSR1, lambda *a: got.append(2))\nsignal.setitimer(signal.ITIMER_REAL, .02)\nos.kill(os.getpid(), signal.SIGUSR1)\nsignal.sigtimedwait([], 0.1)\nassert 2 in got\nsignal.signal(signal.SIGPIPE, signal.SIG_DFL)\nprint(answer)",
    ),
    "fork_and_pipe": (
        "computes in a child and reads its answer from a pipe",
        "import os\nr, w = os.pipe()\nif os.fork() == 0:\n    os.write(w, str(answer).encode())\n    os._exit(0)\nos.wait()\nprint(os.read(r, 100).decode())",
    ),
    "fork_without_wait": (
        "forks, does not wait, and both flush",
        "import os\nif os.fork() == 0:\n    os._exit(0)\nprint(answer)",
    ),
    "pool": (
        "adds by a pool of processes",
        "from multiprocessing import Pool\nif __name__ == '__main__':\n    with Pool(2) as pool:\n        assert pool.map(abs, [-1, 2]) == [1, 2]\n    print(answer)",
    ),
    "process_and_queue": (
        "sends the answer through a queue of multiprocessing",
        "import multiprocessing as mp\ndef work(queue, n):\n    queue.put(n)\nif __name__ == '__main__':\n    queue = mp.Queue()\n    process = mp.Process(target=work, args=(queue, answer))\n    process.start()\n    print(queue.get())\n    process.join()",
    ),
    "shared_value": (
        "adds in a shared value under its lock",
        "import multiprocessing as mp\ndef work(value, n):\n    with value.get_lock():\n        value.value += n\nif __name__ == '__main__':\n    value = mp.Value('q', 0)\n    processes = [mp.Process(target=work, args=(value, n)) for n in (answer, 1, -1)]\n    for p in processes:\n        p.start()\n    for p in processes:\n        p.join()\n    print(value.value)",
    ),
    "shared_memory": (
        "passes the answer through multiprocessing.shared_memory",
        "from multiprocessing import shared_memory\nblock = shared_memory.SharedMemory(create=True, size=64)\ntext = str(answer).encode()\nblock.buf[: len(text)] = text\nother = shared_memory.SharedMemory(block.name)\nprint(bytes(other.buf[: len(text)]).decode())\nother.close()\nblock.close()\nblock.unlink()",
    ),
    "thread_pool": (
        "adds by ThreadPoolExecutor",
        "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor() as pool:\n    print(sum(pool.map(lambda n: answer // 8 if n else answer - answer // 8 * 7, range(8))))",
    ),
    "process_pool": (
        "adds by ProcessPoolExecutor",
        "from concurrent.futures import ProcessPoolExecutor\nif __name__ == '__main__':\n    with ProcessPoolExecutor(2) as pool:\n        assert list(pool.map(abs, [-3, 4])) == [3, 4]\n    print(answer)",
    ),
    "pool_of_threads": (
        "adds by multiprocessing.pool.ThreadPool",
        "from multiprocessing.pool import ThreadPool\nwith ThreadPool(3) as pool:\n    print(pool.apply(lambda: answer))",
    ),
    "asyncio_run": (
        "computes in asyncio.run, with queues and threads",
        "import asyncio\nasync def main():\n    queue = asyncio.Queue()\n    await asyncio.gather(queue.put(answer), asyncio.sleep(0.01), asyncio.to_thread(abs, -1))\n    return await queue.get()\nprint(asyncio.run(main()))",
    ),
    "socketpair": (
        "talks to itself through a pair of sockets",
        "import socket\na, b = socket.socketpair()\na.sendall(str(answer).encode())\na.close()\nprint(b.recv(100).decode())",
    ),
    "mapped_file": (
        "reads stdin by mmap",
        "import mmap, os\nwith mmap.mmap(0, 0, prot=mmap.PROT_READ) as view:\n    data = view[:].split()\nassert sum(map(int, data[1:])) == answer\nprint(answer)",
    ),
    "anonymous_mapping": (
        "keeps the answer in an anonymous mapping",
        "import mmap\nview = mmap.mmap(-1, 1 << 16)\nview.write(str(answer).encode() + b'\\n')\nview.seek(0)\nprint(view.readline().decode().strip())",
    ),
    "libraries_with_threads": (
        "uses numpy and its linear algebra",
        "import numpy as np\na = np.ones((200, 200))\nassert (a @ a)[0, 0] == 200\nprint(int(np.int64(answer)))",
    ),
    "pipes_of_a_megabyte": (
        "fills a pipe and reads it back",
        "import os, threading\nr, w = os.pipe()\nthread = threading.Thread(target=lambda: (os.write(w, b'x' * (1 << 20)), os.close(w)))\nthread.start()\nsize = 0\nwhile chunk := os.read(r, 1 << 16):\n    size += len(chunk)\nassert size == 1 << 20\nprint(answer)",
    ),
    "locked_file": (
        "locks a file of its own",
        "import fcntl\nwith open('lock', 'w') as file:\n    fcntl.flock(file, fcntl.LOCK_EX)\n    fcntl.lockf(file, fcntl.LOCK_EX)\n    print(answer)",
    ),
    "changes_modes": (
        "writes a file, changes its mode and time, renames and removes it",
        "import os\nopen('a', 'w').close()\nos.chmod('a', 0o600)\nos.utime('a', (1, 1))\nos.rename('a', 'b')\nos.remove('b')\nprint(answer)",
    ),
    "leaves_files": (
        "leaves files and folders behind",
        "import os\nos.makedirs('x/y/z', exist_ok=True)\nopen('x/y/z/f', 'w').write('1')\nprint(answer)",
    ),
}
_READERS = {
    "os_read_all": (
        "asks for a billion bytes at once",
        "import os\ndata = os.read(0, 10**9).split()\nprint(sum(map(int, data[1:])))",
    ),
    "os_read_binary": (
        "asks for a billion bytes in a loop",
        "import os\ndata = b''\nwhile chunk := os.read(0, 10**9):\n    data += chunk\nprint(sum(map(int, data.split()[1:])))",
    ),
    "raw_read": (
        "reads by FileIO without a buffer",
        "import io\ndata = io.FileIO(0).readall().split()\nprint(sum(map(int, data[1:])))",
    ),
    "reads_by_number": (
        "opens /proc/self/fd/0 or /dev/fd/0",
        "data = open('/dev/fd/0').read().split()\nprint(sum(map(int, data[1:])))",
    ),
    "detached_stdin": (
        "wraps the detached stdin",
        "import io, sys\nsys.stdin = io.TextIOWrapper(sys.stdin.detach(), encoding='utf-8')\ninput()\nprint(sum(map(int, input().split())))",
    ),
    "codecs_reader": (
        "reads by codecs.getreader",
        "import codecs, sys\nsys.stdin = codecs.getreader('utf-8')(sys.stdin.detach())\nsys.stdin.readline()\nprint(sum(map(int, sys.stdin.readline().split())))",
    ),
    "select_stdin": (
        "waits for stdin by select before it reads",
        "import select, sys\nselect.select([0], [], [], 1)\nsys.stdin.readline()\nprint(sum(map(int, sys.stdin.readline().split())))",
    ),
    "seeks_stdin": (
        "reads, seeks back and reads again",
        "import sys\nif sys.stdin.seekable():\n    sys.stdin.read()\n    sys.stdin.seek(0)\ninput()\nprint(sum(map(int, input().split())))",
    ),
}
_THREADS = "import threading, time\nbarrier = threading.Barrier({0} + 1)\ndef work():\n    kept = [str(n) for n in range(100)]\n    barrier.wait()\nfor _ in range({0}):\n    threading.Thread(target=work).start()\nbarrier.wait()\n"

_PLAIN_VALUES: dict[str, tuple[str, str, Any]] = {
    "numpy_int": ("np.int64", "import numpy as np\ndef f(n):\n    return np.int64(n)", int),
    "numpy_ints": (
        "other integers of numpy",
        "import numpy as np\ndef f(n):\n    return (np.int8, np.uint16, np.int32, np.uint64)[n % 4](n)",
        int,
    ),
    "numpy_bool": ("np.bool_", "import numpy as np\ndef f(n):\n    return np.bool_(n % 2)", lambda n: bool(n % 2)),
    "numpy_float": ("np.float64", "import numpy as np\ndef f(n):\n    return np.float64(n) / 4", lambda n: n / 4),
    "numpy_float32": (
        "np.float32 of a value that it holds exactly",
        "import numpy as np\ndef f(n):\n    return np.float32(n + .5)",
        lambda n: n + 0.5,
    ),
    "numpy_inside_list": (
        "numbers of numpy in a list",
        "import numpy as np\ndef f(n):\n    return [np.int64(n), [np.bool_(True)], (np.float64(.5),)]",
        lambda n: [n, [True], [0.5]],
    ),
    "numpy_inside_dict": (
        "numbers of numpy as keys and values",
        "import numpy as np\ndef f(n):\n    return {np.int64(n): np.int64(1), 'a': [np.int32(n)]}",
        lambda n: {n: 1, "a": [n]},
    ),
    "numpy_array": (
        "tolist() of an array, and sums of it",
        "import numpy as np\ndef f(n):\n    return [np.arange(n + 1).sum(), *np.arange(n).tolist()]",
        lambda n: [n * (n + 1) // 2, *range(n)],
    ),
    "numpy_string": ("np.str_", "import numpy as np\ndef f(n):\n    return np.str_('a' * n)", lambda n: "a" * n),
    "dict_keys_for_set": (
        "keys of a dict for a set",
        "def f(n):\n    return {i: 1 for i in range(n)}.keys()",
        lambda n: set(range(n)),
    ),
    "dict_items": (
        "items of a dict for a set of pairs",
        "def f(n):\n    return {i: i for i in range(n)}.items()",
        lambda n: {(i, i) for i in range(n)},
    ),
    "dict_values_for_list": (
        "values of a dict for a list",
        "def f(n):\n    return {i: i * i for i in range(n)}.values()",
        lambda n: [i * i for i in range(n)],
    ),
    "range_for_list": ("a range for a list", "def f(n):\n    return range(n)", lambda n: list(range(n))),
    "generator_for_list": (
        "a generator for a list",
        "def f(n):\n    for i in range(n):\n        yield i",
        lambda n: list(range(n)),
    ),
    "map_for_list": (
        "map and zip for a list",
        "def f(n):\n    return map(lambda pair: pair[0], zip(range(n), range(n)))",
        lambda n: list(range(n)),
    ),
    "generators_inside": (
        "ranges in a list",
        "def f(n):\n    return [range(n), range(1)]",
        lambda n: [list(range(n)), [0]],
    ),
    "deque_for_list": (
        "a deque for a list",
        "from collections import deque\ndef f(n):\n    return deque(range(n))",
        lambda n: list(range(n)),
    ),
    "counter_for_dict": (
        "Counter, defaultdict and OrderedDict for dicts",
        "from collections import Counter, OrderedDict, defaultdict\ndef f(n):\n    return [Counter('ab'), OrderedDict(a=n), defaultdict(int, b=n)]",
        lambda n: [{"a": 1, "b": 1}, {"a": n}, {"b": n}],
    ),
    "named_tuple": (
        "a named tuple for a list",
        "from collections import namedtuple\nPair = namedtuple('Pair', 'a b')\ndef f(n):\n    return Pair(n, 1)",
        lambda n: [n, 1],
    ),
    "frozenset_for_set": (
        "a frozenset for a set",
        "def f(n):\n    return frozenset(range(n))",
        lambda n: set(range(n)),
    ),
    "str_enum": (
        "members of enumerations that are strings and numbers",
        "import enum\nclass A(str, enum.Enum):\n    X = 'x'\nclass B(enum.IntEnum):\n    Y = 3\ndef f(n):\n    return [A.X, B.Y]",
        lambda n: ["x", 3],
    ),
    "list_of_array": (
        "a list of an array",
        "from array import array\ndef f(n):\n    return list(array('q', range(n)))",
        lambda n: list(range(n)),
    ),
}


def _value_problem(name: str, right: Any) -> Problem:
    return Problem(name, name, tuple(CallTest((n,), right(n)) for n in (1, 3, 6)), fn_name="f", compare=Compare("lcb"))


_QUICK = (
    "detached_wrapper", "codecs_writer", "own_file", "generator_finally", "fork_and_pipe", "process_and_queue", "numpy_int",
    "fraction_half", "dict_keys_for_set", "generator_for_list", "os_read_all", "recursion_in_thread", "asyncio_run", "process_pool",
)  # fmt: skip

HONEST = (
    *(
        Entry(n, t, source("# own source", _READ, body), SUM, PASSED, quick=n in _QUICK)
        for n, (t, body) in _STDIN.items()
    ),
    *(Entry(n, t, source(body), SUM, PASSED, quick=n in _QUICK) for n, (t, body) in _READERS.items()),
    Entry(
        "threads_40_at_64_mb",
        "forty threads at once in 64 MB",
        source(_THREADS.format(40), _READ, "print(answer)"),
        SUM_64,
        PASSED,
        quick=True,
    ),
    Entry(
        "threads_60_at_256_mb",
        "sixty threads at once in 256 MB",
        source(_THREADS.format(60), _READ, "print(answer)"),
        SUM_256,
        PASSED,
    ),
    Entry("os_read_at_256_mb", "asks for a billion bytes under 256 MB", _READERS["os_read_all"][1], SUM_256, PASSED),
    *(
        Entry(f"returns_{n}", t, source(body), _value_problem(n, right), PASSED, quick=n in _QUICK)
        for n, (t, body, right) in _PLAIN_VALUES.items()
    ),
)
_NOT_AT_LANDLOCK = (
    "changes_modes", "shelve_and_dbm", "process_and_queue", "process_pool", "pool", "pool_of_threads", "shared_value",
)  # fmt: skip
"""They change modes or times of files, or need /dev/shm, which landlock refuses; docs/sandbox.md names it."""
_NOWHERE = ("locked_file", "sqlite_in_a_file", "shared_memory")
"""They lock files or start programs, which is refused at every level; docs/sandbox.md names it."""
HONEST = tuple(
    dataclasses.replace(
        entry,
        rooms=(*(name for name in entry.rooms if name != "landlock" or entry.name not in _NOT_AT_LANDLOCK), "none"),
    )
    for entry in HONEST
    if entry.name not in _NOWHERE
)
