"""Containment probes: programs that try to reach past their sandbox and print `BREACH …` for each thing that they could do.

The probes get facts that only the host knows (a canary's path, port, pid); the tests look at both the printed text and the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent


@dataclass(frozen=True, slots=True)
class Canary:
    """What the host has set up to be attacked."""

    secret: str
    folder: str
    pid: int
    tcp_port: int
    udp_port: int
    abstract: str
    socket_path: str
    marker: str


_PRELUDE = """
import ctypes, errno, os, socket, sys
secret, folder, pid = {secret!r}, {folder!r}, {pid!r}
tcp_port, udp_port, abstract, socket_path, marker = {tcp_port!r}, {udp_port!r}, {abstract!r}, {socket_path!r}, {marker!r}
libc = ctypes.CDLL(None, use_errno=True)
def breach(*what):
    print("BREACH", *what)
def listing(path):
    try:
        return os.listdir(path)
    except OSError:
        return []
def attempt(name, action):
    try:
        result = action()
    except Exception:
        return None
    if result is not False and result is not None and result != -1:
        breach(name, repr(result)[:80])
"""

PROBES: dict[str, str] = {
    "reads no host file": """
        attempt("canary", lambda: open(folder + "/secret.txt").read())
        attempt("listing", lambda: os.listdir(folder))
        for path in ("/etc/shadow", "/root/.bashrc", "/root/.ssh", "/etc/passwd-", "/proc/kcore", "/dev/mem", "/dev/kmsg", "/var/run/secrets"):
            attempt(path, lambda: open(path).read(10))
        """,
    "writes no host file": """
        import site, sysconfig
        places = [folder, "/", "/etc", "/usr/lib", "/usr/local", "/var", "/root", "/home", *sys.path, os.path.dirname(os.__file__)]
        for place in places:
            if place and place != os.getcwd() and not place.startswith("/tmp/solution"):
                name = os.path.join(place, "planted_" + marker)
                try:
                    open(name, "w").close()
                except OSError:
                    continue
                print("wrote", name)
        attempt("truncate", lambda: os.truncate(folder + "/secret.txt", 0) is None)
        attempt("unlink", lambda: os.unlink(folder + "/secret.txt") is None)
        attempt("chmod", lambda: os.chmod(folder + "/secret.txt", 0o777) is None)
        """,
    "sees no environment of the host": """
        text = repr(dict(os.environ))
        for where in ("self", str(os.getppid()), "1", str(pid)):
            try:
                text += open("/proc/" + where + "/environ").read()
            except OSError:
                pass
        if secret in text:
            breach("environment")
        """,
    "reaches no network": """
        def tcp(host, family):
            with socket.socket(family, socket.SOCK_STREAM) as s:
                s.settimeout(2)
                s.connect((host, tcp_port))
                s.sendall(b"breach")
                return True
        attempt("tcp4", lambda: tcp("127.0.0.1", socket.AF_INET))
        attempt("tcp6", lambda: tcp("::1", socket.AF_INET6))
        def udp():
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
                s.sendto(b"breach", ("127.0.0.1", udp_port))
        attempt("udp", udp)
        def unix(address):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
                s.settimeout(2)
                s.connect(address)
                s.sendall(b"breach")
                return True
        attempt("abstract", lambda: unix("\\0" + abstract))
        attempt("unix path", lambda: unix(socket_path))
        attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).fileno())
        attempt("packet", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3).fileno())
        """,
    "signals no host process": """
        import signal
        attempt("signal 0", lambda: os.kill(pid, 0) is None)
        attempt("stop", lambda: os.kill(pid, signal.SIGSTOP) is None)
        attempt("term", lambda: os.kill(pid, signal.SIGTERM) is None)
        attempt("pidfd", lambda: signal.pidfd_send_signal(os.pidfd_open(pid), signal.SIGTERM) is None)
        """,
    "traces no host process": """
        libc.ptrace.restype = ctypes.c_long
        attempt("attach", lambda: libc.ptrace(16, pid, 0, 0))
        attempt("seize", lambda: libc.ptrace(0x4206, pid, 0, 0))
        attempt("memory", lambda: open(f"/proc/{pid}/mem", "rb").fileno())
        attempt("maps", lambda: open(f"/proc/{pid}/maps").read(10) or None)
        class Iovec(ctypes.Structure):
            _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
        buffer = ctypes.create_string_buffer(8)
        local, remote = Iovec(ctypes.addressof(buffer), 8), Iovec(0x400000, 8)
        attempt("vm_readv", lambda: libc.process_vm_readv(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0))
        attempt("fds", lambda: os.listdir(f"/proc/{pid}/fd") or None)
        """,
    "changes no host process": """
        import resource
        attempt("prlimit", lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, (64, 64)))
        attempt("priority", lambda: os.setpriority(os.PRIO_PROCESS, pid, 19) is None)
        attempt("affinity", lambda: os.sched_setaffinity(pid, {0}) is None)
        """,
    "has no privileges": """
        attempt("mount", lambda: libc.mount(b"none", b"/tmp", b"tmpfs", 0, None))
        attempt("chroot", lambda: os.chroot("/tmp") is None)
        attempt("mknod", lambda: os.mknod("/tmp/device", 0o600 | 0o020000, os.makedev(1, 1)) is None)
        for name, flag in {"user": 0x10000000, "mount": 0x20000, "pid": 0x20000000, "net": 0x40000000}.items():
            attempt("unshare " + name, lambda: libc.unshare(flag))
        attempt("hostname", lambda: socket.sethostname("breach-" + marker[:8]) is None)
        attempt("keyctl", lambda: libc.syscall(250, 0, -3, 1))
        attempt("bpf", lambda: libc.syscall(321, 5, 0, 0))
        attempt("io_uring", lambda: libc.syscall(425, 4, ctypes.create_string_buffer(256)))
        attempt("userfaultfd", lambda: libc.syscall(323, 0))
        attempt("perf", lambda: libc.syscall(298, ctypes.create_string_buffer(128), 0, -1, -1, 0))
        attempt("settime", lambda: libc.syscall(227, 0, ctypes.byref((ctypes.c_long * 2)(0, -1))))
        for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sysrq-trigger", "/sys/fs/cgroup/cgroup.procs", "/dev/sda", "/dev/vda"):
            attempt("open " + path, lambda: os.open(path, os.O_WRONLY))
        header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        if libc.syscall(125, header, sets) == 0 and (sets[0] or sets[1] or sets[3] or sets[4]):
            breach("capabilities", list(sets))
        if libc.prctl(39, 0, 0, 0, 0) != 1:
            breach("new privileges are possible")
        """,
    "holds no socket or file of the host": """
        for fd in listing("/proc/self/fd"):
            try:
                target = os.readlink("/proc/self/fd/" + fd)
            except OSError:
                continue
            if target.startswith(("/work", "/home", "/root", "/etc", folder)) or (int(fd) > 2 and target.startswith("socket:")):
                breach("descriptor", fd, target)
        import stat
        for fd in range(3, 1024):
            try:
                if stat.S_ISSOCK(os.fstat(fd).st_mode):
                    breach("socket", fd)
            except OSError:
                pass
        """,
}

PLANT = """
    import os, socket
    for folder in ("/tmp", "/dev/shm", "/var/tmp", "/run", os.getcwd(), os.path.expanduser("~")):
        try:
            open(os.path.join(folder, "left_" + marker), "w").write(secret)
        except OSError:
            pass
    key = int(marker[:7], 16)
    libc.shmget(key, 4096, 0o1666)
    libc.semget(key, 1, 0o1666)
    libc.msgget(key, 0o1666)
    for make in (
        lambda: libc.mq_open(("/" + marker).encode(), os.O_CREAT | os.O_RDWR, 0o666, None),
        lambda: libc.syscall(248, b"user", marker.encode(), b"x", 1, -4),
        lambda: os.memfd_create(marker),
    ):
        try:
            make()
        except OSError:
            pass
    try:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind("\\0left_" + marker)
        listener.listen()
    except OSError:
        pass
    try:
        child = os.fork()
    except OSError:
        child = 1
    if child == 0:
        try:
            os.setsid()
        except PermissionError:
            pass
        if os.fork() == 0:
            libc.prctl(15, ("left" + marker[:8]).encode(), 0, 0, 0)
            import signal, time
            for number in range(1, 64):
                try:
                    signal.signal(number, signal.SIG_IGN)
                except (OSError, ValueError):
                    pass
            time.sleep(600)
        os._exit(0)
    print("planted")
    """
"""Leaves something in every place that could outlive a submission."""

FIND = """
    for folder in ("/tmp", "/dev/shm", "/var/tmp", "/run", os.getcwd(), os.path.expanduser("~")):
        if os.path.exists(os.path.join(folder, "left_" + marker)):
            breach("file", folder)
    key = int(marker[:7], 16)
    attempt("shared memory", lambda: libc.shmget(key, 4096, 0))
    attempt("semaphore", lambda: libc.semget(key, 1, 0))
    attempt("message queue", lambda: libc.msgget(key, 0))
    attempt("posix queue", lambda: libc.mq_open(("/" + marker).encode(), os.O_RDWR))
    attempt("keyring", lambda: libc.syscall(249, b"user", marker.encode(), None, 0))
    def reach():
        with socket.socket(socket.AF_UNIX) as s:
            s.connect("\\0left_" + marker)
            return True
    attempt("abstract socket", reach)
    for entry in listing("/proc"):
        if entry.isdigit():
            try:
                if open(f"/proc/{entry}/comm").read().strip() == "left" + marker[:8]:
                    breach("process", entry)
            except OSError:
                pass
    print("looked")
    """
"""Looks for what PLANT left."""


def probe_source(body: str, canary: Canary) -> str:
    """A complete program."""
    facts = {name: getattr(canary, name) for name in Canary.__slots__}
    return _PRELUDE.format(**facts) + dedent(body)
