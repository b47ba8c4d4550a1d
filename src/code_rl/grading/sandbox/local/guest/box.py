"""The guest's side of a box: commands in namespaces that live as long as their owner.

Three processes form it. The keeper enters the root and waits. The init, PID 1 of the box, takes
requests from the host and never runs foreign code. Each command has a leader, PID 1 of a nested PID
namespace, with which the kernel ends all its processes.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import resource
import select
import signal
import socket
import struct
import time
from typing import Any, NoReturn

from code_rl.grading.sandbox.commands import REQUEST_BYTES, SHELL, WRITE
from code_rl.grading.sandbox.local.guest import kernel
from code_rl.grading.sandbox.local.guest.confinement import boxfs, confine, seccomp

FAILED, KEPT, READY, ENDED = "failed", "kept", "ready", "ended"
CPU, WALL, MEMORY, OUTPUT = "cpu", "wall", "memory", "output"
STOP = b"stop"
# Runtimes take this for each thread; a command that recurses deeply raises it (`ulimit -s hard`).
_STACK_BYTES = 64 << 20
_LOOK_S = 0.02
_LEADERS = 3
"""The init, the leader and the fork between them count as processes of the box's user."""
_LONGEST = 4
"""Times its wall seconds that a command may take on the clock, on a machine however busy."""
_REPORT = struct.Struct("<i")
_OPEN_FILES = 1024
_TICKS = os.sysconf("SC_CLK_TCK")
_CHUNK = 1 << 20
_FAILED_EXIT = 125
_SPECIAL = os.O_NONBLOCK | os.O_CLOEXEC


def serve(control: socket.socket, config: dict[str, Any]) -> NoReturn:
    """Run the keeper: build the root, fork the init, and end when it ends."""
    proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    wanted = confine.Confinement(confine.FULL, (), "", True, proc)
    try:
        wanted = confine.confine_zygote(
            wanted, lambda: boxfs.enter(config["readable"], config["writable"])
        )
        number = int.from_bytes(os.urandom(4), "big") % confine.UIDS
        uid = confine.FIRST_UID + number if wanted.own_uids else None
        pid = confine.fork_worker(wanted, uid)
        if pid == 0:
            _start_init(control, config)
    except OSError as error:
        _fail(control, error)
    control.send(marshal.dumps((KEPT, pid)))
    control.close()
    os.waitpid(pid, 0)
    os._exit(0)


def _start_init(control: socket.socket, config: dict[str, Any]) -> NoReturn:
    try:
        kernel.die_with_parent()
        boxfs.mount_home(config["disk_bytes"], config["writable"])
        boxfs.mount_proc()
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0, step="prctl(PR_SET_DUMPABLE)")
        _limit(resource.RLIMIT_CORE, 0)
    except OSError as error:
        _fail(control, error)
    control.send(marshal.dumps((READY,)))
    while True:
        message, ancillary, _, _ = control.recvmsg(REQUEST_BYTES, socket.CMSG_SPACE(12))
        if not message:  # the owner has ended
            os._exit(0)
        if message == STOP:  # its command ended by itself just before
            continue
        descriptors = list(memoryview(ancillary[0][2]).cast("i"))
        # From the host, which no command can reach
        request = marshal.loads(message)  # noqa: S302
        control.send(marshal.dumps((ENDED, *_run(control, request, descriptors))))


def _fail(control: socket.socket, error: OSError) -> NoReturn:
    step = getattr(error, "step", "") or str(error)
    control.send(marshal.dumps((FAILED, step, error.errno or 0)))
    os._exit(1)


def _run(
    control: socket.socket, request: dict[str, Any], descriptors: list[int]
) -> tuple[int, float, float, int, str]:
    """Run one request. Return exit code, CPU and wall seconds, peak bytes, and the limit that ended
    it ("" if none)."""
    reader, writer = os.pipe()
    pid, pidfd = kernel.clone3(kernel.NEWPID | kernel.NEWNS)
    if pid == 0:
        os.close(reader)
        control.close()
        _lead(request, descriptors, writer)
    for fd in (writer, *descriptors):
        os.close(fd)
    watch = _Watch(control, request)
    limit = watch.until_end(pid, pidfd)
    _, status, usage = os.wait4(pid, 0)
    report = os.read(reader, _REPORT.size)
    os.close(reader)
    os.close(pidfd)
    code = os.waitstatus_to_exitcode(status)
    if not limit and report:
        (code,) = _REPORT.unpack(report)
    cpu_s = max(usage.ru_utime + usage.ru_stime, watch.cpu_s)
    peak = max(usage.ru_maxrss << 10, watch.peak_bytes)
    if not limit and cpu_s > request["cpu_s"]:
        limit = CPU
    return code, cpu_s, watch.wall_s, peak, limit


