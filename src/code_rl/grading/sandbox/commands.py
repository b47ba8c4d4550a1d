"""What can be done with a box, on whichever machine it is: commands, and files put in and read
back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import NamedTuple

from code_rl.grading.sandbox.executor import encodable
from code_rl.util.errors import ConfigError, DataError

HOME = "/box"
SHELL, WRITE, READ = "shell", "write", "read"
REQUEST_BYTES = 1 << 17
_COMMAND_BYTES = REQUEST_BYTES // 2
_FILE_S = 60.0


@dataclass(frozen=True, slots=True)
class BoxResult:
    """The end of one command.

    `exit_code` is negative for a signal. `limit` names the limit that ended the command: cpu, wall,
    memory or output; None if it ended by itself. `peak_memory_bytes` is at least the 10 MB or so of
    the process from which a command is started.
    """

    exit_code: int
    stdout: bytes
    stderr: bytes
    cpu_s: float
    wall_s: float
    peak_memory_bytes: int
    limit: str | None


class BoxLimits(NamedTuple):
    """The limits of one command, as `Box.run` has them."""

    cpu_s: float
    wall_s: float
    memory_mb: int
    output_bytes: int
    processes: int


class Box:
    """An open box. It runs one command at a time; further calls wait. Made by `open_box`."""

    TAKEN = ("/", "/bin", "/box", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/usr")
    """Directories that are not the box's own."""

    def __init__(self, disk_mb: int, writable: tuple[str, ...]) -> None:
        """Keep the quota of /box, in MiB, and the names of the writable directories."""
        self._disk_bytes, self._writable = disk_mb << 20, writable

    @property
    def closed(self) -> bool:
        """True once the box has ended; it cannot be opened again."""
        raise NotImplementedError

    async def request(
        self, kind: str, text: str, stdin: bytes, limits: BoxLimits, home_read_only: bool = False
    ) -> BoxResult:
        """Run a command (SHELL, `text`), or put the file `text` with the content `stdin` in (WRITE)
        or read it (READ), one request at a time. `home_read_only` is for commands. Raises
        SandboxError if the box has ended."""
        raise NotImplementedError

    async def run(
        self,
        command: str,
        stdin: bytes = b"",
        *,
        cpu_s: float = 10.0,
        wall_s: float = 30.0,
        memory_mb: int = 512,
        output_bytes: int = 1 << 20,
        processes: int = 64,
        home_read_only: bool = False,
    ) -> BoxResult:
        """Run `command` with /bin/sh in /box and return its result; an exit code or a limit is no
        error. Times are seconds.

        `output_bytes` bounds standard output and standard error together; what exceeds it is cut.
        All processes of the command end with it. Each command has an empty /tmp of its own; with
        `home_read_only` it starts there and cannot change /box. If the call is cancelled, the box
        closes. Raises ConfigError for bad arguments, SandboxError if the box has ended.
        """
        limits = BoxLimits(cpu_s, wall_s, memory_mb, output_bytes, processes)
        for field, value in limits._asdict().items():
            if not isinstance(value, int | float) or not 0 < value < 1 << 40:
                raise ConfigError(f"{field}={value!r}: use a number above 0")
        _check_kind("command", command, str)
        _check_kind("stdin", stdin, bytes)
        if len(command.encode()) > _COMMAND_BYTES or "\0" in command:
            raise ConfigError(
                f"command: it has {len(command)} characters; use at most {_COMMAND_BYTES} bytes "
                "without NUL, and write() for longer scripts"
            )
        return await self.request(SHELL, command, stdin, limits, home_read_only)

    async def write(self, path: str, data: bytes) -> None:
        """Write a file below /box, or below a writable directory, with its directories, in place of
        an earlier one; it may be executed. Raises ConfigError for a path that leaves these,
        DataError if the file cannot be written (the quota, for example), SandboxError if the box
        has ended."""
        _check_kind("data", data, bytes)
        result = await self.request(WRITE, self._inside(path), data, self._file_limits(1 << 16))
        if result.exit_code:
            raise DataError(f"path={path!r}: the box could not write it: {_reason(result)}")

    async def read(self, path: str) -> bytes:
        """Return the bytes of a file below /box. Raises ConfigError for a path that leaves /box,
        DataError if there is no such file or it is larger than the box's disk, SandboxError if the
        box has ended."""
        limits = self._file_limits(self._disk_bytes + 1)
        result = await self.request(READ, self._inside(path), b"", limits)
        if result.exit_code or result.limit:
            raise DataError(f"path={path!r}: the box could not read it: {_reason(result)}")
        return result.stdout

    def _inside(self, path: str) -> str:
        """Return a path, relative to /box or absolute, as relative to it; writable directories are
        below /box. Raises ConfigError for any other path, for one with `..` or NUL, and above 4,000
        characters."""
        _check_kind("path", path, str)
        whole = PurePosixPath(HOME, path).parts
        top = "/" + "".join(whole[1:2])
        parts = whole[2:] if top == HOME else whole[1:] if top in self._writable else ()
        if not parts or ".." in parts or "\0" in path or len(path) > 4000:
            raise ConfigError(f"path={path!r}: use a path below {HOME}, without '..'")
        return "/".join(parts)

    def _file_limits(self, output_bytes: int) -> BoxLimits:
        """Return the limits of putting or reading a file with this much output: a minute, 256
        MB."""
        return BoxLimits(_FILE_S, _FILE_S, 256, output_bytes, 4)


def _check_kind(name: str, value: object, kind: type) -> None:
    """Raise ConfigError that names the argument if a value is not of the class `kind`, or is text
    that UTF-8 cannot encode."""
    if not isinstance(value, kind):
        raise ConfigError(f"{name}={value!r:.80}: use {kind.__name__}")
    if isinstance(value, str) and not encodable(value):
        raise ConfigError(f"{name}={value!r:.80}: UTF-8 has no lone surrogates")


def _reason(result: BoxResult) -> str:
    return result.stderr.decode("utf-8", "replace")[:200] or f"limit {result.limit}"
