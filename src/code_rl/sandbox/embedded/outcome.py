"""One test as the host sees it: the descriptors that it gets, and from how its process ended and what it wrote, its execution.

Nothing here knows whether the output is right.
"""

from __future__ import annotations

import os
import signal

from code_rl.sandbox import runner
from code_rl.sandbox.embedded.guest import files, wire
from code_rl.sandbox.executor import Execution, Status

STDERR_KEPT = 64 * 1024
_DETAIL = 300
_MEMORY_ERRORS = (
    "MemoryError",
    "numpy.core._exceptions._ArrayMemoryError",
    "numpy._core._exceptions._ArrayMemoryError",
)


class Streams:
    """Anonymous files in memory, made for one test: its input and what it writes. Both this process and the test have them open.

    A conversation joins stdin and stdout to others: `talk` are the descriptors that take their places.
    """

    def __init__(self, case: bytes, call: bool, fetch: bool, talk: tuple[int, int] | None = None) -> None:
        self._fds: list[int] = []
        self._talk = talk or ()
        self.input = self._memory("input") if call or talk is None else -1
        at = 0
        view = memoryview(case)
        while at < len(case) and self.input >= 0:
            at += os.pwrite(self.input, view[at:], at)
        self.stdout = self._memory("stdout") if talk is None else -1
        self.stderr = self._memory("stderr")
        self.value = self._memory("value") if call else -1
        self.fetched = self._memory("fetched") if fetch else -1
        stdin, stdout = talk if talk is not None else (self.input, self.stdout)
        self.descriptors = [self.input, stdout, self.stderr, self.value] if call else [stdin, stdout, self.stderr]
        if call and talk is not None:
            self.descriptors.append(stdin)

    def sent(self) -> None:
        """The test has its descriptors: close here what only it may keep open."""
        for fd in self._talk:
            os.close(fd)
        self._talk = ()

    def close(self) -> None:
        """Give the descriptors back. Idempotent."""
        self.sent()
        self._release()

    def _release(self) -> None:
        while self._fds:
            os.close(self._fds.pop())

    def _memory(self, name: str) -> int:
        try:
            fd = os.memfd_create(name)
        except OSError:  # no descriptors are left: keep none of those that there were
            self._release()
            raise
        self._fds.append(fd)
        return fd


def execution(job: wire.JobMessage, record: wire.Account, streams: Streams, killed_for_memory: bool) -> Execution:
    """The execution of a test that has ended as `record` says."""
    stdout, too_long = _read(streams.stdout, job.output_bytes)
    stderr, _ = _read(streams.stderr, STDERR_KEPT)
    value, value_size = None, os.fstat(streams.value).st_size if streams.value >= 0 else 0
    fetched, complete = files.unpack(_read(streams.fetched, job.output_bytes * 2)[0]) if job.fetch else ({}, True)
    code, status, detail = record.exit_code, Status.OK, ""
    if too_long or value_size > job.output_bytes:
        status, detail = Status.OUTPUT_LIMIT, f"more than {job.output_bytes} bytes of output"
    elif not complete:
        status, detail = Status.OUTPUT_LIMIT, f"more than {job.output_bytes} bytes in the files to read back"
    elif record.cpu_s > job.cpu_s:
        status, detail = Status.TIME_LIMIT, f"{record.cpu_s:.2f} s of CPU time, limit {job.cpu_s:g} s"
    elif record.cause != wire.RAN:
        status, detail = Status.TIME_LIMIT, f"{record.wall_s:.1f} s of wall time, mostly idle, limit {job.wall_s:g} s"
    elif killed_for_memory or record.peak > job.memory_bytes:
        status, detail = Status.MEMORY_LIMIT, f"more than {job.memory_bytes >> 20} MB"
    elif code != 0 and _last_line(stderr).startswith(_MEMORY_ERRORS):
        status, detail = Status.MEMORY_LIMIT, f"memory was refused, limit {job.memory_bytes >> 20} MB"
    elif code != 0:
        status, detail = Status.RUNTIME_ERROR, _last_line(stderr) or _how(code)
    elif job.fn_name is not None:
        value = runner.decode_value(_read(streams.value, value_size)[0])
        if value is None:
            status = Status.RUNTIME_ERROR
            detail = "the program wrote to the value's channel" if value_size else "the function did not return"
    stopped = status in (Status.OUTPUT_LIMIT, Status.TIME_LIMIT)
    return Execution(
        status=status,
        stdout=stdout,
        value=value,
        stderr=stderr,
        exit_code=None if stopped else code,
        cpu_s=record.cpu_s,
        wall_s=record.wall_s,
        peak_memory_bytes=record.peak,
        detail=detail[:_DETAIL],
        compile_s=record.compile_s,
        files={job.fetch[index]: data for index, data in fetched.items()},
    )


def _read(fd: int, limit: int) -> tuple[bytes, bool]:
    """The first `limit` bytes of a stream, and whether there were more."""
    size = os.fstat(fd).st_size if fd >= 0 else 0
    return files.read_from_start(fd, min(size, limit)), size > limit


def _how(exit_code: int) -> str:
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"killed by signal {-exit_code}"


def _last_line(stderr: bytes) -> str:
    if not stderr:
        return ""
    lines = stderr[-4096:].decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:_DETAIL] if lines else ""
