"""System calls that Python does not wrap, by number or through libc. Each failure is an OSError
that names its step."""

from __future__ import annotations

import ctypes
import os
import signal
import socket

from code_rl.grading.sandbox.local.guest import wire

CLONE_PIDFD, CLONE_PARENT = 0x1000, 0x8000
NEWNS, NEWCGROUP, NEWUTS, NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_NOATIME, MS_BIND, MS_REC, MS_PRIVATE = 32, 1024, 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_SET_SECCOMP = 1, 4, 8, 22
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
CAP_DAC_READ_SEARCH = 2
_CLONE3 = 435
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_FD_CLOEXEC, _FSCONFIG_SET_STRING, _FSCONFIG_CREATE = 1, 1, 6
_WAITID = {"x86_64": 247, "aarch64": 95}[os.uname().machine]
_FSTATAT = {"x86_64": 262, "aarch64": 79}[os.uname().machine]
_HERE, _NO_FOLLOW, _STAT_BYTES = -100, 0x100, 256
_MONOTONIC = 1
STACK_BYTES = 1 << 30
"""The most of a program's main stack."""
_NO_TIME = bytes(wire.ACCOUNT_BYTES - wire.COMPILE_AT)
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

_libc = ctypes.CDLL(None, use_errno=True)
_held = ctypes.PyDLL(None, use_errno=True)
"""Calls that return twice, during which no other thread may run."""
_clock_gettime, _syscall, _memcmp = _libc.clock_gettime, _libc.syscall, _libc.memcmp
_sigtimedwait, _fork = _libc.sigtimedwait, _held.fork
"""Bound once, since the steps between two tests should touch few objects."""


class KernelError(OSError):
    """The kernel refused a step of the isolation, named by `step`."""

    def __init__(self, step: str, number: int) -> None:
        """`step` names the refused step in the message; `number` is its errno."""
        super().__init__(number, f"{step}: {os.strerror(number)}")
        self.step = step


class _CloneArgs(ctypes.Structure):
    """The arguments of clone3(2)."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "flags",
            "pidfd",
            "child_tid",
            "parent_tid",
            "exit_signal",
            "stack",
            "stack_size",
            "tls",
            "set_tid",
            "set_tid_size",
            "cgroup",
        )
    ]


class _CapHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("program", ctypes.c_void_p)]


_CAP_HEADER = ctypes.byref(_CapHeader(0x20080522, 0))
_NO_CAPABILITIES = (ctypes.c_uint32 * 6)()
_libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
_libc.capset.argtypes = (ctypes.c_void_p, ctypes.c_void_p)


def _check(result: int, step: str) -> int:
    """Return the result of a call, or raise KernelError with errno and `step` if it is negative."""
    if result < 0:
        raise KernelError(step, ctypes.get_errno())
    return result


def fork() -> int:
    """Do fork(2) without the interpreter's fork handlers. Return the child's id, and 0 in the
    child. Raises KernelError. This process has one thread, and the handlers of the standard modules
    are for a program's own forks."""
    return _check(_fork(), "fork")


def clone3(flags: int) -> tuple[int, int]:
    """Fork into the namespaces of `flags`. Return (pid, pidfd) in the parent, which closes the
    pidfd, and (0, -1) in the child. Raises KernelError.

    With CLONE_PARENT the child becomes a sibling: a child of this process's parent.
    """
    pidfd = ctypes.c_int(-1)
    end = 0 if flags & CLONE_PARENT else signal.SIGCHLD
    arguments = _CloneArgs(
        flags=flags | CLONE_PIDFD, pidfd=ctypes.addressof(pidfd), exit_signal=int(end)
    )
    pid = _check(
        _held.syscall(_CLONE3, ctypes.byref(arguments), ctypes.sizeof(arguments)),
        f"clone3(flags={flags:#x})",
    )
    return (pid, pidfd.value) if pid else (0, -1)


class Clone:
    """Forks repeatedly into the namespaces of `flags`; its arguments are made once."""

    def __init__(self, flags: int) -> None:
        """Lay out the arguments of clone3(2), so that `fork` makes no objects."""
        self._arguments = _CloneArgs(flags=flags, exit_signal=int(signal.SIGCHLD))
        self._reference, self._size = ctypes.byref(self._arguments), ctypes.sizeof(self._arguments)

    def fork(self) -> int:
        """Fork into the namespaces, without fork handlers. Return the child's id, and 0 in the
        child. Raises KernelError."""
        return _check(_held.syscall(_CLONE3, self._reference, self._size), "clone3")


def unshare(flags: int, step: str) -> None:
    """Move this process into new namespaces of the kinds in `flags`, for good; with NEWPID, its
    later children. Raises KernelError that names `step`."""
    _check(_libc.unshare(flags), step)


def mount(
    source: str | None, target: str, kind: str | None, flags: int, data: str | None = None
) -> None:
    """Call mount(2), with None for a null pointer. Raises KernelError that names source and
    target."""
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    _check(
        _libc.mount(*encoded[:3], ctypes.c_ulong(flags), encoded[3]), f"mount({source} on {target})"
    )


