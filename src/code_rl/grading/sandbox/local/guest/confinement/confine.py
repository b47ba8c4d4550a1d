"""The isolation levels, in the order in which they are applied: to the zygote, the worker, the
submission and the test."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
from collections.abc import Callable
from typing import NamedTuple

from code_rl.grading.sandbox.local.guest import kernel
from code_rl.grading.sandbox.local.guest.confinement import landlock, rootfs, seccomp

FULL, LANDLOCK, NONE = "full", "landlock", "none"
INSIDE_ID = 1000
"""The user id of a worker within its user namespace."""
FIRST_UID, UIDS = 0x70000000, 0x0F000000
"""User ids without an owner on the machine: one per worker, if the zygote may assign them."""
_TMP_FLOOR = 64 << 20


class Confinement(NamedTuple):
    """The confinement requested of a zygote. `scratch` is the parent of working directories if /tmp
    is not private.

    `may_fork`: programs may start processes at `landlock`, where they must be counted. `proc`: the
    host's /proc, opened beforehand. `own_uids`: each worker has its own user id.
    """

    level: str
    packages: tuple[tuple[str, str], ...]
    scratch: str
    may_fork: bool
    proc: int
    own_uids: bool = False


def confine_zygote(wanted: Confinement, enter: Callable[[], None] | None = None) -> Confinement:
    """Enter the read-only root (full), for good. Return the confinement that was available, with
    `own_uids` and `may_fork` set. Raises KernelError naming the refused step. `enter` builds
    another root than that of Python programs (None: that one).

    A zygote that is root stays root, since only root can give each worker its own user id; it sees
    only the new root directory. The zygote never runs a program.
    """
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1, step="prctl(PR_SET_NO_NEW_PRIVS)")
    own_uids = os.geteuid() == 0 and wanted.level != NONE and _may_change_user()
    if wanted.level == LANDLOCK:
        landlock.version()
    elif wanted.level == FULL:
        sources = rootfs.find_sources(wanted.packages)
        if not (own_uids and _may_unshare_mounts()):
            own_uids = False
            _new_user_namespace(wanted.proc, kernel.NEWNS, 0)
        if enter is None:
            rootfs.enter(sources)
        else:
            enter()
    return wanted._replace(own_uids=own_uids, may_fork=wanted.may_fork or own_uids)


def fork_worker(wanted: Confinement, uid: int | None) -> int:
    """Fork a worker, a child of this process. Return its PID, and 0 in the worker. Raises
    KernelError, in this process, if a step is refused at `full`; at `landlock` in the worker.

    At `full` and `landlock` it takes the user id `uid`, unless that is None. At `full` it is PID 1
    of its own PID namespace and has every capability in its own user namespace, with its own
    network, IPC and host name.
    """
    if wanted.level != FULL:
        pid = kernel.fork()
        if pid == 0 and wanted.level == LANDLOCK:
            _become(uid, wanted)
        return pid
    reader, writer = os.pipe()
    between = kernel.fork()
    if between:
        os.close(writer)
        answer = os.read(reader, 4096)
        os.close(reader)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(between, 0)
        if answer[:1] != b"+":
            number, _, step = answer.decode("utf-8", "replace").partition(" ")
            raise kernel.KernelError(step or "starting a worker", int(number or 1))
        return int(answer[1:])
    # The process in between takes the user id and the user namespace, to which the worker's other
    # namespaces then belong.
    try:
        os.close(reader)
        _become(uid, wanted)
        _new_user_namespace(wanted.proc, kernel.NEWNS, INSIDE_ID)
        flags = kernel.NEWPID | kernel.NEWNET | kernel.NEWIPC | kernel.NEWUTS | kernel.CLONE_PARENT
        pid, _ = kernel.clone3(flags)
        if pid == 0:
            os.close(writer)
            os.setsid()  # share no session and no autogroup with others
            socket.sethostname("sandbox")
            rootfs.cover_proc()
            return 0
        os.write(writer, b"+%d" % pid)
    except OSError as error:
        os.write(writer, f"{error.errno or 1} {getattr(error, 'step', error)}".encode())
    os._exit(0)


def submission_namespaces(level: str) -> int:
    """Return the namespace flags of a submission's supervisor: new PIDs and mounts at `full`, else
    none."""
    return kernel.NEWPID | kernel.NEWNS if level == FULL else 0


def confine_submission(
    wanted: Confinement, file_bytes: int, directory: str, shows_proc: bool
) -> TestConfinement:
    """Take the last steps in the supervisor, before it reads anything hostile. They last until its
    end. Return the further steps of each test. Raises KernelError.

    `file_bytes`: the size of a private /tmp (64 MiB at least). `directory`: working directory if
    /tmp is not private. `shows_proc`: the program needs /proc. Mounts come before the loss of
    capabilities, and the filter comes last.
    """
    kernel.die_with_parent()
    if wanted.level == FULL:
        os.setpgid(0, 0)  # share no process group with the worker
        rootfs.mount_private_tmp(max(file_bytes, _TMP_FLOOR))
        if shows_proc:
            rootfs.mount_private_proc()
        kernel.drop_capabilities()
    else:
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1, step="prctl(PR_SET_CHILD_SUBREAPER)")
        os.chdir(directory)
    if wanted.level == NONE:
        return TestConfinement(wanted)
    confinement = TestConfinement(wanted)
    if wanted.level == LANDLOCK:
        readable = (*rootfs.readable_paths(wanted.packages), f"{wanted.scratch}/packages")
        confinement.domain = landlock.ruleset(readable, (directory, "/dev/null"))
        landlock.restrict(landlock.ruleset((*readable, "/proc"), (directory, "/dev/null")))
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0, step="prctl(PR_SET_DUMPABLE)")
    SUBMISSION_FILTER.install()
    return confinement


class TestConfinement:
    """The rights that a single test loses beyond its submission."""

    domain = -1
    """At `landlock`, each test enters this rule set, from inside which it cannot signal its
    supervisor."""

    def __init__(self, wanted: Confinement) -> None:
        """Find out what the level has for tests. Nothing is confined before `enter`. Raises
        KernelError at `landlock` without Landlock."""
        self._level, self._may_fork = wanted.level, wanted.may_fork
        self._scoped = wanted.level == LANDLOCK and landlock.version() >= landlock.SCOPING_SIGNALS
        self.counts_processes = wanted.level == FULL or (
            wanted.level == LANDLOCK and wanted.own_uids
        )
        """True if the kernel counts this submission's processes apart from all others."""
        self.own_processes = 2 if wanted.level == FULL else 3
        """The worker, the supervisor and its parent (if any) are counted with the tests."""

    def enter(self) -> None:
        """Confine the process that was just forked, and its children, for good; at `full` there is
        nothing left to do. Raises KernelError."""
        if self._level == FULL:
            return
        os.setpgid(0, 0)  # all its processes stay in this group, which is killed at the end
        kernel.die_with_parent()
        if self._level == LANDLOCK:
            landlock.restrict(self.domain)
            own = None if self._scoped else os.getpid()
            kernel.Filter(seccomp.test_filter(os.uname().machine, own, self._may_fork)).install()


