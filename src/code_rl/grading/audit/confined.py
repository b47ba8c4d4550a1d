"""Run a grader without write access or network: `python -m code_rl.grading.audit.confined
FOLDERS CMD …`.

The command runs in its own namespaces: read-only mounts; empty /tmp, /var/tmp, /dev/shm and /run;
no network but the loopback; no other processes; of the environment only PATH, PYTHONPATH, locale
and time zone. It can read the user's files. Of the emptied folders it sees only FOLDERS (JSON),
read-only.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import struct
import sys
from typing import NoReturn

from code_rl.grading.sandbox.local.guest import kernel

_MOUNT_SETATTR, _RECURSIVE, _AT_FDCWD, _RDONLY = 442, 0x8000, -100, 1
_EMPTY = ("/tmp", "/var/tmp", "/dev/shm", "/run")  # noqa: S108 - made empty
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1
_KEPT = ("PATH", "PYTHONPATH", "LANG", "LC_ALL", "TZ")


def main() -> int:
    """Run the command in `sys.argv[2:]` confined, and return its exit code modulo 256 (256 − N for
    a death by signal N). `sys.argv[1]` is the JSON list of folders that stay visible.

    Return 2, with a message on stderr, if the kernel refuses the confinement. SIGTERM and SIGINT
    are ignored while the command runs; it ends with this process, and this process with its parent.
    """
    kernel.die_with_parent()  # so a killed audit leaves no hostile program running
    try:
        _enter(json.loads(sys.argv[1]))
    except OSError as error:
        print(
            f"a grader cannot be confined here ({error}); confine=false runs it with your own "
            "rights",
            file=sys.stderr,
        )
        return 2
    child = os.fork()
    if child == 0:
        _become(sys.argv[2:])
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF


def _become(command: list[str]) -> NoReturn:
    """Become the grader, PID 1 of its namespace: all its processes end with it. It runs after
    `_enter`, in the forked child, and does not return. Raises OSError if the command cannot be
    executed."""
    kernel.die_with_parent()
    kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
    environment |= {"HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"}  # noqa: S108
    os.execvpe(command[0], command, environment)  # noqa: S606


def _enter(folders: list[str]) -> None:
    """Move this process into new namespaces and confine their file systems. The next child is PID 1
    of the new PID namespace. `folders` are absolute paths. Raises OSError if the kernel refuses a
    step.

    The order matters: the user is mapped before anything is mounted, and all mounts become
    read-only before the empty, writable ones are made.
    """
    uid, gid = os.getuid(), os.getgid()
    kernel.unshare(
        (kernel.NEWUSER if uid else 0)
        | kernel.NEWNS
        | kernel.NEWPID
        | kernel.NEWNET
        | kernel.NEWIPC
        | kernel.NEWUTS,
        "unshare",
    )
    if uid:
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {uid} 1"),
            ("gid_map", f"{gid} {gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    attributes = ctypes.create_string_buffer(struct.pack("=QQQQ", _RDONLY, 0, 0, 0))
    kernel.raw_syscall("mount_setattr", _MOUNT_SETATTR, _AT_FDCWD, b"/", _RECURSIVE, attributes, 32)
    for place in _EMPTY:
        if os.path.isdir(place) and not os.path.islink(place) and place not in folders:
            _make_empty(place, [folder for folder in folders if folder.startswith(f"{place}/")])
    with socket.socket() as loopback:
        import fcntl

        fcntl.ioctl(loopback, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))


def _make_empty(place: str, folders: list[str]) -> None:
    """Mount an empty, writable file system (1 GB at most) at `place`, in which the existing
    `folders` of the old one appear again. They keep their read-only mounts. Raises OSError.

    Each folder is opened first, because the new mount hides it.
    """
    held = {
        folder: os.open(folder, os.O_PATH | os.O_DIRECTORY)
        for folder in folders
        if os.path.isdir(folder)
    }
    kernel.mount("tmpfs", place, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=1777,size=1g")
    for folder, fd in sorted(held.items()):
        if not os.path.isdir(folder):  # else it is inside a folder that is already mounted
            os.makedirs(folder)
            kernel.mount(f"/proc/self/fd/{fd}", folder, None, kernel.MS_BIND | kernel.MS_REC)
        os.close(fd)


if __name__ == "__main__":
    sys.exit(main())
