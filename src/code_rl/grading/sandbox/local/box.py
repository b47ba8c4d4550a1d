"""The box: shell commands in the sandbox, with a directory that lives as long as the box."""

from __future__ import annotations

import array
import asyncio
import contextlib
import marshal
import os
import shutil
import socket
import subprocess
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any

from code_rl.grading.sandbox.commands import Box, BoxLimits, BoxResult
from code_rl.grading.sandbox.local.cgroups import Groups, WorkerGroup
from code_rl.grading.sandbox.local.execution import memory_file
from code_rl.grading.sandbox.local.guest import box as guest
from code_rl.grading.sandbox.local.guest import wire
from code_rl.grading.sandbox.local.guest.confinement import confine
from code_rl.grading.sandbox.local.launcher import ROOT, make_scratch, spawn, strongest
from code_rl.util.errors import ConfigError, IsolationError, SandboxError

_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
}
_START_S, _END_S = 60.0, 10.0
_SILENCE_S = 600.0
"""Seconds beyond its wall limit after which a command counts as lost: a busy machine runs it
slowly, and its init looks at the limits."""
_PIECE = 1 << 16


class LocalBox(Box):
    """A box on this machine."""

    def __init__(
        self,
        level: str,
        disk_mb: int,
        environment: Mapping[str, str],
        readable: tuple[str, ...],
        writable: tuple[str, ...],
    ) -> None:
        """Start the box's processes and wait for them, so call it in a thread. Raises
        IsolationError if the level refuses a step or has no `writable` directories, SandboxError if
        the processes do not start."""
        if level != confine.FULL and writable:
            raise IsolationError(f"writable={writable!r}: isolation={level} has no such directory")
        super().__init__(disk_mb, writable)
        self._scratch = make_scratch(level)
        self._environment = {**_ENVIRONMENT, **environment}
        self._turn = asyncio.Lock()
        self._control, theirs = wire.pair()
        self._process: subprocess.Popen[bytes] | None = None
        self._group: WorkerGroup | None = None
        try:
            with theirs:
                self._process = spawn(theirs)
            self._start(level, readable)
        except OSError as error:
            self.close()
            raise SandboxError(f"a box did not start: {error}") from error
        except BaseException:
            self.close()
            raise
        self._control.setblocking(False)

    @property
    def closed(self) -> bool:
        """True once the box has ended, by `close` or by a failed request."""
        return self._process is None

    def close(self) -> None:
        """End all processes of the box, waiting up to 10 s, and drop its files. Idempotent."""
        self._control.close()
        process, self._process = self._process, None
        if process is not None:
            if not self._scratch:
                process.kill()
            # Otherwise its keeper ends what the kernel does not, now that the socket is closed.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
        group, self._group = self._group, None
        if group is not None:
            _groups().release(group)
        if self._scratch:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _start(self, level: str, readable: tuple[str, ...]) -> None:
        """Send the configuration and wait, up to 60 s each, for the first two processes; put the
        keeper's child into a control group, if there are any. Raises IsolationError if a step is
        refused, SandboxError if a process ended, OSError."""
        self._control.settimeout(_START_S)
        config: dict[str, Any] = {
            "root": ROOT,
            "guest": "box",
            "level": level,
            "scratch": self._scratch,
        }
        config |= {"disk_bytes": self._disk_bytes, "readable": readable, "writable": self._writable}
        self._control.send(marshal.dumps(config))
        # The keeper and the init answer in either order, before any command
        for _ in (guest.KEPT, guest.READY):
            answer = self._control.recv(_PIECE)
            kind, *rest = marshal.loads(answer) if answer else ("",)  # noqa: S302
            if kind == guest.FAILED:
                step, number = rest
                raise IsolationError(
                    f"a box at isolation={level} is not available: {step} was refused "
                    f"({os.strerror(number)}); docs/box.md says what it needs"
                )
            if not kind:
                raise SandboxError("a box's first process ended while starting; see stderr")
            if kind == guest.KEPT:
                self._group = _groups().enclose(rest[0])

    async def request(
        self, kind: str, text: str, stdin: bytes, limits: BoxLimits, home_read_only: bool = False
    ) -> BoxResult:
        """Run a request as `Box.request` says, one at a time. If the kernel ended the box's own
        processes for memory, the result is that of the limit `memory`. Any exception, a
        cancellation included, closes the box."""
        request = {
            "kind": kind,
            "text": text,
            "cpu_s": limits.cpu_s,
            "wall_s": limits.wall_s,
            "memory_bytes": limits.memory_mb << 20,
            "processes": limits.processes,
            "disk_bytes": self._disk_bytes,
            "home_read_only": home_read_only,
            "environment": self._environment,
        }
        async with self._turn:
            if self._process is None:
                raise SandboxError("the box is closed; open another")
            try:
                return await self._exchange(request, stdin, limits)
            except OSError as error:
                starved = self._group is not None and self._group.ran_out_of_memory()
                self.close()
                if starved:  # the kernel has ended the box's own processes, too
                    return BoxResult(-9, b"", b"", 0.0, 0.0, limits.memory_mb << 20, "memory")
                raise SandboxError(f"a box ended: {error}") from error
            except BaseException:
                self.close()
                raise

    async def _exchange(
        self, request: dict[str, Any], stdin: bytes, limits: BoxLimits
    ) -> BoxResult:
        """Send one request with its streams and wait for its end, up to its wall limit and 600 s;
        return its result. Raises OSError for a lost box."""
        if self._group is not None:
            # Where the home is read-only, files that a command writes count as its memory.
            files_bytes = 0 if request["home_read_only"] else 2 * self._disk_bytes
            self._group.limit(request["memory_bytes"] + files_bytes, limits.processes)
            self._group.ran_out_of_memory()  # earlier events do not belong to this command
        outputs = _Outputs(limits.output_bytes, self._stop)
        try:
            fd = memory_file("stdin", stdin)
            try:
                rights = array.array("i", [fd, *outputs.writers])
                ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
                self._control.sendmsg([marshal.dumps(request)], ancillary)
            finally:
                os.close(fd)
            outputs.start()
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(limits.wall_s + _SILENCE_S):
                answer = await loop.sock_recv(self._control, _PIECE)
                if not answer:
                    raise ConnectionError("its first process is gone")
            outputs.drain()
        finally:
            outputs.close()
        # From the init, which runs no foreign code
        _, code, cpu_s, wall_s, peak, limit = marshal.loads(answer)  # noqa: S302
        if self._group is not None and self._group.ran_out_of_memory():
            limit = guest.MEMORY
        if outputs.cut and not limit:
            limit = guest.OUTPUT
        stdout, stderr = (bytes(held) for held in outputs.held)
        return BoxResult(code, stdout, stderr, cpu_s, wall_s, peak, limit or None)

    def _stop(self) -> None:
        """Tell the init to end the running command, whose output is too long."""
        with contextlib.suppress(OSError):
            self._control.send(guest.STOP)


