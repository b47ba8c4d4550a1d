"""Control groups, where this process may make them: a ceiling for the memory and the processes of
all that one worker runs.

Version 1 (one hierarchy per controller) and version 2. Without them the limits of single processes
still apply.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import threading
from dataclasses import dataclass
from typing import NamedTuple

_OVERHEAD_BYTES = 256 << 20
"""Memory beyond a program's limit: its private file system, its streams, the supervisor."""
_OVERHEAD_PROCESSES = 16
_serial = itertools.count()
_PREFIX = "code-rl-"
_OWN = secrets.token_hex(4)
"""It tells the groups of this process from those of an earlier one with its id."""


class Names(NamedTuple):
    """The names of a controller's files."""

    memory_limit: str
    memory_events: str


_V1 = Names("memory.limit_in_bytes", "memory.oom_control")
_V2 = Names("memory.max", "memory.events")
_EVENTS_BYTES = 4096


@dataclass(slots=True)
class WorkerGroup:
    """The groups of one worker."""

    directories: tuple[str, ...]
    names: Names
    _limits: tuple[int, int] = (0, 0)
    _kills: int = 0
    _events: list[int] | None = None

    def limit(self, memory_bytes: int, processes: int) -> None:
        """Set the ceilings for the next submission: bytes of memory and number of processes of all
        that the worker runs, plus an overhead for our own. Unchanged ceilings are not written
        again. Raises OSError."""
        if self._limits == (memory_bytes, processes):
            return
        for directory in self.directories:
            for name, value in (
                (self.names.memory_limit, memory_bytes + _OVERHEAD_BYTES),
                ("pids.max", processes + _OVERHEAD_PROCESSES),
            ):
                if os.path.exists(f"{directory}/{name}"):
                    _write(f"{directory}/{name}", value)
        self._limits = (memory_bytes, processes)

    def ran_out_of_memory(self) -> bool:
        """Return True if the kernel has killed one of the worker's processes for memory since the
        last call. Each call forgets these events, so callers call it once before a job, too. Raises
        OSError."""
        if self._events is None:
            paths = [f"{directory}/{self.names.memory_events}" for directory in self.directories]
            self._events = [
                os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in paths if os.path.exists(path)
            ]
        kills = 0
        for fd in self._events:
            _, _, told = os.pread(fd, _EVENTS_BYTES, 0).partition(b"oom_kill ")
            kills += int(told.split()[0])
        before, self._kills = self._kills, kills
        return kills > before

    def remove(self) -> bool:
        """Remove the groups and return True; False while processes are still in them, and then call
        it again."""
        for fd in self._events or ():
            os.close(fd)
        self._events = []
        left = []
        for directory in self.directories:
            try:
                os.rmdir(directory)
            except FileNotFoundError:
                continue
            except OSError:
                left.append(directory)
        self.directories = tuple(left)
        return not left


class Groups:
    """Makes groups for workers below this process's own group."""

    def __init__(self) -> None:
        """Find where this process may make groups, by making some, and remove those that killed
        processes left there."""
        self._parents, self._names = _writable_parents()
        self._leaving: list[WorkerGroup] = []
        # Boxes are closed in threads, and a descriptor that is closed twice may be another's.
        self._removing = threading.Lock()
        for parent in self._parents:
            _remove_orphans(parent)

    @property
    def counts_processes(self) -> bool:
        """True if groups limit the number of a worker's processes; False where only memory is
        limited, or nothing."""
        return self._names is _V2 or any("pids" in parent for parent in self._parents)

    def enclose(self, pid: int) -> WorkerGroup | None:
        """Put a worker that runs nothing yet into groups of its own, which `release` removes; its
        later children are in them, too. Return None if groups are not available. Raises OSError."""
        if not self._parents:
            return None
        name = _new_name()
        group = WorkerGroup(tuple(f"{parent}/{name}" for parent in self._parents), self._names)
        for directory in group.directories:
            os.mkdir(directory)
            _write(f"{directory}/cgroup.procs", pid)
        return group

    def release(self, group: WorkerGroup | None) -> None:
        """Remove a dead worker's groups now, or in a later call if its processes are still ending.
        None only does the latter. Thread-safe."""
        if group is not None:
            with self._removing:
                self._leaving.append(group)
        self.gone()

    def gone(self) -> bool:
        """Remove the released groups that are now empty. Return True if all released groups are
        gone. Thread-safe."""
        with self._removing:
            self._leaving = [leaving for leaving in self._leaving if not leaving.remove()]
            return not self._leaving


def _new_name() -> str:
    return f"{_PREFIX}{os.getpid()}-{_OWN}-{next(_serial)}"


def _remove_orphans(parent: str) -> None:
    """Remove the empty groups below `parent` of killed processes and of an earlier process with our
    id; those of living processes stay."""
    for name in os.listdir(parent):
        host, _, rest = name.removeprefix(_PREFIX).partition("-")
        if not name.startswith(_PREFIX) or not host.isdigit():
            continue
        earlier = int(host) == os.getpid() and not rest.startswith(f"{_OWN}-")
        if earlier or not os.path.exists(f"/proc/{host}"):
            with contextlib.suppress(OSError):  # it is not empty
                os.rmdir(f"{parent}/{name}")


def _writable_parents() -> tuple[tuple[str, ...], Names]:
    """Return the directories where groups can be made, and the names of their files: those of
    memory and pids (version 1, one or both), or the one of version 2. There may be none."""
    mine = _by_controller()
    for kind, controllers, names, needed in (
        ("cgroup", ("memory", "pids"), _V1, "cgroup.procs"),
        ("cgroup2", ("",), _V2, _V2.memory_limit),
    ):
        directories = (
            _directory(kind, controller, mine.get(controller)) for controller in controllers
        )
        found = tuple(
            directory for directory in directories if directory and _can_make(directory, needed)
        )
        if found:
            return found, names
    return (), _V2


def _by_controller() -> dict[str, str]:
    """Return the path of this process's group for each controller; version 2 has the empty name.
    The dict is empty without /proc."""
    mine = {}
    for line in _lines("/proc/self/cgroup"):
        _, controllers, path = line.rstrip("\n").split(":", 2)
        for controller in controllers.split(","):
            mine[controller] = path
    return mine


def _directory(kind: str, controller: str, path: str | None) -> str | None:
    """Return the directory where this process's group of a hierarchy is mounted, or None. `path` is
    the group's path in it (None: it has none)."""
    if path is None:
        return None
    for line in _lines("/proc/self/mountinfo"):
        fields, _, rest = line.partition(" - ")
        root, target = fields.split()[3:5]
        found, _, options = rest.split()[:3]
        if found == kind and (not controller or controller in options.split(",")):
            inside = path.removeprefix(root) if root != "/" else path
            return target + inside.rstrip("/")
    return None


def _can_make(parent: str, needed: str) -> bool:
    """Return True if a usable group can be made below `parent`: one is made, looked at and removed.
    `needed` is a file that it must have."""
    trial = f"{parent}/{_new_name()}"
    try:
        os.mkdir(trial)
    except OSError:
        return False
    usable = os.path.exists(f"{trial}/{needed}") and os.access(f"{trial}/cgroup.procs", os.W_OK)
    os.rmdir(trial)
    return usable


def _lines(path: str) -> list[str]:
    """Return the lines of a file, with their ends; none if it cannot be read."""
    try:
        with open(path) as file:
            return file.readlines()
    except OSError:
        return []


def _write(path: str, value: int) -> None:
    """Write a number to a control file. Raises OSError."""
    with open(path, "w") as file:
        file.write(str(value))
