"""Programs that are right only if they know which test they are in: all inputs are equal, the expected outputs count up from 0.

Each leaves something in every test and counts what it finds.
"""

from __future__ import annotations

from code_rl.problems.problem import CallTest, Problem, StdinTest
from tests.walls.between_files import FILES
from tests.walls.programs import UNPAID, Entry, source

_TESTS = 3
COUNT = Problem("count", "count", tuple(StdinTest("?\n", f"{n}\n") for n in range(_TESTS)), time_limit_s=3.0)
COUNT_CALL = Problem(
    "count_call", "count", tuple(CallTest((), n) for n in range(_TESTS)), fn_name="count", time_limit_s=3.0
)

_HEAD = """
    import ctypes, fcntl, glob, mmap, os, random, resource, signal, socket, stat, sys, tempfile, threading, time
    libc = ctypes.CDLL(None, use_errno=True)
    def quietly(action, *arguments):
        try:
            return action(*arguments)
        except (OSError, ValueError, AttributeError, IndexError):
            return None
    def library():
        return os.__file__
    def shared():
        # What exists in every test alike: directories, streams and files of the library.
        return ["/tmp", ".", "/", "/dev", "/dev/null", "/dev/shm", "/var/tmp", "/proc/self/fd/0", "/proc/self/fd/1", library(), os.path.dirname(library()), sys.executable, "/etc/passwd"]
    def answer(number):
        os.write(1, b"%d\\n" % number)
        os._exit(0)
    """
_FIRST_OF = """
    def count_by(test, mark):
        # The first of several marks that is not there yet.
        for number in range(3):
            if not test(number):
                mark(number)
                return number
        return 3
    """

