"""The file system that programs see: the interpreter, its libraries, the chosen packages and a
private /tmp. Nothing else exists in it."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NamedTuple

from code_rl.grading.sandbox.local.guest import kernel

PACKAGES = "/packages"
DEVICES = ("null", "zero", "urandom", "random")
_STAGE = "/sys"
"""Where the new root is built: every Linux has this directory, and no interpreter or package is in
it."""
_LOADER_CACHE = "/etc/ld.so.cache"
SHOWN_FILES = (*(f"/dev/{name}" for name in DEVICES[1:]), _LOADER_CACHE)
"""Files of the machine that programs read at a level without a root of its own."""
_SHARED_DATA = ("/usr/lib/locale", "/usr/share/zoneinfo")
"""Files that the C library and the standard library look up."""
_PROC_FLAGS = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC | kernel.MS_RDONLY
"""Read-only, because writable entries belong to the user namespace or the session, which outlast a
test."""


class Sources(NamedTuple):
    """Host paths that may appear in the root: directories at their own path, and packages (name,
    path) under PACKAGES."""

    interpreter: tuple[str, ...]
    hidden: tuple[str, ...]
    libraries: tuple[str, ...]
    packages: tuple[tuple[str, str], ...]


def enter(
    sources: Sources,
    empty: tuple[str, ...] = ("tmp", "etc", "proc"),
    links: tuple[tuple[str, str], ...] = (),
) -> None:
    """Build a read-only root and make it this process's root directory, for good. Needs
    CAP_SYS_ADMIN in its mount namespace, which must be its own. `empty` names directories that it
    has in any case, `links` are links in it and their targets. Raises KernelError, OSError.

    The host's /proc is still in it: `cover_proc` covers it before any program runs.
    """
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    loader_cache = _read(_LOADER_CACHE)
    flags = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("tmpfs", _STAGE, "tmpfs", flags, "size=4m,nr_inodes=1000,mode=755")
    for path in (*sources.libraries, *sources.interpreter):
        _show(path, _STAGE + path)
    for path in sources.hidden:
        if os.path.isdir(_STAGE + path):
            kernel.mount(
                "tmpfs", _STAGE + path, "tmpfs", flags | kernel.MS_RDONLY, "size=4k,mode=755"
            )
    for name, path in sources.packages:
        _show(path, f"{_STAGE}{PACKAGES}/{name}")
    os.makedirs(f"{_STAGE}/dev", exist_ok=True)
    for device in DEVICES:
        target = f"{_STAGE}/dev/{device}"
        _touch(target)
        kernel.bind_read_only(f"/dev/{device}", target, devices=True)
    for name, number in (("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2"), ("fd", "")):
        os.symlink(f"/proc/self/fd{number}", f"{_STAGE}/dev/{name}")
    # Semaphores and shared memory are files of the submission
    os.symlink("/tmp", f"{_STAGE}/dev/shm")  # noqa: S108
    for directory in empty:
        os.makedirs(f"{_STAGE}/{directory}", exist_ok=True)
    for link, target in links:
        os.symlink(target, _STAGE + link)
    # Only a mount namespace that already shows a complete /proc may mount another. Each submission
    # covers this one with its own.
    kernel.mount("/proc", f"{_STAGE}/proc", None, kernel.MS_BIND | kernel.MS_REC)
    if loader_cache:
        with open(_STAGE + _LOADER_CACHE, "wb") as copy:
            copy.write(loader_cache)
    kernel.pivot_into(_STAGE)
    kernel.mount(None, "/", None, kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | flags)


def mount_private_tmp(size: int) -> None:
    """Cover /tmp with an empty tmpfs of `size` bytes and make it the working directory. It is not
    executable and ends with the mount namespace. Raises KernelError."""
    flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC | kernel.MS_NOATIME
    options = f"size={size},nr_inodes=4096,mode=700"
    kernel.mount("tmpfs", "/tmp", "tmpfs", flags, options)  # noqa: S108
    os.chdir("/tmp")  # noqa: S108


def cover_proc() -> None:
    """Cover /proc with an empty, read-only directory. Raises KernelError."""
    kernel.mount("tmpfs", "/proc", "tmpfs", _PROC_FLAGS, "size=4k,nr_inodes=2,mode=555")


def mount_private_proc() -> None:
    """Cover /proc with a read-only one that shows only this PID namespace's processes; if the
    kernel refuses, /proc stays as it is."""
    with contextlib.suppress(kernel.KernelError):
        kernel.mount("proc", "/proc", "proc", _PROC_FLAGS, "hidepid=invisible,subset=pid")


def readable_paths(packages: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    """Return the paths of the interpreter, its libraries, `packages` (name, path) and devices, for
    a level that has no root of its own."""
    sources = find_sources(packages)
    return (
        *sources.interpreter,
        *sources.libraries,
        *(path for _, path in packages),
        *SHOWN_FILES,
    )


def find_sources(packages: tuple[tuple[str, str], ...]) -> Sources:
    """Return the files of this machine that the running interpreter needs, and these `packages`
    (name, path). The zygote calls it before it enters the root."""
    standard = os.path.dirname(os.__file__)
    prefix = sys.base_prefix
    system = prefix in ("/usr", "/")
    interpreter = (standard,) if system else (os.path.join(prefix, "lib"),)
    site = os.path.join(standard, "site-packages")
    hidden = (site,) if os.path.isdir(site) and not os.path.islink(site) else ()
    return Sources(interpreter, hidden, _library_directories(), packages)


def _library_directories() -> tuple[str, ...]:
    """Return the directories of shared libraries and their data that exist here: Debian's for this
    machine's architecture, else the usual ones."""
    triplet = f"{os.uname().machine}-linux-gnu"
    if os.path.isdir(f"/usr/lib/{triplet}"):
        wanted = [f"/usr/lib/{triplet}", f"/lib/{triplet}", "/lib64", "/usr/lib64"]
    else:
        wanted = ["/usr/lib", "/lib", "/usr/lib64", "/lib64"]
    return tuple(path for path in (*wanted, *_SHARED_DATA) if os.path.isdir(path))


def _show(source: str, target: str) -> None:
    """Mount `source` read-only at `target`, which is made, unless it is already there through a
    parent or a link. Raises KernelError, OSError."""
    real = os.path.realpath(source)
    if source.count("/") == 2 and real != source and source.startswith("/lib"):
        source = real
    if os.path.exists(target):
        return
    if os.path.isdir(source):
        os.makedirs(target, mode=0o755, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
        _touch(target)
    kernel.bind_read_only(real, target)


def _touch(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))


def _read(path: str) -> bytes:
    """Return a file's bytes, none if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