class _Watch:
    """Looks at a running command until it ends, or ends it at a limit.

    Wall time does not count while the command waits for a processor: between two looks, at the
    second of which a thread could run, only the CPU time counts.
    """

    def __init__(self, control: socket.socket, request: dict[str, Any]) -> None:
        self._control, self._request = control, request
        self._began = self._looked = time.monotonic()
        self.cpu_s, self.wall_s, self.peak_bytes = 0.0, 0.0, 0

    def until_end(self, pid: int, pidfd: int) -> str:
        """Return the limit at which the leader `pid` was killed, or "" if it ended by itself."""
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.register(self._control, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll(_LOOK_S * 1000)}
            if pidfd in ready:
                self._pass(0.0, runnable=False)
                return ""
            limit = self._look()
            if self._control.fileno() in ready:
                if not self._control.recv(REQUEST_BYTES):
                    os._exit(0)
                limit = OUTPUT
            if limit:
                os.kill(pid, signal.SIGKILL)
                return limit

    def _look(self) -> str:
        request, ticks, memory, runnable = self._request, 0, 0, False
        for name in os.listdir("/proc"):
            if name.isdigit() and name != "1":
                used, held, can_run = _usage(name)
                ticks, memory, runnable = ticks + used, memory + held, runnable or can_run
        self._pass(ticks / _TICKS - self.cpu_s, runnable)
        self.cpu_s = max(self.cpu_s, ticks / _TICKS)
        self.peak_bytes = max(self.peak_bytes, memory)
        if self.cpu_s > request["cpu_s"]:
            return CPU
        if memory > request["memory_bytes"]:
            return MEMORY
        # A command can hide its CPU time, and so seem to wait for a processor.
        longest_s = _LONGEST * request["wall_s"]
        late = self.wall_s > request["wall_s"] or self._looked - self._began > longest_s
        return WALL if late else ""

    def _pass(self, cpu_s: float, runnable: bool) -> None:
        """Count the time since the last look, in which `cpu_s` of CPU time were used."""
        now = time.monotonic()
        passed, self._looked = now - self._looked, now
        self.wall_s += min(max(cpu_s, 0.0), passed) if runnable else passed


def _usage(pid: str) -> tuple[int, int, bool]:
    """Return clock ticks (with those of reaped children), private and shared memory in bytes, and
    whether a thread has a processor or waits for one."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        with open(f"/proc/{pid}/status", "rb") as file:
            status = file.read()
        can_run = any(_can_run(pid, thread) for thread in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0, 0, False
    held = 0
    for kind in (b"\nRssAnon:", b"\nRssShmem:"):
        words = status.partition(kind)[2].split(maxsplit=1)
        held += int(words[0]) << 10 if words else 0
    return sum(map(int, fields[11:15])), held, can_run


def _can_run(pid: str, thread: str) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0] == b"R"
    return False


def _lead(request: dict[str, Any], descriptors: list[int], report: int) -> NoReturn:
    """Confine this process, PID 1 of the command's namespace; run the command; report its end."""
    try:
        kernel.die_with_parent()
        # Then its command cannot signal it: the kernel drops signals to PID 1 that have no handler.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        boxfs.mount_for_command(request["disk_bytes"], request["home_read_only"])
        kernel.drop_capabilities()
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0, step="prctl(PR_SET_DUMPABLE)")
        _FILTERS[request["home_read_only"]].install()
        pid = kernel.fork()
        if pid == 0:
            os.close(report)
            _become_command(request, descriptors)
        for fd in descriptors:
            os.close(fd)
        status = 0
        while True:
            ended, status = os.wait()
            if ended == pid:
                break
        os.write(report, _REPORT.pack(os.waitstatus_to_exitcode(status)))
        os._exit(0)
    finally:
        os._exit(_FAILED_EXIT)


def _become_command(request: dict[str, Any], descriptors: list[int]) -> NoReturn:
    try:
        os.setsid()
        for target, fd in enumerate(descriptors):
            os.dup2(fd, target)
        os.closerange(len(descriptors), 256)
        _limit_command(request)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.umask(0o022)
        kind, text = request["kind"], request["text"]
        if kind == SHELL:
            os.execve("/bin/sh", ["sh", "-c", text], request["environment"])  # noqa: S606
        (_write if kind == WRITE else _read)(text)
        os._exit(0)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.write(2, (error.strerror or str(error)).encode())
    finally:
        os._exit(_FAILED_EXIT)


def _limit_command(request: dict[str, Any]) -> None:
    cpu_s = int(request["cpu_s"]) + 2
    _limit(resource.RLIMIT_CPU, cpu_s)
    _limit(resource.RLIMIT_NPROC, request["processes"] + _LEADERS)
    _limit(resource.RLIMIT_FSIZE, request["disk_bytes"])
    _limit(resource.RLIMIT_STACK, request["memory_bytes"])
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    resource.setrlimit(resource.RLIMIT_STACK, (min(_STACK_BYTES, hard), hard))
    _limit(resource.RLIMIT_NOFILE, _OPEN_FILES)
    _limit(resource.RLIMIT_MEMLOCK, 0)
    _limit(resource.RLIMIT_MSGQUEUE, 0)


def _limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def _write(path: str) -> None:
    """Copy standard input to a file. A command's links lead only where the command itself can
    write, because this process has no more rights."""
    if os.path.dirname(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    _copy(0, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o755))


def _read(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | _SPECIAL)
    _copy(fd, 1)


def _copy(source: int, target: int) -> None:
    while data := os.read(source, _CHUNK):
        view = memoryview(data)
        while view:
            view = view[os.write(target, view) :]


_FILTERS = {
    timed: kernel.Filter(seccomp.box_filter(os.uname().machine, timed)) for timed in (False, True)
}
