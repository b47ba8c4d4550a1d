"""One test on the host's side: its descriptors, and its execution, made from its exit report and
its output.

Nothing here knows whether the output is right.
"""

from __future__ import annotations

import os

from code_rl.grading.sandbox import ending, runner
from code_rl.grading.sandbox.executor import Execution, Status
from code_rl.grading.sandbox.local.guest import files, wire

STDERR_KEPT = 64 * 1024


class Streams:
    """Anonymous in-memory files for one test's input and output, open in this process and in the
    test."""

    def __init__(self, case: bytes, call: bool, fetch: bool) -> None:
        """Open the files of one test: `case` is its input, `call` makes one for the value, `fetch`
        one for files read back. `descriptors` are those that the test gets, in this order; `close`
        is the caller's. Raises OSError, with none left open."""
        self._fds: list[int] = []
        self.input = self._memory("input", case)
        self.stdout = self._memory("stdout")
        self.stderr = self._memory("stderr")
        self.value = self._memory("value") if call else -1
        self.fetched = self._memory("fetched") if fetch else -1
        self.descriptors = [self.input, self.stdout, self.stderr, *([self.value] if call else [])]

    def close(self) -> None:
        """Close the descriptors. Idempotent."""
        while self._fds:
            os.close(self._fds.pop())

    def _memory(self, name: str, content: bytes = b"") -> int:
        """Return the descriptor of a new in-memory file, which `close` closes. Raises OSError,
        after closing the others."""
        try:
            fd = memory_file(name, content)
        except OSError:  # no descriptors are left: close those that were opened
            self.close()
            raise
        self._fds.append(fd)
        return fd


def memory_file(name: str, content: bytes = b"") -> int:
    """Return a descriptor of an anonymous in-memory file with this content, at its start; the
    caller closes it. Raises OSError."""
    fd, at = os.memfd_create(name), 0
    try:
        while at < len(content):
            at += os.pwrite(fd, memoryview(content)[at:] if at else content, at)
    except OSError:
        os.close(fd)
        raise
    return fd


def execution(
    job: wire.JobMessage, record: wire.ExitReport, streams: Streams, killed_for_memory: bool
) -> Execution:
    """Return the execution of a test that ended as `record` says. Outputs are read from `streams`,
    which stay open. A value counts only if the status is OK."""
    stdout, too_long = _read(streams.stdout, job.output_bytes)
    stderr, _ = _read(streams.stderr, STDERR_KEPT)
    value_size = os.fstat(streams.value).st_size if streams.value >= 0 else 0
    fetched, complete = (
        files.unpack(_read(streams.fetched, job.output_bytes * 2)[0]) if job.fetch else ({}, True)
    )
    overflow, value, unanswered = "", None, ""
    if too_long or value_size > job.output_bytes:
        overflow = f"{job.output_bytes} bytes of output"
    elif not complete:
        overflow = f"{job.output_bytes} bytes in the files to read back"
    elif job.fn_name is not None and record.exit_code == 0:
        value = runner.decode_value(_read(streams.value, value_size)[0])
        if value is None:
            unanswered = (
                "the program wrote to the value's channel"
                if value_size
                else "the function did not return"
            )
    seen = ending.Ended(
        record.exit_code,
        record.cpu_s,
        record.wall_s,
        record.peak,
        stderr,
        over_time=record.cause != wire.RAN,
        killed_for_memory=killed_for_memory,
        overflow=overflow,
        unanswered=unanswered,
    )
    word, detail = ending.status_of(seen, ending.Allowed(job.cpu_s, job.wall_s, job.memory_bytes))
    status = Status(word)
    return Execution(
        status=status,
        stdout=stdout,
        value=value if status is Status.OK else None,
        stderr=stderr,
        exit_code=None if status in (Status.OUTPUT_LIMIT, Status.TIME_LIMIT) else record.exit_code,
        cpu_s=record.cpu_s,
        wall_s=record.wall_s,
        peak_memory_bytes=record.peak,
        detail=detail,
        compile_s=record.compile_s,
        files={job.fetch[index]: data for index, data in fetched.items()},
    )


def _read(fd: int, limit: int) -> tuple[bytes, bool]:
    """Return the first `limit` bytes of a stream, and True if there were more. A descriptor of -1
    is empty."""
    size = os.fstat(fd).st_size if fd >= 0 else 0
    return files.read_from_start(fd, min(size, limit)), size > limit
