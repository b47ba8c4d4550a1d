"""Working directories, and the files in them that come with a job or are read back. All reading and
writing of files is in this module.

The kernel copies the files from descriptor to descriptor, so their bytes are never in the memory of
a process that tests are forked from.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import struct

ENTRY = struct.Struct("<IQ")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def lay_out(path: str, content: int) -> None:
    """Write the content of a descriptor to `path` (relative, without `..`) below the working
    directory, in place of an earlier file, with its directories, and close the descriptor. Raises
    OSError."""
    parents = path.split("/")[:-1]
    # Without stat(2), whose results change the addresses of later allocations
    for depth in range(len(parents)):
        with contextlib.suppress(FileExistsError):
            os.mkdir("/".join(parents[: depth + 1]))
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    _copy(content, fd, os.lseek(content, 0, os.SEEK_END))
    os.close(fd)
    os.close(content)


def collect(paths: tuple[str, ...], to: int, most: int) -> None:
    """Append the regular files among `paths` to the descriptor `to`, as entries of index in
    `paths`, length and bytes, which `unpack` reads. Other paths are left out.

    Links are not followed: a program must not make its supervisor read files that the program
    itself cannot. A file that would exceed `most` bytes in all ends the list with an entry of its
    length only.
    """
    room = most
    for index, path in enumerate(paths):
        fd = _open(path)
        if fd < 0:
            continue
        size = os.fstat(fd).st_size
        os.write(to, ENTRY.pack(index, size))
        if size > room:
            os.close(fd)
            return
        _copy(fd, to, size)
        os.close(fd)
        room -= size


def unpack(data: bytes) -> tuple[dict[int, bytes], bool]:
    """Return the entries that `collect` wrote, by index, and True if all were complete. Never
    raises for forged data."""
    found: dict[int, bytes] = {}
    at = 0
    while at < len(data):
        if at + ENTRY.size > len(data):
            return found, False
        index, length = ENTRY.unpack_from(data, at)
        at += ENTRY.size
        if at + length > len(data):
            return found, False
        found[index] = data[at : at + length]
        at += length
    return found, True


def holds_only(name: str, content: bytes) -> bool:
    """Return True if the working directory has the file `name` only, with this content. Reading
    leaves no access times. Raises OSError."""
    directory = os.open(".", _DIRECTORY | os.O_NOATIME)
    try:
        if os.listdir(directory) != [name]:
            return False
        fd = os.open(name, _READ | os.O_NOATIME)
    finally:
        os.close(directory)
    try:
        return os.read(fd, len(content) + 1) == content
    finally:
        os.close(fd)


def read_from_start(fd: int, wanted: int) -> bytes:
    """Return the first `wanted` bytes of a file, or fewer if it is shorter. The file's position is
    neither used nor moved. Raises OSError."""
    pieces, at = [], 0
    while at < wanted:
        piece = os.pread(fd, wanted - at, at)
        if not piece:
            break
        pieces.append(piece)
        at += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def make_room(base: str, number: int, uid: int | None) -> str:
    """Make the directory of worker `number` below `base`, in a zygote without private file systems,
    and return its path. Only that worker, whose user id is `uid` (None: the present one), can enter
    it. Raises OSError."""
    path = f"{base}/{number}"
    os.mkdir(path, 0o700)
    if uid is not None:
        os.chmod(base, 0o711)  # noqa: S103 - to be passed through, not looked at
        os.chown(path, uid, uid)
    return path


def make_directory(base: str) -> str:
    """Make a directory under `base` with a random name that only this user can enter, and return
    its path. Raises OSError."""
    path = f"{base}/{os.urandom(8).hex()}"
    os.mkdir(path, 0o700)
    return path


def link_packages(base: str, packages: tuple[tuple[str, str], ...]) -> str:
    """Make and return `packages` below `base`, a directory of links to the packages (name, path)
    that programs may import, which keeps other installed packages out of reach. Raises OSError."""
    directory = f"{base}/packages"
    os.mkdir(directory, 0o755)
    for name, path in packages:
        os.symlink(path, f"{directory}/{name}")
    return directory


def remove_directory(path: str, expected: str = "") -> None:
    """Remove the directory. If it has more than the file `expected` ("": nothing), rm(1) removes it
    at any depth, after repairing modes if needed. A missing one is fine; no failure is raised, and
    something may remain. The handler of SIGCHLD is the default meanwhile."""
    try:
        if expected:
            with contextlib.suppress(OSError):
                os.unlink(f"{path}/{expected}")
        os.rmdir(path)
    except FileNotFoundError:
        return
    except OSError:
        # Imported only here: rarely needed, and their libraries would be mapped into every test.
        import shutil
        import subprocess

        handler = signal.getsignal(signal.SIGCHLD)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for command in (["rm", "-rf"], ["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
            tool = shutil.which(command[0]) or f"/bin/{command[0]}"
            subprocess.run([tool, *command[1:], "--", path], check=False, stderr=subprocess.DEVNULL)
            if not os.path.exists(path):
                break
        signal.signal(signal.SIGCHLD, handler)


def _copy(source: int, target: int, size: int) -> None:
    """Copy the first `size` bytes of a file to a descriptor, in the kernel; fewer if it is shorter.
    Raises OSError."""
    at = 0
    while at < size:
        copied = os.sendfile(target, source, at, size - at)
        if not copied:
            return
        at += copied


def _open(path: str) -> int:
    """Return a descriptor of the regular file at `path`, or -1 for anything else; the caller closes
    it. No link on the way is followed, and a pipe does not block it."""
    *parents, name = [part for part in path.split("/") if part not in ("", ".")]
    opened: list[int] = []
    try:
        opened.append(os.open(".", _DIRECTORY))
        for parent in parents:
            opened.append(os.open(parent, _DIRECTORY, dir_fd=opened[-1]))
        fd = os.open(name, _READ, dir_fd=opened[-1])
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
    except OSError:
        return -1
    finally:
        for directory in opened:
            os.close(directory)
    return -1