SUBMISSION_FILTER = kernel.Filter(seccomp.program_filter(os.uname().machine))


def _may_unshare_mounts() -> bool:
    """Return True after moving this process into a mount namespace of its own, False if that is
    refused."""
    try:
        kernel.unshare(kernel.NEWNS, "unshare(CLONE_NEWNS)")
    except kernel.KernelError:
        return False
    return True


def _may_change_user() -> bool:
    """Return True if this process is root and may take an unused user id."""
    pid = kernel.fork()
    if pid == 0:
        try:
            take_user(FIRST_UID)
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


def take_user(uid: int) -> None:
    """Take a user id for good, and no group but the one of the same number. Raises OSError. The
    kernel then forgets PR_SET_PDEATHSIG and makes the process undumpable."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def end_user(uid: int) -> None:
    """Kill all processes of a worker's user at one moment, without waiting for their end. Call it
    as root; without the right it does nothing.

    It is done by a process that may signal them, and that they may not: only its effective user id
    is theirs.
    """
    pid = kernel.fork()
    if pid == 0:
        try:
            os.setresuid(uid + UIDS, uid, uid + UIDS)
            kernel.drop_capabilities()
            if os.getresuid() == (uid + UIDS, uid, uid + UIDS):
                os.kill(-1, signal.SIGKILL)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def _become(uid: int | None, wanted: Confinement) -> None:
    """Take the user id for good (None: keep the present one) and, at `landlock`, give up all
    capabilities. There an interpreter that only root can reach stays readable by one that is kept;
    Landlock restricts the rest. Raises OSError."""
    if uid is None:
        return
    reachable = wanted.level == FULL or (
        others_can_reach(os.__file__) and others_can_reach(os.path.dirname(wanted.scratch))
    )
    if not reachable:
        kernel.prctl(kernel.PR_SET_KEEPCAPS, 1, step="prctl(PR_SET_KEEPCAPS)")
    take_user(uid)
    if wanted.level == LANDLOCK:
        if reachable:
            kernel.drop_capabilities()
        else:
            kernel.keep_capabilities(kernel.CAP_DAC_READ_SEARCH)
    # Changing ids made the process undumpable and /proc/self unwritable.
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1, step="prctl(PR_SET_DUMPABLE)")


def _new_user_namespace(proc: int, more: int, inside: int) -> None:
    """Enter a user namespace, and those of the flags `more`, in which this process has the user id
    `inside` and every capability. Outside it keeps its present, unprivileged identity. `proc` is a
    descriptor of a /proc. Raises KernelError."""
    user, group = os.geteuid(), os.getegid()
    kernel.unshare(kernel.NEWUSER | more, "unshare(CLONE_NEWUSER)")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{inside} {user} 1"),
        ("gid_map", f"{inside} {group} 1"),
    ):
        try:
            fd = os.open(f"self/{name}", os.O_WRONLY | os.O_CLOEXEC, dir_fd=proc)
            try:
                os.write(fd, text.encode())
            finally:
                os.close(fd)
        except OSError as error:
            raise kernel.KernelError(f"write to /proc/self/{name}", error.errno or 0) from error


def others_can_reach(path: str) -> bool:
    """Return True if users other than the owner can read the file, or enter the directory, `path`,
    through all its parents. Raises OSError if it is missing."""
    while True:
        wanted = stat.S_IXOTH if os.path.isdir(path) else stat.S_IROTH
        if not os.stat(path).st_mode & wanted:
            return False
        if path == "/":
            return True
        path = os.path.dirname(path)
