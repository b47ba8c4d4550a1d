"""Programs that are right only if a test finds what the ones before it left: all inputs are equal, the expected outputs count up from 0."""

from __future__ import annotations

from code_rl.grading.problem import CallTest, Problem, StdinTest
from tests.grading.walls.between_files import FILES
from tests.grading.walls.programs import UNPAID, Entry, source

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
            quick=name in ("file", "stream_flags", "directory_mode", "stream_modes", "background_process"),
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
