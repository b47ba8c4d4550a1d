"""What a process can know of those below it, and how it ends them."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import resource
import signal
import time

REAP_ROUNDS = 1000
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def look(first: int, deep: bool) -> tuple[float, dict[int, int]]:
    """CPU seconds so far of the processes below this one, and the resident bytes of each; `first` is the oldest.

    `deep`: of all, orphans among them; else only of the oldest. Where /proc does not tell, the CPU time is that of the oldest and of those
    that were waited for.
    """
    if not deep:
        return cpu_of(first), {first: resident(first)}
    try:
        ticks = tree()
    except OSError:
        waited_for = resource.getrusage(resource.RUSAGE_CHILDREN)
        return cpu_of(first) + waited_for.ru_utime + waited_for.ru_stime, {first: resident(first)}
    return sum(ticks.values()) / TICKS_PER_S, {pid: resident(pid) for pid in ticks}


def resident(pid: int) -> int:
    """Bytes of a process that are in memory, shared ones too; 0 where that cannot be read."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * PAGE_BYTES
    except (OSError, IndexError):
        return 0


def proportional(pid: int) -> int:
    """As `resident`, what several processes have in common divided among them. To ask takes time in proportion."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            return sum(int(line.split()[1]) << 10 for line in file if line.startswith(b"Pss:"))
    except OSError:
        return 0


def tree() -> dict[int, int]:
    """Ticks of each process below this one, with those of its children that it waited for. Raises OSError."""
    parents, ticks = read_processes()
    below: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        below.setdefault(parent, []).append(pid)
    found, waiting = {}, below.pop(os.getpid(), [])
    while waiting:
        pid = waiting.pop()
        found[pid] = ticks[pid]
        waiting += below.pop(pid, [])
    return found


def read_processes() -> tuple[dict[int, int], dict[int, int]]:
    """The parent of every process that /proc shows, and its ticks with those of its children that it waited for. Raises OSError."""
    parents, ticks = {}, {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents[int(name)] = int(fields[1])
        ticks[int(name)] = sum(map(int, fields[11:15]))
    if os.getpid() not in parents:
        raise FileNotFoundError("/proc does not show this process")
    return parents, ticks


def cpu_of(pid: int) -> float:
    """CPU seconds of a process so far; 0 where they cannot be read (the kernel's own limit then stops it)."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def kill(pid: int) -> None:
    """SIGKILL, if the process is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def reap(first: int) -> None:
    """Kill and wait for every process that was orphaned to this one; `first` is the oldest process id among them."""
    for pause in itertools.chain((0.0,), itertools.repeat(0.002, REAP_ROUNDS)):
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return  # mostly at once: to ask for the children may cost a fork
        for pid in stopped(first):
            kill(pid)
        time.sleep(pause)


def stopped(first: int) -> list[int]:
    """Every process below this one, stopped: one that is killed while others still run makes room for their next fork."""
    seen: set[int] = set()
    quiet = 0
    for _ in range(REAP_ROUNDS):
        try:
            below = list(tree())
        except OSError:
            below = children(first)
        quiet += 1
        for pid in below:
            if pid not in seen:
                quiet = 0
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
        seen.update(below)
        if quiet == 2:  # not one: a fork can be under way when its process is stopped
            break
    return below


def children(first: int) -> list[int]:
    """Direct children of this process. Where /proc does not tell, the ids that were given out since `first` are asked."""
    try:
        with open("/proc/thread-self/children", encoding="ascii") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        newest = os.fork()
        if newest == 0:
            os._exit(0)
        os.waitpid(newest, 0)
        return [pid for pid in range(first, newest) if is_child(pid)]


def is_child(pid: int) -> bool:
    """Whether `pid` is a child of this process."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except OSError:
        return False
    return True


def open_pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends, where the kernel has them."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def remove(path: str) -> None:
    """Remove a file or a directory with all that a test left in it, whatever its modes."""
    try:
        os.rmdir(path)
        return
    except NotADirectoryError:
        os.unlink(path)
        return
    except OSError:
        pass
    open_up(path)
    # Imported where it is needed: every request pays for what is imported at the top.
    importlib.import_module("shutil").rmtree(path)


def open_up(directory: str) -> None:
    """Make all directories from this one on writable for their owner."""
    os.chmod(directory, 0o700)
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                open_up(entry.path)
