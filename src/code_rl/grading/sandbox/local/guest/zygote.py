"""The process that all workers are forked from: one interpreter, confined and warm, without threads
or state.

The host starts it with an empty environment. It reports whether its isolation is available, then
forks a worker for each request, which carries the worker's end of a channel. It ends when the
host's end of its own channel closes.
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import importlib
import marshal
import os
import resource
import signal
import socket
import sys
from typing import Any, NoReturn

from code_rl.grading.sandbox.local.guest import files, kernel, testrun, warmup, worker
from code_rl.grading.sandbox.local.guest.confinement import confine, rootfs

_GRACE_S = 2
READY, FAILED, REFUSED, SPAWNED = "ready", "failed", "refused", "spawned"
_NEEDED_LIMITS = (
    (resource.RLIMIT_AS, 3 << 30, "memory as address space (ulimit -v)"),
    (resource.RLIMIT_FSIZE, 256 << 20, "the size of a file (ulimit -f)"),
    (resource.RLIMIT_NOFILE, 256, "open files (ulimit -n)"),
)
"""(limit, what a test with default limits needs, name)"""


def serve(control: socket.socket, config: dict[str, Any]) -> NoReturn:
    """Run the zygote whose channel to the host is `control`, and never return. It tells the host
    READY once the isolation was tried and the interpreter is warm, or REFUSED or FAILED with the
    reason; then it forks workers."""
    control = socket.socket(fileno=_reserve_descriptors(control.detach()))
    in_the_way = _lift_limits()
    if in_the_way:
        control.send(marshal.dumps((REFUSED, in_the_way)))
        os._exit(1)
    proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    wanted = confine.Confinement(
        config["level"], tuple(config["packages"]), config["scratch"], config["counted"], proc
    )
    statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)  # /proc is unreachable later
    try:
        wanted = confine.confine_zygote(wanted)
        _trial(wanted)
    except OSError as error:
        step = getattr(error, "step", "") or str(error)
        _tell(control, wanted, FAILED, step, error.errno or 0)
        os._exit(1)
    _prepare_interpreter(wanted, config["preload"])
    # Bytes of address space in use before a test's program needs any.
    base_bytes = int(os.pread(statm, 100, 0).split()[0]) * resource.getpagesize()
    os.close(statm)
    _tell(control, wanted, READY)
    _serve(control, wanted, base_bytes)


def _lift_limits() -> str:
    """Lift inherited hard limits (`ulimit`) of this process where allowed. Return a message about
    the first one that tests would exceed, or ""."""
    for kind, needed, name in _NEEDED_LIMITS:
        soft, hard = resource.getrlimit(kind)
        if hard == resource.RLIM_INFINITY:
            continue
        try:
            # The kernel has no infinity for open files.
            lifted = max(hard, needed) if kind == resource.RLIMIT_NOFILE else resource.RLIM_INFINITY
            resource.setrlimit(kind, (soft, lifted))
        except (ValueError, OSError):
            if hard < needed:
                return (
                    f"the limit of {name} is {hard} here, and the embedded sandbox needs {needed}: "
                    "raise it, or use another executor"
                )
    return ""


def _reserve_descriptors(control_fd: int) -> int:
    """Occupy the descriptor numbers of tests, so that the zygote never uses them. Return the new
    number of the channel, which stays open."""
    while control_fd in testrun.RESERVED:
        control_fd = os.dup(control_fd)
    for number in testrun.RESERVED:
        spare = os.open("/dev/null", os.O_RDONLY)
        if spare != number:
            os.dup2(spare, number, inheritable=False)
            if spare not in testrun.RESERVED:
                os.close(spare)
    return control_fd


def _trial(wanted: confine.Confinement) -> None:
    """Apply a worker's and a submission's confinement once, in processes that end. Raises
    KernelError with the refused step."""
    reader, writer = os.pipe()
    pid, directory = _fork_worker(wanted, 0)
    if pid == 0:
        try:
            child, _ = kernel.clone3(confine.submission_namespaces(wanted.level))
            if child == 0:
                confine.confine_submission(wanted, 1 << 20, directory, shows_proc=True).enter()
                os.write(writer, marshal.dumps((0, "")))
            else:
                os.waitpid(child, 0)
        except OSError as error:
            os.write(writer, marshal.dumps((error.errno or 1, getattr(error, "step", str(error)))))
        os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    report = os.read(reader, 4096)
    os.close(reader)
    started = (1, "starting a trial submission")
    number, step = marshal.loads(report) if report else started  # noqa: S302
    if number:
        raise kernel.KernelError(step, number)


def _fork_worker(wanted: confine.Confinement, number: int) -> tuple[int, str]:
    """Fork worker `number`. Return its process id (0 in the worker), and where its working
    directories will be if /tmp is not private, else "". Raises OSError."""
    uid = confine.FIRST_UID + (_uids + number) % confine.UIDS if wanted.own_uids else None
    directory = files.make_room(wanted.scratch, number, uid) if wanted.scratch else ""
    return confine.fork_worker(wanted, uid), directory


_uids = int.from_bytes(os.urandom(4), "big")
"""The first user id of this zygote's workers. Two sandboxes on one machine should share none."""


