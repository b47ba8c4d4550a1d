"""Pairs of submissions that run at the same time: a writer that changes something, and a reader that wants to see or feel it.

The writer stays for a little longer than the reader looks; the reader prints `GOT` when it has seen the writer's sign.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.grading.corpus.rooms import FUSION
from tests.grading.walls.programs import CONFINING, source

WRITER_S, READER_S = 2.2, 1.6

_HEAD = """
    import ctypes, fcntl, glob, mmap, os, resource, signal, socket, struct, sys, tempfile, time
    libc = ctypes.CDLL(None, use_errno=True)
    STAY = {stay}
    def quietly(action, *arguments):
        try:
            return action(*arguments)
        except (OSError, ValueError, AttributeError, KeyError, IndexError):
            return None
    def shared():
        # Files that two submissions both can open: the library, the interpreter, devices, directories.
        named = [os.__file__, ctypes.__file__, sys.executable, os.path.dirname(os.__file__), "/etc/passwd", "/etc/ld.so.cache", "/dev/null", "/dev/zero", "/dev/urandom", "/", "/usr", "/usr/lib", "/tmp", "/dev/shm", "/proc/version"]
        return named + [name.split()[-1] for name in (quietly(lambda: open("/proc/self/maps").read()) or "").splitlines() if ".so" in name][::8]
    def opened(flags=os.O_RDONLY):
        return [fd for fd in (quietly(os.open, path, flags) for path in shared()) if fd is not None]
    class Lock(ctypes.Structure):
        _fields_ = [("type", ctypes.c_short), ("whence", ctypes.c_short), ("start", ctypes.c_long), ("length", ctypes.c_long), ("pid", ctypes.c_int)]
    MARK = 0x3FF7700
    """
_STAY = "time.sleep(STAY)\nprint('stayed')"
_LOOK = """
    end = time.time() + STAY
    while time.time() < end:
        if quietly(look):
            print("GOT")
            break
        time.sleep(.05)
    else:
        print("nothing")
    """


@dataclass(frozen=True, slots=True)
class Pair:
    """`writer` and `reader` are complete programs. `open_at_none`: the reader sees the sign where nothing confines it, which shows that it can."""

    name: str
    tries: str
    writer: str
    reader: str
    rooms: tuple[str, ...] = CONFINING
    open_at_none: bool = False
    quick: bool = False


_PAIRS: dict[str, tuple[str, str, str]] = {
    "flock": (
        "flock on shared files",
        "kept = opened()\nfor fd in kept:\n    quietly(fcntl.flock, fd, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "def look():\n    for fd in opened():\n        try:\n            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)\n        except BlockingIOError:\n            return True\n        finally:\n            os.close(fd)",
    ),
    "record_locks": (
        "record locks for reading on shared files, which F_GETLK shows",
        "kept = opened()\nfor fd in kept:\n    libc.fcntl(fd, 6, ctypes.byref(Lock(0, 0, MARK, 7, 0)))",
        "def look():\n    for fd in opened():\n        lock = Lock(1, 0, MARK, 7, 0)\n        done = libc.fcntl(fd, 5, ctypes.byref(lock))\n        os.close(fd)\n        if done == 0 and lock.type == 0:\n            return True",
    ),
    "description_locks": (
        "locks of open file descriptions on shared files",
        "kept = opened()\nfor fd in kept:\n    libc.fcntl(fd, 37, ctypes.byref(Lock(0, 0, MARK + 99, 7, 0)))",
        "def look():\n    for fd in opened():\n        lock = Lock(1, 0, MARK + 99, 7, 0)\n        done = libc.fcntl(fd, 36, ctypes.byref(lock))\n        os.close(fd)\n        if done == 0 and lock.type == 0:\n            return True",
    ),
    "pipe_quota": (
        "uses up the pages that a user's pipes may hold",
        "kept = []\nfor _ in range(200):\n    pair = quietly(os.pipe)\n    if pair is None:\n        break\n    kept.append(pair)\n    quietly(fcntl.fcntl, pair[1], 1031, 1 << 20)",
        "def look():\n    r, w = os.pipe()\n    small = fcntl.fcntl(w, 1032) < 65536\n    os.close(r), os.close(w)\n    return small",
    ),
    "pipe_quota_by_many": (
        "uses up a user's pipes by their number",
        "kept = []\nresource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)\nwhile len(kept) < 1100:\n    pair = quietly(os.pipe)\n    if pair is None:\n        break\n    kept.append(pair)\n    if len(kept) % 100 == 0 and quietly(os.fork) == 0:\n        kept.clear()",
        "def look():\n    r, w = os.pipe()\n    small = fcntl.fcntl(w, 1032) < 65536\n    os.close(r), os.close(w)\n    return small",
    ),
    "inotify": (
        "is told when another one opens a library's file",
        "path = os.path.join(os.path.dirname(os.__file__), 'this.py')\nend = time.time() + STAY\nwhile time.time() < end:\n    quietly(lambda: open(path).close())\n    time.sleep(.02)",
        "path = os.path.join(os.path.dirname(os.__file__), 'this.py')\nfd = libc.inotify_init1(os.O_NONBLOCK)\nlibc.inotify_add_watch(fd, path.encode(), 0x20)\ndef look():\n    return fd >= 0 and os.read(fd, 4096)",
    ),
    "leases": (
        "a lease on a shared file, which delays or shows opens",
        "kept = opened()\nfor fd in kept:\n    quietly(fcntl.fcntl, fd, 1024, fcntl.F_RDLCK)",
        "def look():\n    for fd in opened():\n        try:\n            fcntl.fcntl(fd, 1024, fcntl.F_WRLCK)\n        except OSError as error:\n            if error.errno == 11:\n                return True\n        os.close(fd)",
    ),
    "write_hints": (
        "write hints on the inodes of shared files",
        "for fd in opened():\n    quietly(fcntl.fcntl, fd, 1036, (4).to_bytes(8, 'little'))",
        "def look():\n    for fd in opened():\n        hint = quietly(fcntl.fcntl, fd, 1035, bytes(8))\n        os.close(fd)\n        if hint and hint[0] == 4:\n            return True",
    ),
    "file_times": (
        "times of shared files",
        "for path in shared():\n    for stamp in ((7, 7), None):\n        if path not in ('/dev/null', '/dev/zero', '/dev/urandom') and path.startswith(('/tmp', '/dev/shm')):\n            quietly(os.utime, path, (7, 7))",
        "def look():\n    return any((quietly(os.stat, path) or os.stat('.')).st_mtime == 7 for path in shared())",
    ),
    "files": (
        "files in directories for everyone",
        "for place in ('/tmp', '/dev/shm', '/var/tmp', '/run', '/dev', '/'):\n    quietly(lambda: open(place + '/wall_mark', 'w').close())\ntime.sleep(STAY - .3)\nfor place in ('/tmp', '/dev/shm', '/var/tmp', '/run', '/dev', '/'):\n    quietly(os.unlink, place + '/wall_mark')",
        "def look():\n    return any(os.path.exists(place + '/wall_mark') for place in ('/tmp', '/dev/shm', '/var/tmp', '/run', '/dev', '/'))",
    ),
    "datagrams_to_paths": (
        "unix datagram sockets that are bound to a path, reached from a socketpair",
        "for place in ('/tmp', os.getcwd(), '/dev/shm'):\n    s = quietly(socket.socket, socket.AF_UNIX, socket.SOCK_DGRAM) or quietly(lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0])\n    if s:\n        quietly(os.unlink, place + '/wall_socket')\n        quietly(s.bind, place + '/wall_socket')\n        globals().setdefault('kept', []).append(s)",
        "def look():\n    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\n    for path in ['/tmp/wall_socket', '/dev/shm/wall_socket', *(f'{os.path.dirname(os.getcwd())}/{n}/wall_socket' for n in range(os.getpid() - 200, os.getpid() + 200))]:\n        if quietly(a.sendto, b'x', path) == 1:\n            return True",
    ),
    "abstract_sockets": (
        "abstract sockets, by socket and by socketpair",
        "kept = []\nfor kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):\n    for s in (quietly(socket.socket, socket.AF_UNIX, kind), quietly(lambda: socket.socketpair(socket.AF_UNIX, kind)[0])):\n        if s and quietly(s.bind, '\\0wall_mark%d' % kind) is None:\n            kept.append(s)\n            quietly(s.listen)",
        "def look():\n    for s in (quietly(socket.socket, socket.AF_UNIX, socket.SOCK_DGRAM), *socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)):\n        if s and quietly(s.sendto, b'x', '\\0wall_mark2') == 1:\n            return True",
    ),
    "loopback": (
        "a port of the loopback device",
        "s = quietly(socket.socket, socket.AF_INET, socket.SOCK_DGRAM)\ns and quietly(s.bind, ('127.0.0.1', 47619))",
        "def look():\n    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n    try:\n        s.bind(('127.0.0.1', 47619))\n    except OSError as error:\n        return error.errno == 98\n    finally:\n        s.close()",
    ),
    "sysv_objects": (
        "shared memory, semaphores and queues of System V",
        "made = libc.shmget(MARK, 4096, 0o1666), libc.semget(MARK, 1, 0o1666), libc.msgget(MARK, 0o1666)\ntime.sleep(STAY - .3)\nlibc.shmctl(made[0], 0, None), libc.semctl(made[1], 0, 0), libc.msgctl(made[2], 0, None)",
        "def look():\n    return libc.shmget(MARK, 4096, 0) >= 0 or libc.semget(MARK, 1, 0) >= 0 or libc.msgget(MARK, 0) >= 0",
    ),
    "posix_objects": (
        "shared memory and queues of POSIX by name",
        "libc.shm_open(b'/wall_mark', os.O_CREAT | os.O_RDWR, 0o666)\nlibc.mq_open(b'/wall_mark', os.O_CREAT | os.O_RDWR, 0o666, None)\ntime.sleep(STAY - .3)\nlibc.shm_unlink(b'/wall_mark')\nlibc.mq_unlink(b'/wall_mark')",
        "def look():\n    return libc.shm_open(b'/wall_mark', os.O_RDWR, 0) >= 0 or libc.mq_open(b'/wall_mark', os.O_RDWR) >= 0",
    ),
    "keyrings": (
        "keys of the user and of the session",
        "for ring in (-1, -2, -3, -4, -5):\n    libc.syscall(248, b'user', b'wall_mark', b'x', 1, ring)",
        "def look():\n    return any(libc.syscall(250, 10, ring, b'user', b'wall_mark', 0) > 0 for ring in (-3, -4, -5)) or libc.syscall(249, b'user', b'wall_mark', None, 0) > 0",
    ),
    "processes_seen": (
        "names of processes",
        "libc.prctl(15, b'wall_mark', 0, 0, 0)",
        "def look():\n    for pid in os.listdir('/proc'):\n        if pid.isdigit() and int(pid) != os.getpid() and quietly(lambda: open(f'/proc/{pid}/comm').read()) == 'wall_mark\\n':\n            return True",
    ),
    "pids_answer": (
        "numbers of processes, by kill, getpgid, sched and clocks: the writer has three hundred",
        "pids = [quietly(os.fork) for _ in range(60)]\nif 0 in pids:\n    time.sleep(STAY)\n    os._exit(0)",
        "mine = set()\ndef look():\n    for pid in range(3, 70000):\n        if pid not in (os.getpid(), os.getppid()):\n            for ask in (os.getpgid, os.getsid, os.sched_getscheduler, lambda n: os.getpriority(0, n), lambda n: time.clock_gettime((~n << 3) | 2)):\n                if quietly(ask, pid) is not None:\n                    return True\n    return False",
    ),
    "priorities_seen": (
        "the priority of the process, which getpriority shows for any number",
        "os.nice(7)",
        "def look():\n    for pid in range(3, 70000):\n        if pid != os.getpid() and quietly(os.getpriority, os.PRIO_PROCESS, pid) == 7:\n            return True",
    ),
    "signals": (
        "signals to every number that there may be: the writer is hurt, not the reader",
        "for pid in range(os.getpid() + 1, os.getpid() + 300):\n    quietly(os.kill, pid, 0) is None or None\ndone = [pid for pid in range(3, 60000) if pid not in (os.getpid(), os.getppid()) and libc.kill(pid, 0) == 0]\nif done:\n    sys.stderr.write(f'reached {done}')",
        "def look():\n    return any(libc.kill(pid, 0) == 0 for pid in range(3, 60000) if pid not in (os.getpid(), os.getppid()))",
    ),
    "priorities_of_user": (
        "the priority of all processes of the user",
        "quietly(os.setpriority, os.PRIO_USER, 0, 7)\nquietly(os.setpriority, os.PRIO_USER, os.getuid(), 7)",
        "def look():\n    return os.getpriority(os.PRIO_PROCESS, 0) == 7",
    ),
    "process_quota": (
        "uses up the processes of the user",
        "for _ in range(3000):\n    pid = quietly(os.fork)\n    if pid == 0:\n        time.sleep(STAY)\n        os._exit(0)\n    if pid is None:\n        break",
        "def look():\n    pid = quietly(os.fork)\n    if pid == 0:\n        os._exit(0)\n    if pid:\n        os.waitpid(pid, 0)\n    return pid is None and HAD\nHAD = False\nlook()\nHAD = quietly(os.fork)\nif HAD == 0:\n    os._exit(0)",
    ),
    "inotify_quota": (
        "uses up the user's inotify instances",
        "kept = [libc.inotify_init1(0) for _ in range(4000)]",
        "FIRST = libc.inotify_init1(0)\ndef look():\n    fd = libc.inotify_init1(0)\n    failed = fd < 0 and ctypes.get_errno() == 24\n    fd >= 0 and os.close(fd)\n    return failed and FIRST >= 0",
    ),
    "signal_quota": (
        "uses up the user's queued signals, by timers",
        "import threading\nevent = ctypes.create_string_buffer(64)\nctypes.c_int.from_buffer(event, 8).value = 34\ntimer = ctypes.c_void_p()\nlibc.timer_create.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]\nfor _ in range(150000):\n    if libc.syscall(222, 1, event, ctypes.byref(timer)) != 0:\n        break",
        "event = ctypes.create_string_buffer(64)\nctypes.c_int.from_buffer(event, 8).value = 34\ntimer = ctypes.c_int()\ndef make():\n    done = libc.syscall(222, 1, event, ctypes.byref(timer))\n    failed = done != 0 and ctypes.get_errno() == 11\n    done == 0 and libc.syscall(226, timer.value)\n    return failed\nFIRST = make()\ndef look():\n    return make() and not FIRST",
    ),
    "locked_memory_quota": (
        "uses up the memory that the user may lock",
        "block = mmap.mmap(-1, 64 << 20)\nfor size in (1 << n for n in range(12, 26)):\n    libc.mlock(ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(block))), ctypes.c_size_t(size))\npairs = [socket.socketpair() for _ in range(20)]",
        "block = mmap.mmap(-1, 4096)\nlocation = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(block)))\nFIRST = libc.mlock(location, 4096)\nlibc.munlock(location, 4096)\ndef look():\n    failed = libc.mlock(location, 4096)\n    libc.munlock(location, 4096)\n    return FIRST == 0 and failed != 0",
    ),
    "traced": (
        "attaches to, or reads the memory of, any other process",
        "keep = ctypes.create_string_buffer(b'wall_mark' * 100)",
        "def look():\n    for pid in range(2, 40000):\n        if pid not in (os.getpid(), os.getppid()) and libc.kill(pid, 0) == 0 and libc.ptrace(16, pid, 0, 0) == 0:\n            return True",
    ),
    "free_space": (
        "the free space and inodes of file systems that both see",
        "for place in ('.', '/tmp', '/dev/shm'):\n    fd = quietly(os.open, place + '/wall_fill', os.O_CREAT | os.O_RDWR)\n    if fd is not None:\n        quietly(os.unlink, place + '/wall_fill')\n        for _ in range(60):\n            quietly(os.write, fd, b'x' * (1 << 20))",
        "places = [path for path in ('.', '/tmp', '/dev/shm', '/dev') if quietly(os.statvfs, path)]\nFIRST = [os.statvfs(place).f_bavail * os.statvfs(place).f_frsize for place in places]\ndef look():\n    now = [os.statvfs(place).f_bavail * os.statvfs(place).f_frsize for place in places]\n    return any(50 << 20 < a - b < 70 << 20 for a, b in zip(FIRST, now))",
    ),
}
_AT_NONE = (
    "flock",
    "record_locks",
    "description_locks",
    "inotify",
    "files",
    "datagrams_to_paths",
    "abstract_sockets",
    "sysv_objects",
    "posix_objects",
    "processes_seen",
    "signals",
    "pids_answer",
    "loopback",
)
_QUICK = ("flock", "pipe_quota", "write_hints", "description_locks")
_NOT_AT_LANDLOCK = ("free_space", "pids_answer")
"""At landlock the disk is the host's, and process numbers are; what can be told of other processes by number is in `priorities_seen`."""

PAIRS = tuple(
    Pair(
        name,
        tries,
        source(_HEAD.format(stay=WRITER_S), writer, _STAY),
        source(_HEAD.format(stay=READER_S), reader, _LOOK),
        rooms=("full", FUSION) if name in _NOT_AT_LANDLOCK else CONFINING,
        open_at_none=name in _AT_NONE,
        quick=name in _QUICK,
    )
    for name, (tries, writer, reader) in _PAIRS.items()
)
