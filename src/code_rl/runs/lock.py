"""One run, one writer: the process that works on a run directory holds a lock on it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from code_rl.errors import ConfigError
from code_rl.files import TEMPORARY, lock_file

LOCK = "lock"
ATTEMPTS = 5


class RunLock:
    """A held lock. The kernel gives it back when the process ends, however it ends.

    `earlier` describes the process that held it before and ended without closing the run; None where there was none.
    """

    def __init__(self, path: Path, handle: int, earlier: str | None) -> None:
        self.path, self.earlier = path, earlier
        self._handle: int | None = handle

    def holds(self) -> bool:
        """False when the directory was deleted since: the lock is then on a file that nobody else sees."""
        return self._handle is not None and _is_at(self.path, self._handle)

    def release(self) -> None:
        """Let others have the directory. Idempotent."""
        handle, self._handle = self._handle, None
        if handle is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(handle, 0)
            os.close(handle)


def lock_run(log_path: Path) -> RunLock:
    """Take the lock of a run directory, which must exist.

    Raises ConfigError: another process has it; the message names it. Or the directory cannot be written.
    """
    path = log_path / LOCK
    for _ in range(ATTEMPTS):
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(
                f"log_path={log_path} cannot be used: {error.strerror or error}; choose another directory"
            ) from error
        try:
            _hold(handle, log_path)
            earlier = _read(handle)
            if not _is_at(path, handle):
                os.close(handle)
                continue
            _write(handle)
        except BaseException:
            os.close(handle)
            raise
        for left in [*log_path.glob(f".*{TEMPORARY}"), *log_path.glob(f"*/.*{TEMPORARY}")]:
            left.unlink(missing_ok=True)
        return RunLock(path, handle, None if earlier is None else _in_words(earlier))
    raise ConfigError(f"log_path={log_path} is being replaced by another process; choose another directory")


def _hold(handle: int, log_path: Path) -> None:
    """Lock it; on a file system without locks, see that whoever wrote into it is gone."""
    try:
        if lock_file(handle):
            return
        owner = _read(handle)
        if owner is None or not _alive(owner):
            return
    except BlockingIOError:
        owner = _read(handle)
    except OSError as error:
        raise ConfigError(
            f"log_path={log_path} cannot be locked: {error.strerror}; choose another directory"
        ) from error
    who = _in_words(owner) if owner is not None else "another process"
    raise ConfigError(f"log_path={log_path} is in use by {who}; wait for it, or choose another log_path")


def _is_at(path: Path, handle: int) -> bool:
    """False when the directory was deleted and made anew while we waited: the lock would be on a file that nobody else sees."""
    try:
        found, held = path.stat(), os.fstat(handle)
    except FileNotFoundError:
        return False
    return (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino)


def _write(handle: int) -> None:
    owner = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "boot_ticks": _ticks(os.getpid()),
    }
    os.ftruncate(handle, 0)
    os.pwrite(handle, json.dumps(owner).encode() + b"\n", 0)
    os.fsync(handle)


def _read(handle: int) -> dict[str, Any] | None:
    """Whoever wrote the lock file last, without having closed its run. A holder that has just begun writes a moment later."""
    for _ in range(2):
        try:
            owner = json.loads(os.pread(handle, 4096, 0))
        except ValueError:
            owner = None
        if isinstance(owner, dict) and isinstance(owner.get("pid"), int):
            return owner
        time.sleep(0.01)
    return None


def _alive(owner: dict[str, Any]) -> bool:
    """Whether the process may still run: on another host that cannot be known."""
    if owner.get("host") != socket.gethostname():
        return True
    return _ticks(owner["pid"]) is not None and _ticks(owner["pid"]) == owner.get("boot_ticks")


def _ticks(pid: int) -> int | None:
    """When a process began, in clock ticks after boot: tells it from a later one with its number."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def _in_words(owner: dict[str, Any]) -> str:
    return f"process {owner['pid']} on {owner.get('host')}, which began at {owner.get('started')}"