class _Outputs:
    """The two pipes of a command, read up to a common limit; `stop` is called when it is passed."""

    def __init__(self, limit: int, stop: Any) -> None:
        """Open the pipes; the caller sends `writers` to the box. `limit` is bytes of both streams
        together."""
        pairs = (os.pipe(), os.pipe())
        self._readers = [reader for reader, _ in pairs]
        self.writers = [writer for _, writer in pairs]
        for fd in self.writers:  # a command of another user may open /dev/stdout
            os.fchmod(fd, 0o666)
        self.held = (bytearray(), bytearray())
        self.cut = False
        self._room, self._stop = limit, stop

    def start(self) -> None:
        """Close this side's copies of the writing ends, and begin to read, in the running event
        loop. Call it once the box has them."""
        for fd in self.writers:
            os.close(fd)
        self.writers = []
        for index, fd in enumerate(self._readers):
            os.set_blocking(fd, False)
            asyncio.get_running_loop().add_reader(fd, self._readable, index)

    def drain(self) -> None:
        """Read the rest, after the end of all the command's processes. The pipes may stay open: a
        socket can hold their other ends."""
        for index, fd in enumerate(self._readers):
            while fd >= 0 and self._readable(index):
                pass

    def _readable(self, index: int) -> bool:
        """Read a piece, keep what the limit leaves room for, and call `stop` when it is passed.
        Return True if there may be more."""
        fd = self._readers[index]
        try:
            piece = os.read(fd, _PIECE)
        except BlockingIOError:
            return False
        if not piece:
            asyncio.get_running_loop().remove_reader(fd)
            os.close(fd)
            self._readers[index] = -1
            return False
        self.held[index].extend(piece[: self._room])
        if len(piece) > self._room and not self.cut:
            self.cut = True
            self._stop()
        self._room -= min(self._room, len(piece))
        return True

    def close(self) -> None:
        """Close what is still open. Idempotent; `held` stays."""
        for fd in self._readers:
            if fd >= 0:
                asyncio.get_running_loop().remove_reader(fd)
                os.close(fd)
        for fd in self.writers:
            os.close(fd)
        self._readers, self.writers = [], []


def open_local(
    isolation: str,
    disk_mb: int,
    environment: Mapping[str, str],
    readable: tuple[str, ...] = (),
    writable: tuple[str, ...] = (),
) -> LocalBox:
    """Open a box at the level `isolation`; `auto` is the strongest that is available. It blocks
    until the box has started; the caller closes it. Raises ConfigError for a `readable` that is no
    directory's full path, IsolationError for another level and one that is not available,
    SandboxError."""
    if isolation not in ("auto", confine.FULL, confine.LANDLOCK):
        raise IsolationError(f"isolation={isolation!r}: a box needs auto, full or landlock")
    for path in readable:
        if not os.path.isdir(path) or os.path.realpath(path) != path or path == "/":
            raise ConfigError(f"readable={path!r}: name an existing directory by its full path")
    arguments = disk_mb, environment, readable, writable
    return strongest(isolation, lambda level: LocalBox(level, *arguments))


async def opened(*arguments: Any) -> LocalBox:
    """Return `open_local(*arguments)`, made in a thread; the caller closes it. If the caller is
    cancelled meanwhile, the box is closed as soon as it is open. Raises as `open_local` does."""
    thread = ThreadPoolExecutor(1)
    making = thread.submit(open_local, *arguments)
    thread.shutdown(wait=False)
    try:
        return await asyncio.wrap_future(making)
    except asyncio.CancelledError:
        making.add_done_callback(_close_made)
        raise


def _close_made(making: Future[LocalBox]) -> None:
    """Close the box that a thread has opened after its caller was cancelled."""
    if not making.cancelled() and making.exception() is None:
        making.result().close()


@cache
def _groups() -> Groups:
    return Groups()
