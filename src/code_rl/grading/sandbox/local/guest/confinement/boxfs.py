"""The file system of a box: the machine's programs and libraries read-only, its own directory at
/box, and an empty /tmp for each command."""

from __future__ import annotations

import glob
import os

from code_rl.grading.sandbox.local.guest import kernel
from code_rl.grading.sandbox.local.guest.confinement import rootfs

HOME = "/box"
_TMP = "/tmp"  # noqa: S108
_SYSTEM = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/etc/alternatives")
# Debian keeps the settings of a Java runtime there, with links from below /usr.
_SETTINGS = "/etc/java-*"
_FLAGS = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOATIME
_INODES = 16384


def enter(readable: tuple[str, ...], writable: tuple[str, ...]) -> None:
    """Build the root and enter it; `readable` names further directories of the machine that it
    shows, `writable` those that are in the box's own."""
    wanted = (*_SYSTEM, *sorted(glob.glob(_SETTINGS)), *readable)
    shown = tuple(path for path in wanted if os.path.isdir(path))
    sources = rootfs.Sources((), (), shown, ())
    links = tuple((path, HOME + path) for path in writable)
    empty = ("etc", "proc", HOME.strip("/"), *(() if _TMP in writable else ("tmp",)))
    rootfs.enter(sources, empty, links)


def mount_home(size: int, writable: tuple[str, ...]) -> None:
    """Mount the box's own directory, of `size` bytes, and make it the working directory."""
    _mount(HOME, size)
    for path in writable:
        os.mkdir(HOME + path)
    os.chdir(HOME)


def mount_proc() -> None:
    """Cover /proc with the processes of this PID namespace."""
    rootfs.mount_private_proc()


def mount_for_command(tmp_bytes: int, home_read_only: bool) -> None:
    """Mount a command's /proc and empty /tmp, unless that is in the box's directory. With
    `home_read_only` the command starts in /tmp and cannot change the box's directory."""
    mount_proc()
    if not os.path.islink(_TMP):
        _mount(_TMP, tmp_bytes)
    if home_read_only:
        flags = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY
        kernel.mount(None, HOME, None, flags | kernel.MS_NOSUID | kernel.MS_NODEV)
    os.chdir(_TMP if home_read_only else HOME)


def _mount(path: str, size: int) -> None:
    kernel.mount("tmpfs", path, "tmpfs", _FLAGS, f"size={size},nr_inodes={_INODES},mode=700")
