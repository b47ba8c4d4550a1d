"""The host's handle on a zygote: it starts one with an empty environment, requests workers, and
ends it."""

from __future__ import annotations

import array
import contextlib
import importlib.util
import marshal
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from code_rl.grading.sandbox.local.guest import files, wire
from code_rl.grading.sandbox.local.guest.confinement import confine
from code_rl.grading.sandbox.local.guest.zygote import READY, REFUSED, SPAWNED
from code_rl.util.errors import ConfigError, IsolationError, SandboxError

PRELOADED_PACKAGES = ("numpy", "sortedcontainers")
SHOWN_PACKAGES = (
    *PRELOADED_PACKAGES,
    "scipy",
    "pandas",
    "networkx",
    "sympy",
    "mpmath",
    "more_itertools",
    "dateutil",
    "pytz",
    "six",
)
"""Packages that programs may import if installed here."""
_ENVIRONMENT = {
    "LD_BIND_NOW": "1",
    "PATH": "/usr/bin:/bin",
    "HOME": "/tmp",  # noqa: S108
    "SQLITE_TMPDIR": ".",  # which would use /tmp, where programs cannot write at every level
    "LOGNAME": "sandbox",
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONUTF8": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
ROOT = str(Path(wire.__file__).resolve().parents[5])
_BOOT = """
import ctypes, marshal, os, socket, sys
first, libc = len(sys.argv) == 2, ctypes.CDLL(None)
if first and libc.personality(libc.personality(0xFFFFFFFF) | 0x0040000) >= 0:
    os.execv("/proc/self/exe", [*sys.orig_argv, "again"])
control = socket.socket(fileno=int(sys.argv[1]))
config = marshal.loads(control.recv(1 << 16))
del sys.argv[1:]
sys.path.insert(0, config["root"])
guest = __import__("code_rl.grading.sandbox.local.guest", fromlist=[config["guest"]])
getattr(guest, config["guest"]).main(control, config)
"""
# ADDR_NO_RANDOMIZE applies from the next exec on. Sets of objects are ordered by address, and that
# order must be the same in every run.
"""The command line, visible to every process of the sandbox, reveals nothing of this machine."""
T = TypeVar("T")
_START_TIMEOUT_S = 60.0
_SPAWN_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """A newly forked worker: its process id, a pidfd, and the socket on which it receives
    submissions."""

    pid: int
    pidfd: int
    control: socket.socket
    contained: bool
    """True if all its processes end with it."""

    def end(self) -> None:
        """End the worker and all that it runs, without waiting; release its descriptors.
        Idempotent.

        A worker whose processes are not contained ends them itself once its socket is closed.
        """
        if self.control.fileno() < 0:
            return
        if self.contained:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        os.close(self.pidfd)
        self.control.close()


def strongest(isolation: str, start: Callable[[str], T], otherwise: str = "") -> T:
    """Return `start(level)` for the level `isolation`; `auto` is full, else landlock, never none.
    Raises IsolationError with the reasons of both levels, and what to do `otherwise`; other
    exceptions of `start` pass."""
    if isolation != "auto":
        return start(isolation)
    refusals = []
    for level in (confine.FULL, confine.LANDLOCK):
        try:
            return start(level)
        except IsolationError as error:
            refusals.append(str(error))
    raise IsolationError("; ".join([*refusals, *filter(None, [otherwise])]))


class Zygote:
    """One zygote at one isolation level. The constructor returns when it is ready to fork
    workers."""

    def __init__(self, level: str, scientific: bool, counted: bool) -> None:
        """Start the process and wait for it, up to a minute. With `scientific` it imports NumPy and
        the like before it forks. `counted` means that a control group limits a worker's number of
        processes.

        Raises ConfigError if limits are too low, IsolationError if the level is not available,
        SandboxError if the process does not start.
        """
        self._control, theirs = wire.pair()
        self.level = level
        self._scratch = make_scratch(level)
        packages = installed_packages()
        preload = [
            name
            for name in PRELOADED_PACKAGES
            if scientific and any(name == shown for shown, _ in packages)
        ]
        try:
            self.process = spawn(theirs)
            theirs.close()
            self._control.settimeout(_START_TIMEOUT_S)
            self._control.send(
                marshal.dumps(
                    {
                        "guest": "boot",
                        "level": level,
                        "packages": packages,
                        "preload": preload,
                        "scratch": self._scratch,
                        "counted": counted,
                        "root": ROOT,
                    }
                )
            )
            answer = self._control.recv(1 << 16)
        except OSError as error:
            self._control.close()
            raise SandboxError(f"the sandbox's first process did not start: {error}") from error
        finally:
            theirs.close()
        # Sent before any program ran
        kind, *rest = marshal.loads(answer) if answer else ("",)  # noqa: S302
        if kind != READY:
            self.close()
            self.wait(_SPAWN_TIMEOUT_S)
            if not answer:
                raise SandboxError(
                    "the sandbox's first process ended while starting; its message is on stderr"
                )
            raise (
                ConfigError(rest[0]) if kind == REFUSED else IsolationError(_explain(level, *rest))
            )
        self._control.settimeout(_SPAWN_TIMEOUT_S)

    def spawn_worker(self) -> WorkerProcess:
        """Fork a worker, waiting up to 30 s for it; the caller ends it. Raises SandboxError if the
        zygote cannot. Calls must not overlap."""
        ours, theirs = wire.pair()
        try:
            fds = array.array("i", [theirs.fileno()])
            self._control.sendmsg([b"spawn"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
            answer = self._control.recv(1 << 12)
            if not answer:
                raise ConnectionError("the process that forks them has ended")
            kind, *rest = marshal.loads(answer)  # noqa: S302 - the zygote never meets a program
            if kind != SPAWNED:
                raise OSError(rest[0])
            pidfd = os.pidfd_open(rest[0])
        except OSError as error:
            ours.close()
            raise SandboxError(f"no worker could be forked: {error}") from error
        finally:
            theirs.close()
        ours.setblocking(False)
        return WorkerProcess(rest[0], pidfd, ours, not self._scratch)

    def alive(self) -> bool:
        """Return True while the process runs. It reaps one that has ended."""
        return self.process.poll() is None

    def close(self) -> None:
        """Tell the zygote to end, without waiting; its workers end with it. Idempotent. `wait` then
        reaps it."""
        self._control.close()

    def wait(self, timeout_s: float) -> None:
        """Reap the process if it ends within `timeout_s`, and remove its directory; otherwise do
        nothing. Call `close` first."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout_s)
            if self._scratch:
                files.remove_directory(self._scratch)


def installed_packages() -> list[tuple[str, str]]:
    """Return (name under the packages directory, path here) of each package of `SHOWN_PACKAGES`
    that is installed in this interpreter, with its `.libs` directory. Nothing is imported."""
    found: list[tuple[str, str]] = []
    for name in SHOWN_PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            continue
        origin = Path(spec.origin)
        path = origin.parent if origin.name == "__init__.py" else origin
        found.append((path.name, str(path)))
        libraries = path.with_name(f"{name}.libs")
        if libraries.is_dir():
            found.append((libraries.name, str(libraries)))
    return found


def make_scratch(level: str) -> str:
    """Return a new directory for the files of a level without a private /tmp, which the caller
    removes; "" for `full`. Raises OSError."""
    return "" if level == confine.FULL else tempfile.mkdtemp(prefix="code-rl-")


def spawn(control: socket.socket) -> subprocess.Popen[bytes]:
    """Start an interpreter that gets its configuration, and the module of `guest` that it runs, on
    this channel, whose end the caller may then close. It gets none of this process's environment
    variables. Raises OSError."""
    # Files, like those of programs: the interpreter remembers whether its standard streams can
    # seek.
    reader, writer = os.memfd_create("stdin"), os.memfd_create("stdout")
    try:
        return subprocess.Popen(
            ["python", "-S", "-s", "-P", "-B", "-c", _BOOT, str(control.fileno())],
            executable=sys.executable,
            stdin=reader,
            stdout=writer,
            pass_fds=(control.fileno(),),
            env={**_ENVIRONMENT, "PYTHONHOME": f"{sys.base_prefix}:{sys.base_exec_prefix}"},
            cwd="/",
            start_new_session=True,
        )
    finally:
        os.close(reader)
        os.close(writer)


def _explain(level: str, step: str, number: int) -> str:
    """Return one line on why an isolation level is not available, with the remedy."""
    remedy = (
        "see that sysctl user.max_user_namespaces is not 0, kernel.unprivileged_userns_clone is "
        "not 0 and kernel.apparmor_restrict_unprivileged_userns is not 1; in a container allow "
        "user namespaces and mounts (docker: --security-opt seccomp=unconfined --security-opt "
        "apparmor=unconfined --security-opt systempaths=unconfined); or use isolation=landlock"
        if level == confine.FULL
        else "it needs Linux 5.13 or newer with Landlock in the kernel's lsm= list"
    )
    return (
        f"isolation={level} is not available: {step} was refused ({os.strerror(number)}); {remedy}"
    )