_BODIES: dict[str, tuple[str, str]] = {
    "inline_caches": (
        "counters in the bytecode of the functions below it, which fall with each call",
        """
        frame, counters = sys._getframe(), []
        while frame is not None:
            code = frame.f_code._co_code_adaptive
            if frame.f_code.co_name in ("_run_one", "_run", "run_chunk", "supervised", "serve", "supervise"):
                counters += [code[at] for at in (6, 162)]
            frame = frame.f_back
        # As found by counting: the first falls from 52, by one a test.
        answer(max(0, min(2, 52 - counters[0])) if counters else 0)
        """,
    ),
    "inline_caches_then_file": (
        "the same, where a file left behind has it meet a new supervisor each time",
        """
        open(f"left{os.getpid()}", "w").close()
        frame, total = sys._getframe(), 0
        while frame is not None:
            total += sum(frame.f_code._co_code_adaptive)
            frame = frame.f_back
        answer(total % 3)
        """,
    ),
    "results_of_the_loop": (
        "numbers that the loop between tests holds, which C functions gave it",
        """
        import gc
        gc.unfreeze()
        found = [value for each in gc.get_objects() if type(each) is zip for results in gc.get_referents(each)
                 if type(results) is tuple for value in results if type(value) is int and not -5 <= value <= 256]
        answer(sum(map(id, found)) // 32 % 3)
        """,
    ),
    "exit_codes_of_tests_before": (
        "how the test before ended, which each makes one more",
        """
        import gc
        gc.unfreeze()
        before = [value + 99 for each in gc.get_objects() if type(each) is zip for results in gc.get_referents(each)
                  if type(results) is tuple for value in results if type(value) is int and -99 < value < -5]
        answer(max(before, default=0))
        sys.stdout.flush()
        os._exit(max(before, default=0) + 1)
        """,
    ),
    "places_of_objects": (
        "where new objects come to lie",
        "answer(sum(id(bytearray(size)) >> 4 for size in range(1, 512, 16)) % 3)",
    ),
    "collections": (
        "how often the collector has run",
        "import gc\nanswer((gc.get_count()[0] + gc.get_stats()[0]['collections']) % 3)",
    ),
    "pid": ("its own number", "answer(max(os.getpid() - 2, 0) if os.getpid() < 100 else os.getpid() % 3)"),
    "pid_by_burning": (
        "how far process numbers have gone, after having used up 50 in each test",
        """
        for _ in range(50):
            pid = quietly(os.fork)
            if pid == 0:
                os._exit(0)
            if pid:
                os.waitpid(pid, 0)
        answer(max(0, min(2, os.getpid() // 50)))
        """,
    ),
    "thread_numbers": (
        "how far thread numbers have gone, after having used up 50 in each test",
        """
        before = []
        def work():
            before.append(threading.get_native_id())
        for _ in range(50):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        answer(max(0, min(2, before[0] // 50)))
        """,
    ),
    "inode_numbers": (
        "the inode number of a new file, relative to that of the directory",
        """
        fd = quietly(os.open, "x", os.O_CREAT | os.O_RDWR)
        base, number = os.stat(".").st_ino, os.fstat(fd).st_ino
        os.unlink("x")
        answer(min(max(number - base - 1, 0), 2))
        """,
    ),
    "inode_of_streams": (
        "the inode numbers of its streams",
        "answer((os.fstat(1).st_ino - os.fstat(0).st_ino) % 3 if os.fstat(1).st_ino < 1000 else os.fstat(1).st_ino % 3)",
    ),
    "supervisor_clock": (
        "the processor time of PID 1 and of its parent, after leaving them much to do",
        """
        def spent(pid):
            return quietly(time.clock_gettime, (~pid << 3) | 2) or 0.0
        before = max(spent(1), spent(os.getppid()))
        for _ in range(60):
            if quietly(os.fork) == 0:
                quietly(os.setsid)
                time.sleep(9)
                os._exit(0)
        answer(0 if before < .02 else 1 if before < .035 else 2)
        """,
    ),
    "supervisor_memory": (
        "memory of PID 1 that it shares, read and written",
        """
        def there(n):
            for pid in ("1", str(os.getppid())):
                status = quietly(lambda: open(f"/proc/{pid}/stat").read().split())
                if status and int(status[15]) > n:  # children's processor time, in ticks
                    return True
            return False
        answer(count_by(there, lambda n: [None for _ in range(3_000_000)] and None))
        """,
    ),
    "usage_of_siblings": (
        "accounts: load, context switches, page faults, processes since the start",
        """
        lines = quietly(lambda: open("/proc/stat").read()) or ""
        loads = quietly(lambda: open("/proc/loadavg").read().split()[-1]) or "0"
        answer(int(loads) - 2 if 0 < int(loads) < 100 else 0)
        """,
    ),
    "limits": (
        "limits that it lowers",
        """
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        number = {201: 1, 202: 2}.get(soft, 0)
        for pid in (0, os.getppid(), 1):
            quietly(resource.prlimit, pid, resource.RLIMIT_NOFILE, (201 + number, 201 + number))
        answer(number)
        """,
    ),
    "priority": (
        "the priority of its parent and group",
        """
        number = os.getpriority(os.PRIO_PROCESS, 0)
        for which, who in ((os.PRIO_PROCESS, os.getppid()), (os.PRIO_PGRP, 0), (os.PRIO_USER, 0), (os.PRIO_PROCESS, 1)):
            quietly(os.setpriority, which, who, number + 1)
        answer(max(number, 0))
        """,
    ),
    "affinity_of_parent": (
        "the processors and scheduling of its parent",
        """
        number = {os.SCHED_OTHER: 0, os.SCHED_BATCH: 1, os.SCHED_IDLE: 2}.get(os.sched_getscheduler(0), 0)
        for pid in (os.getppid(), 1):
            quietly(os.sched_setscheduler, pid, (os.SCHED_BATCH, os.SCHED_IDLE, os.SCHED_IDLE)[number], os.sched_param(0))
            quietly(os.sched_setaffinity, pid, {0})
        answer(number)
        """,
    ),
    "working_directory_of_parent": (
        "working directory, mask and root, which children of one another may share",
        """
        number = os.umask(0o77) & 3
        os.umask(number + 1)
        quietly(os.chdir, "/")
        answer(number if number < 3 else 0)
        """,
    ),
    "background_process": (
        "a process that stays and can be seen, or answers signals",
        """
        def there(n):
            for pid in range(2, 200):
                name = quietly(lambda: open(f"/proc/{pid}/comm").read())
                if name == f"mark{n}\\n":
                    return True
            return False
        def put(n):
            if quietly(os.fork) == 0:
                quietly(os.setsid)
                libc.prctl(15, b"mark%d" % n, 0, 0, 0)
                for number in range(1, 65):
                    quietly(signal.signal, number, signal.SIG_IGN)
                time.sleep(30)
            time.sleep(.05)
        answer(count_by(there, put))
        """,
    ),
    "shared_objects": (
        "semaphores, shared memory, queues and keys that stay",
        """
        def there(n):
            key = 0x7700 + n
            return libc.shmget(key, 4096, 0) >= 0 or libc.semget(key, 1, 0) >= 0 or libc.msgget(key, 0) >= 0 or libc.shm_open(b"/mark%d" % n, os.O_RDWR, 0o600) >= 0 or libc.syscall(250, 10, -3, b"user", b"mark%d" % n, 0) > 0
        def put(n):
            key = 0x7700 + n
            libc.shmget(key, 4096, 0o1666), libc.semget(key, 1, 0o1666), libc.msgget(key, 0o1666)
            libc.shm_open(b"/mark%d" % n, os.O_RDWR | os.O_CREAT, 0o600)
            libc.syscall(248, b"user", b"mark%d" % n, b"x", 1, -3)
        answer(count_by(there, put))
        """,
    ),
    "abstract_socket": (
        "an abstract socket held by a process that stays",
        """
        def there(n):
            def ask():
                with socket.socket(socket.AF_UNIX) as s:
                    s.connect("\\0mark%d" % n)
                    return True
            return quietly(ask)
        def put(n):
            if quietly(os.fork) == 0:
                quietly(os.setsid)
                listener = quietly(socket.socket, socket.AF_UNIX)
                if listener:
                    listener.bind("\\0mark%d" % n)
                    listener.listen()
                time.sleep(30)
            time.sleep(.05)
        answer(count_by(there, put))
        """,
    ),
    "random_seed": (
        "the seed of its random numbers, made anew for each test from what it can know",
        """
        import hashlib
        first = random.random()
        table = {}
        names = [text for text in (quietly(lambda: open(__file__).read()),) if text]
        for number in range(3):
            for text in names:
                for seed in (number, text, f"{text}{number}", f"{number}{text}"):
                    for made in (seed, *(int.from_bytes(hashlib.new(kind, str(seed).encode()).digest()[:8], order) for kind in ("sha256", "md5", "blake2b") for order in ("big", "little"))):
                        table[random.Random(made).random()] = number
        answer(table.get(first, 0))
        """,
    ),
    "random_and_memory": (
        "whether two tests draw different random numbers, hashes and addresses: any order of them is a number",
        "draws = [random.random(), id(object()), hash('x')]\nanswer(int(draws[0] * 1000) % 3)",
    ),
    "age_by_times": (
        "how long ago the submission began, by the times of what was there first, having slept in each test",
        """
        moments = [quietly(lambda: os.stat(place).st_ctime) for place in ("/tmp", ".", "/proc/1", "/proc", "/dev/shm")] + [os.fstat(fd).st_ctime for fd in (0, 2)]
        for pid in (1, os.getppid()):
            text = quietly(lambda: open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split())
            if text:
                moments.append(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + int(text[19]) / 100)
        ages = [time.time() - moment for moment in moments if moment]
        number = max((int(age / .5) for age in ages if age < 2), default=0)
        time.sleep(.55)
        answer(number)
        """,
    ),
}