def bind_read_only(source: str, target: str, devices: bool = False) -> None:
    """Mount `source` at `target`, which exists, read-only, without set-uid and, by default, without
    devices. Mounts below `source` appear, too, but keep their own flags. Raises KernelError."""
    mount(source, target, None, MS_BIND | MS_REC)
    # In a user namespace the remount must keep every flag of the source's mount.
    kept = os.statvfs(target).f_flag & (MS_NODEV | MS_NOEXEC)
    kept |= 0 if devices else MS_NODEV
    mount(None, target, None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | kept)


def pivot_into(root: str) -> None:
    """Make the mount at `root` the root directory of this mount namespace, drop the old one, and go
    to it. Raises KernelError."""
    os.chdir(root)
    number = _PIVOT_ROOT[os.uname().machine]
    _check(_libc.syscall(number, b".", b"."), "pivot_root")
    _check(_libc.umount2(b".", MNT_DETACH), "umount2(old root)")
    os.chdir("/")


def detached_proc() -> int:
    """Return a descriptor of a /proc of this process's PID namespace, with processes only, that is
    not mounted anywhere; the caller closes it. Needs CAP_SYS_ADMIN. Raises KernelError."""
    context = tree = -1
    try:
        context = raw_syscall("fsopen(proc)", _FSOPEN, b"proc", _FD_CLOEXEC)
        raw_syscall(
            "fsconfig(subset=pid)", _FSCONFIG, context, _FSCONFIG_SET_STRING, b"subset", b"pid", 0
        )
        raw_syscall("fsconfig(create)", _FSCONFIG, context, _FSCONFIG_CREATE, None, None, 0)
        tree = raw_syscall(
            "fsmount(proc)", _FSMOUNT, context, _FD_CLOEXEC, MS_NOSUID | MS_NODEV | MS_NOEXEC
        )
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=tree)
    finally:
        for fd in (context, tree):
            if fd >= 0:
                os.close(fd)


def prctl(option: int, a: int = 0, b: int = 0, step: str = "prctl") -> None:
    """Call prctl(2) with up to two arguments. Raises KernelError that names `step`."""
    _check(_libc.prctl(option, ctypes.c_ulong(a), ctypes.c_ulong(b), 0, 0), f"{step} ({option})")


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends. A later change of its user undoes
    this, and a parent that has ended already does not count. Raises KernelError."""
    prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))


def drop_capabilities() -> None:
    """Give up every capability of this thread. With no_new_privs and exec refused, nothing can
    restore them. Raises KernelError."""
    _check(_libc.capset(_CAP_HEADER, _NO_CAPABILITIES), "capset")


def keep_capabilities(*numbers: int) -> None:
    """Give up every capability but these numbers, which stay effective and permitted but are not
    inheritable. Raises KernelError."""
    sets = [0] * 6  # effective, permitted, inheritable; then the high halves of each
    for number in numbers:
        half, bit = divmod(number, 32)
        sets[3 * half] |= 1 << bit
        sets[3 * half + 1] |= 1 << bit
    _check(_libc.capset(_CAP_HEADER, (ctypes.c_uint32 * 6)(*sets)), "capset")


class ExitRecord:
    """A process's end, written by the kernel into one buffer that is sent unchanged (`wire`).

    After a fork each touched object costs a copied page, so the code between tests makes few
    objects.
    """

    def __init__(self) -> None:
        """Lay out the buffer of `wire.ACCOUNT_BYTES`. All views point into it, so it must not be
        replaced."""
        self.view = memoryview(ctypes.create_string_buffer(wire.ACCOUNT_BYTES)).cast("B")
        self._pid, self._status = (
            ctypes.c_int.from_buffer(self.view, wire.INFO_AT + at) for at in (16, 24)
        )
        self._began_s = (ctypes.c_long * 2).from_buffer(self.view, wire.BEGAN_AT)
        address = ctypes.addressof(self._pid) - wire.INFO_AT - 16
        self._info, self._usage, self._began, self._ended = (
            ctypes.c_void_p(address + at)
            for at in (wire.INFO_AT, wire.USAGE_AT, wire.BEGAN_AT, wire.ENDED_AT)
        )
        self._compiled = False

    def begin(self) -> None:
        """Record the start time of a test, now, by the monotonic clock."""
        _clock_gettime(_MONOTONIC, self._began)

    def end(self) -> None:
        """Record the end time of a test, now, by the monotonic clock."""
        _clock_gettime(_MONOTONIC, self._ended)

    @property
    def began_s(self) -> float:
        """The recorded start, in seconds of `time.monotonic`; `leave_out` moves it."""
        return float(self._began_s[0] + self._began_s[1] * 1e-9)

    def leave_out(self, seconds: float) -> None:
        """Leave seconds out of the recorded time, by moving its start forward."""
        self._began_s[0] += int(seconds)
        self._began_s[1] += int(seconds % 1 * 1e9)

    def note_compiled(self) -> None:
        """Record the CPU time that this process has used so far as compile time; the next result
        has it."""
        _libc.getrusage(0, self._usage)
        self.view[wire.COMPILE_AT :] = self.view[wire.USAGE_AT :][
            : wire.ACCOUNT_BYTES - wire.COMPILE_AT
        ]
        self._compiled = True

    def wait(self, kind: int, number: int, options: int) -> bool | None:
        """Call waitid(2) with usage, which fills the buffer. Return True if a process has ended,
        False if not yet, None if there is no process. Unless `options` has WNOWAIT, the process is
        reaped."""
        if _syscall(_WAITID, kind, number, self._info, options, self._usage) < 0:
            return None
        return self._pid.value != 0

    def exit_code(self) -> int:
        """Return the exit status of the last process, or the number of the signal that ended it,
        which is not marked as one (`wire.unpack` tells them apart)."""
        return self._status.value

    def send(self, channel: socket.socket, kind: int, cause: int, tainted: bool) -> None:
        """Send the buffer on `channel` as a message of a `kind` with the `cause` of `wire`; it may
        be used again afterwards. The compile time is sent only with the first result. Raises
        OSError."""
        self.view[0], self.view[1], self.view[2] = kind, cause, tainted
        channel.send(self.view)
        if self._compiled and kind == wire.RESULT:
            self.view[wire.COMPILE_AT :] = _NO_TIME
            self._compiled = False


class FileState:
    """What the kernel dates and counts of the working directory and of a file in it. Unlike the
    time of the last change (ctime), a program can set the other times."""

    def __init__(self, name: str) -> None:
        """Prepare buffers for `name`, a file of the working directory; `note` looks at it first."""
        self._name = name.encode()
        self._both = 2 * _STAT_BYTES
        self._now, self._noted = (ctypes.create_string_buffer(self._both) for _ in range(2))
        address = ctypes.addressof(self._now)
        self._here, self._file = (ctypes.c_void_p(at) for at in (address, address + _STAT_BYTES))

    def note(self) -> None:
        """Remember the present state, with which `changed` compares. A missing file is no error."""
        self.changed()
        self._noted.raw = self._now.raw

    def changed(self) -> bool:
        """Return True if anything has changed since `note`, or cannot be read. It reads both states
        anew. A change within one tick of the kernel's clock may not show."""
        here = _syscall(_FSTATAT, _HERE, b".", self._here, 0)
        file = _syscall(_FSTATAT, _HERE, self._name, self._file, _NO_FOLLOW)
        same = _memcmp(self._now, self._noted, self._both) == 0
        return bool(here or file or not same)


