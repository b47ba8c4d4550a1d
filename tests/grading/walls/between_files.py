"""What a test can leave in directories, streams and files that the next test shares: bodies for `walls.between`."""

from __future__ import annotations

FILES: dict[str, tuple[str, str]] = {
    "file": (
        "a file in every directory",
        """
        def there(n):
            return any(os.path.exists(f"{place}/.mark{n}") for place in shared())
        def put(n):
            for place in shared():
                quietly(lambda: open(f"{place}/.mark{n}", "w").close())
        answer(count_by(there, put))
        """,
    ),
    "directory_mode": (
        "the mode of what it may change",
        """
        def there(n):
            return any((quietly(os.stat, place) or os.stat("/")).st_mode & (1 << n) == 0 for place in ("/tmp", "."))
        def put(n):
            for place in ("/tmp", "."):
                quietly(lambda: os.chmod(place, os.stat(place).st_mode & ~(1 << n)))
        answer(count_by(there, put))
        """,
    ),
    "stream_modes": (
        "the mode of the files behind its streams",
        """
        bits = [stat.S_IMODE(os.fstat(fd).st_mode) for fd in (0, 1, 2)]
        number = next((n for n, mode in ((2, 0o402), (1, 0o401)) if mode in bits), 0)
        for fd in (0, 1, 2):
            quietly(os.fchmod, fd, 0o401 + number)
        answer(number)
        """,
    ),
    "stream_flags": (
        "flags of the open streams",
        """
        flags = [os.O_APPEND, os.O_NONBLOCK, os.O_NOATIME]
        now = fcntl.fcntl(0, fcntl.F_GETFL) | fcntl.fcntl(2, fcntl.F_GETFL)
        number = sum(bool(now & flag) for flag in flags)
        for fd in (0, 2):
            for use in (flags[: number + 1], flags[:number + 1][:2]):
                quietly(fcntl.fcntl, fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | sum(use))
        answer(number)
        """,
    ),
    "locks_of_orphans": (
        "locks on shared files, held by a process that stays",
        """
        def fds():
            return [fd for fd in (0, 1, 2, *(quietly(os.open, place, os.O_RDONLY) for place in shared())) if fd is not None]
        def there(n):
            for fd in fds():
                try:
                    fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 100 + n)
                    fcntl.lockf(fd, fcntl.LOCK_UN, 1, 100 + n)
                except OSError as error:
                    if error.errno == 11:
                        return True
            return False
        def put(n):
            if quietly(os.fork) == 0:
                quietly(os.setsid)
                for fd in fds():
                    quietly(fcntl.lockf, fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 100 + n)
                    quietly(fcntl.lockf, fd, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 100 + n)
                time.sleep(20)
                os._exit(0)
            time.sleep(.1)
        answer(count_by(there, put))
        """,
    ),
    "extended_attributes": (
        "extended attributes of streams and directories",
        """
        targets = [0, 1, 2, "/tmp", "."]
        def there(n):
            return any(quietly(os.getxattr, target, f"user.mark{n}") is not None for target in targets)
        def put(n):
            for target in targets:
                quietly(os.setxattr, target, f"user.mark{n}", b"x")
        answer(count_by(there, put))
        """,
    ),
    "offset_of_streams": (
        "the offset at which its streams stand at the beginning",
        """
        number = max(os.lseek(fd, 0, 1) for fd in (0, 2))
        for fd in (0, 2):
            quietly(os.lseek, fd, number + 1, 0)
        answer(number)
        """,
    ),
    "length_of_streams": (
        "bytes left in stdin beyond its input, and in stderr",
        """
        text = os.pread(0, 1000, 0) + os.pread(2, 1000, 0)
        number = text.count(b"mark")
        for fd in (0, 2):
            quietly(os.pwrite, fd, b"mark" * (number + 1), 100)
        answer(number)
        """,
    ),
    "stale_pages_of_output": (
        "pages of the output that were cut off and come back",
        """
        quietly(os.ftruncate, 2, 1 << 20)
        view = quietly(mmap.mmap, 2, 1 << 20)
        number = view[5000:9000].count(b"mark") if view else 0
        if view:
            view[5000:5000 + 4 * (number + 1)] = b"mark" * (number + 1)
        answer(number)
        """,
    ),
}
"""Name -> what it leaves, and source below the head of `walls.between`."""
