"""The walls of a box, at each isolation level: the machine's programs and libraries to read and
execute, its own directory, and an empty temporary one for each command."""

from __future__ import annotations

import errno
import glob
import itertools
import os
from typing import Any

from code_rl.grading.sandbox.local.guest import files, kernel
from code_rl.grading.sandbox.local.guest.confinement import confine, landlock, rootfs, seccomp

_TMP = "/tmp"  # noqa: S108
_SYSTEM = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/etc/alternatives")
# Debian links to the settings of Java from below /usr; Node ends if it may not open OpenSSL's.
_SETTINGS = ("/etc/java-*", "/etc/ssl/openssl.cnf")
_FLAGS = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOATIME
_INODES = 16384
_NULL = "/dev/null"


def _programs(readable: tuple[str, ...]) -> tuple[str, ...]:
    """Return the paths of the machine that commands may read and execute, those that exist."""
    settings = (path for pattern in _SETTINGS for path in sorted(glob.glob(pattern)))
    return tuple(path for path in (*_SYSTEM, *settings, *readable) if os.path.exists(path))


def enter_root(config: dict[str, Any]) -> None:
    """Build the root of a box at `full`, and enter it. A `writable` directory is a link to one
    below /box. Raises KernelError."""
    writable = config["writable"]
    sources = rootfs.Sources((), (), _programs(config["readable"]), ())
    links = tuple((path, f"/box{path}") for path in writable)
    empty = ("etc", "proc", "box", *(() if _TMP in writable else ("tmp",)))
    rootfs.enter(sources, empty, links)


class Rooted:
    """Namespaces and a root of the box's own (level `full`). The kernel ends all processes of a
    command with its leader, and all of the box with its init."""

    namespaces = kernel.NEWPID | kernel.NEWNS
    own_processes = 3
    """The init, the leader and the fork between them count as processes of the box's user."""

    def __init__(self, config: dict[str, Any]) -> None:
        """Prepare the filters; nothing is mounted before `start`."""
        self._disk_bytes, self._writable = config["disk_bytes"], config["writable"]
        self._filters = _filters(frozen=False)

    def start(self) -> None:
        """Mount the box's own directory, in the init, with its quota, and make the writable ones in
        it. Raises OSError."""
        _mount("/box", self._disk_bytes)
        for path in self._writable:
            os.mkdir(f"/box{path}")

    def variables(self) -> dict[str, str]:
        """Return the variables HOME and TMPDIR of the next command. Nothing is made."""
        return {"HOME": "/box", "TMPDIR": _TMP}

    def confine_leader(self, home_read_only: bool) -> None:
        """Mount a command's /proc and empty /tmp, unless that is in the box's directory, and give
        up all rights; the command inherits this. With `home_read_only` the command starts in /tmp
        and cannot change the box's directory. Raises KernelError.

        Capabilities are dropped after the mounts, and the filter, which forbids further steps,
        comes last.
        """
        rootfs.mount_private_proc()
        if not os.path.islink(_TMP):
            _mount(_TMP, self._disk_bytes)
        if home_read_only:
            flags = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY
            kernel.mount(None, "/box", None, flags | kernel.MS_NOSUID | kernel.MS_NODEV)
        os.chdir(_TMP if home_read_only else "/box")
        kernel.drop_capabilities()
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0, step="prctl(PR_SET_DUMPABLE)")
        self._filters[home_read_only].install()

    def confine_command(self, home_read_only: bool) -> None:
        """Do nothing: the command inherits the walls of its leader."""

    def end_command(self) -> None:
        """Do nothing: all has ended with the leader."""

    def remove(self) -> None:
        """Do nothing: all has ended with the init."""


class Landlocked:
    """A user and directories of the box's own, and Landlock (level `landlock`). The box's processes
    are those of its user; keeper, init and leaders are root, whom a command cannot signal."""

    namespaces = own_processes = 0

    def __init__(self, config: dict[str, Any], uid: int | None) -> None:
        """Make the box's own directory, for its user. Raises KernelError without a user id for it
        or if others cannot reach it, OSError without a /proc that lists children."""
        self._scratch = config["scratch"]
        if uid is None or not confine.others_can_reach(os.path.dirname(self._scratch)):
            step = "a user id of its own (for root, and a temporary directory that all may enter)"
            raise kernel.KernelError(step, errno.EPERM)
        os.stat(f"/proc/self/task/{os.getpid()}/children")  # the watch needs it
        self._uid, self._numbers = uid, itertools.count()
        self._home = files.make_room(self._scratch, next(self._numbers), uid)
        self._readable = (*_programs(config["readable"]), *rootfs.SHOWN_FILES)
        self._filters = _filters(frozen=True)

    def start(self) -> None:
        """Become the parent of the orphans of commands. Raises KernelError."""
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1, step="prctl(PR_SET_CHILD_SUBREAPER)")

    def variables(self) -> dict[str, str]:
        """Return the variables that name the directories of the next command. Its temporary
        directory is made by this call, one for each command."""
        self._tmp = files.make_room(self._scratch, next(self._numbers), self._uid)
        return {"HOME": self._home, "TMPDIR": self._tmp}

    def confine_leader(self, home_read_only: bool) -> None:  # noqa: ARG002 - as Rooted has it
        """Become the parent of the command's orphans, so that their CPU time is counted. The leader
        stays root; `home_read_only` is for `confine_command`. Raises KernelError."""
        self._leader = os.getpid()
        self.start()

    def confine_command(self, home_read_only: bool) -> None:
        """Become the box's user, who reaches nothing but programs and the box's directories. Raises
        OSError.

        The order matters: the rules are made while this process is root and can open all paths,
        then the user is taken, and then they apply. The filter, which forbids further steps, comes
        last.
        """
        self._end_with_leader()
        fixed, free = ((self._home,), ()) if home_read_only else ((), (self._home,))
        rules = landlock.ruleset(
            (*self._readable, *fixed), (self._tmp, _NULL, *free), executable=True
        )
        confine.take_user(self._uid)
        kernel.drop_capabilities()
        self._end_with_leader()  # which a change of the user undoes
        os.chdir(self._tmp if home_read_only else self._home)
        landlock.restrict(rules)
        self._filters[home_read_only].install()

    def end_command(self) -> None:
        """Kill all processes of the box's user, reap those of the command, and remove its temporary
        directory."""
        confine.end_user(self._uid)
        while True:
            try:
                os.wait()
            except ChildProcessError:
                break
        files.remove_directory(self._tmp)

    def remove(self) -> None:
        """Kill the processes of the box and remove its directories, whatever its init has left. The
        keeper, which is root, calls it."""
        confine.end_user(self._uid)
        files.remove_directory(self._scratch)

    def _end_with_leader(self) -> None:
        """Have the kernel kill this process when its leader ends, and end it if that has happened
        already."""
        kernel.die_with_parent()
        if os.getppid() != self._leader:
            os._exit(1)


def _filters(frozen: bool) -> dict[bool, kernel.Filter]:
    """Return the filter of a command by whether it is judged, that is, runs with a read-only home.
    With `frozen`, a judged one has no calls by which it could tell later tests something that
    Landlock does not cover."""
    return {
        judged: kernel.Filter(seccomp.box_filter(os.uname().machine, judged, frozen and judged))
        for judged in (False, True)
    }


def _mount(path: str, size: int) -> None:
    kernel.mount("tmpfs", path, "tmpfs", _FLAGS, f"size={size},nr_inodes={_INODES},mode=700")