def _prepare_interpreter(wanted: confine.Confinement, preload: list[str]) -> None:
    """Leave the interpreter as a program expects it: its own modules, the packages of `preload`, a
    clean path, and none of our modules in `sys.modules`. Our code still runs, but imports nothing
    of ours afterwards.

    The state is the same in every run: generators are seeded, and the collector is frozen and off
    at the end.
    """
    # PYTHONHOME told an interpreter without a name where it was installed
    os.environ.pop("PYTHONHOME", None)
    ours = os.path.abspath(__file__).split("/code_rl/")[0]
    sys.path = [entry for entry in sys.path if entry and os.path.abspath(entry) != ours]
    if wanted.level == confine.FULL:
        sys.path.append(rootfs.PACKAGES)
    else:
        sys.path.append(files.link_packages(wanted.scratch, wanted.packages))
    for name in [name for name in sys.modules if name.split(".")[0] == "code_rl"]:
        del sys.modules[name]
    sys.path_importer_cache.clear()
    _add_site_builtins()
    for name in preload:
        importlib.import_module(name)
    if "numpy" in preload:
        # NumPy 2 loads it on first use, too late for seeding
        importlib.import_module("numpy.random")
    os.getloadavg = lambda: (0.0, 0.0, 0.0)  # /proc/loadavg would reveal other submissions
    kernel.default_thread_stack(testrun.THREAD_STACK)
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    stack = kernel.STACK_BYTES if hard == resource.RLIM_INFINITY else min(hard, kernel.STACK_BYTES)
    resource.setrlimit(resource.RLIMIT_STACK, (stack, hard))
    warmup.warm_up(wanted)
    for name in ("random", "numpy.random"):
        if name in sys.modules:
            sys.modules[name].seed(0)
    gc.collect()
    kernel.trim_heap()
    gc.freeze()
    gc.disable()


def _add_site_builtins() -> None:
    """Add `exit`, `quit` and `help`, which an interpreter without `site` does not have."""
    sitebuiltins = importlib.import_module("_sitebuiltins")
    for name in ("exit", "quit"):
        setattr(builtins, name, sitebuiltins.Quitter(name, "Ctrl-D (i.e. EOF)"))
    builtins.help = sitebuiltins._Helper()


def _tell(control: socket.socket, wanted: confine.Confinement, *message: str | int) -> None:
    """Send the host a message of a kind and its parts, or end this process, with its directories,
    if the host is gone."""
    try:
        control.send(marshal.dumps(message))
    except (BrokenPipeError, ConnectionResetError):
        _leave(wanted)


def _leave(wanted: confine.Confinement) -> NoReturn:
    """End, together with the workers, which the kernel or the closed channel ends. Never returns.

    Working directories in the host's file system are removed first, if the workers end within two
    seconds. Otherwise SIGALRM ends this process, and the host removes them.
    """
    if wanted.scratch:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_GRACE_S)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, 0)  # with SIGCHLD ignored this returns when the last worker has ended
        signal.alarm(0)
        files.remove_directory(wanted.scratch)
    os._exit(0)


def _serve(control: socket.socket, wanted: confine.Confinement, base_bytes: int) -> NoReturn:
    """Fork a confined worker per message, hand it the host's socket, and answer SPAWNED with its
    id, or FAILED, until the host is gone. Never returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    number = 0
    while True:
        message = b""
        with contextlib.suppress(ConnectionResetError):  # the host was killed
            message, ancillary, _, _ = control.recvmsg(64, socket.CMSG_SPACE(4))
        if not message:
            _leave(wanted)
        theirs = socket.socket(fileno=int.from_bytes(ancillary[0][2][:4], sys.byteorder))
        number += 1
        try:
            pid, directory = _fork_worker(wanted, number)
        except OSError as error:
            theirs.close()
            _tell(control, wanted, FAILED, str(error), error.errno or 0)
            continue
        if pid == 0:
            control.close()
            worker.start(theirs, wanted, base_bytes, directory)
        theirs.close()
        _tell(control, wanted, SPAWNED, pid)