_CALLED = """
    kept = []
    def count(found=[]):
        import builtins, functools, gc
        number = len(found) + len(kept) + getattr(builtins, "mark", 0) + getattr(count, "mark", 0) + int(os.environ.get("MARK", 0))
        found.append(1)
        kept.append(1)
        builtins.mark = count.mark = 1
        os.environ["MARK"] = "1"
        return number // 5
    """
_LEFT_TO_PARENT = """
    import atexit
    block = mmap.mmap(-1, 4096)
    def count():
        number = block[0]
        block[0] = number + 1
        return number
    """
_BY_FINALIZERS = """
    import atexit, weakref
    class Later:
        def __del__(self):
            quietly(lambda: open("mark%d" % len(glob.glob("mark*")), "w").close())
    later = Later()
    later.me = later
    def count():
        atexit.register(later.__del__)
        return len(glob.glob("mark*"))
    """

BETWEEN = (
    *(
        Entry(
            name,
            tries,
            source(_HEAD, _FIRST_OF, body),
            COUNT,
            UNPAID,
            quick=name
            in (
                "stream_flags",
                "write_hints",
                "pid",
                "inline_caches",
                "directory_times",
                "locks_of_descriptions",
                "directory_mode",
                "stream_modes",
            ),
        )
        for name, (tries, body) in (FILES | _BODIES).items()
    ),
    Entry(
        "called_state",
        "module state, defaults, builtins and environment",
        source(_HEAD, _CALLED),
        COUNT_CALL,
        UNPAID,
        quick=True,
    ),
    Entry(
        "called_mapping",
        "a mapping shared since the import of the program",
        source(_HEAD, _LEFT_TO_PARENT),
        COUNT_CALL,
        UNPAID,
        quick=True,
    ),
    Entry(
        "called_finalizers", "files left by finalizers and at exit", source(_HEAD, _BY_FINALIZERS), COUNT_CALL, UNPAID
    ),
)