class ChildSignal:
    """Waits up to `seconds` for a child's end. SIGCHLD must be blocked."""

    def __init__(self, seconds: float) -> None:
        """Prepare the call of `wait`, which then makes no objects."""
        self._wanted = ctypes.create_string_buffer(128)
        _libc.sigemptyset(self._wanted)
        _libc.sigaddset(self._wanted, int(signal.SIGCHLD))
        self._timeout = (ctypes.c_long * 2)(int(seconds), int(seconds % 1 * 1e9))

    def wait(self) -> None:
        """Return when a child has ended, or after `seconds`. The signal is consumed; the child is
        not reaped."""
        _sigtimedwait(self._wanted, None, self._timeout)


class Filter:
    """A seccomp filter, laid out in memory once for all its installations."""

    def __init__(self, program: bytes) -> None:
        """Copy a BPF program into memory that lives as long as this object. Nothing is
        installed."""
        self._buffer = ctypes.create_string_buffer(program, len(program))
        self._description = _Filter(len(program) // 8, ctypes.cast(self._buffer, ctypes.c_void_p))
        self._reference = ctypes.byref(self._description)

    def install(self) -> None:
        """Install the filter on this process and its later children, for good. Needs no_new_privs
        or CAP_SYS_ADMIN. Raises KernelError."""
        _check(_libc.prctl(PR_SET_SECCOMP, 2, self._reference, 0, 0), "prctl(PR_SET_SECCOMP)")


def end_after_cpu(seconds: float) -> None:
    """End this process by SIGPROF after `seconds` of processor time; 0 undoes this. No Python code
    runs then, and the exit code is the signal's number."""
    handler = ctypes.cast(_libc._exit, ctypes.c_void_p) if seconds else None
    _libc.signal(int(signal.SIGPROF), handler)
    signal.setitimer(signal.ITIMER_PROF, seconds)


def raw_syscall(step: str, number: int, *arguments: object) -> int:
    """Call syscall(2) with a number of this architecture and return its result. Raises KernelError
    that names `step`."""
    return _check(_libc.syscall(number, *arguments), step)


def default_thread_stack(size: int) -> None:
    """Set the default stack size of new threads, in bytes, which otherwise is the main stack's
    limit. It does nothing if the C library has no such call."""
    attributes = ctypes.create_string_buffer(256)
    if _libc.pthread_attr_init(attributes) == 0:
        _libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(size))
        if hasattr(_libc, "pthread_setattr_default_np"):
            _libc.pthread_setattr_default_np(attributes)


def trim_heap() -> None:
    """Return free pages of the C heap to the kernel, so that no fork copies their page table
    entries. It does nothing if the C library has no such call."""
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)
