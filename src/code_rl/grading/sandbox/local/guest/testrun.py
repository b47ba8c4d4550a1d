"""One test's process: its descriptors, its limits, and the steps from the fork to the program."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import contextlib
import math
import os
import resource
import socket
import struct
import sys
from typing import NoReturn

import code_rl.grading.sandbox.runner as runner
from code_rl.grading.sandbox.local.guest import files, wire
from code_rl.grading.sandbox.local.guest.confinement import confine

VALUE_FD, _FAULT_FD = 3, 4
RESERVED = (VALUE_FD, _FAULT_FD)
"""Descriptor numbers that the zygote keeps free for tests."""
BROKEN_EXIT = 99
_ROOM = socket.CMSG_SPACE(4 * 4)
THREAD_STACK = 8 << 20
_DATA_RESERVE, _ADDRESS_RESERVE = 1 << 30, 8 << 30
"""Memory beyond the limit: writable memory for thread stacks and untouched buffers, and address
space that the C library reserves for each thread. The limit applies to peak memory."""


class TestRun:
    """The start of each test of a submission. Work that tests can share is done in the supervisor
    and inherited."""

    def __init__(
        self,
        job: wire.JobMessage,
        channel: socket.socket,
        confinement: confine.TestConfinement,
        program: runner.Program,
        base_bytes: int,
    ) -> None:
        """Apply the tests' limits to the supervisor, for good. So this must be its last step: the
        limits would forbid others."""
        self._job, self._channel, self._confinement, self._program = (
            job,
            channel,
            confinement,
            program,
        )
        self._fault_seen, fault = os.pipe()
        os.set_blocking(self._fault_seen, False)
        place(fault, _FAULT_FD)
        self._fetched = -1
        largest = max(job.file_bytes, job.output_bytes + 1)
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
        # A backstop: the supervisor stops a test at its limit; the kernel counts whole seconds, and
        # by ticks, on a busy machine far more than was used.
        seconds = math.ceil(2 * job.cpu_s + 2)
        self._cpu = (seconds, seconds + 1)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        kinds = (resource.RLIMIT_NOFILE, resource.RLIMIT_DATA, resource.RLIMIT_AS)
        for kind, most in zip(kinds, (job.open_files, *memory(job, base_bytes)), strict=True):
            hard = resource.getrlimit(kind)[1]
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(kind, (most, most))
        if confinement.counts_processes:
            most = job.processes + confinement.own_processes
            resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
        self._is_script, self._has_files = job.fn_name is None, bool(job.files)
        self._places = [0, 1, 2] if self._is_script else [0, 1, 2, VALUE_FD]
        self._places_told = struct.pack(f"={len(self._places)}i", *self._places)

    def take_fetched(self) -> None:
        """Take, in the supervisor before the fork, the descriptor for files that are read back. No
        test gets it. Raises ConnectionError if the host is gone."""
        self._fetched = wire.receive_file(self._channel)[1]

    def make_ready(self) -> None:
        """Close descriptors 0 to 2 (and 3 for a call), so that the test receives its own under
        these numbers. The supervisor opens no more descriptors afterwards."""
        for fd in self._places:
            os.close(fd)

    def forget(self) -> None:
        """Close the descriptor that is this process's own."""
        os.close(self._fault_seen)

    def close(self) -> None:
        """Read files back, in the supervisor, after the test.

        Raises RuntimeError if the process never became the program: that is a failure of the
        sandbox, not a result.
        """
        if self._job.fetch:
            files.collect(self._job.fetch, self._fetched, self._job.output_bytes)
        with contextlib.suppress(BlockingIOError):
            raise RuntimeError(os.read(self._fault_seen, 4096).decode("utf-8", "replace"))

    def child(self) -> NoReturn:
        """In the forked process: drop the supervisor's resources and become the program. Never
        returns. A failure before the program begins is written for `close`, with exit code 99."""
        try:
            arguments = self._enter()
        except BaseException as error:  # noqa: BLE001 - reported by `close`
            os.write(_FAULT_FD, repr(error).encode())
            os._exit(BROKEN_EXIT)
        if self._has_files:
            sys.path.insert(0, os.getcwd())
        if self._is_script:
            runner.run_script(self._program)
        runner.run_call(self._program, arguments, VALUE_FD)

    def _enter(self) -> bytes:
        """Take the test's descriptors and limits, and close all others. Return the input of a call
        (none for a script). Raises ConnectionError if the host sent something else, OSError."""
        # The signal module's own function takes three times as long
        _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
        ancillary = self._channel.recvmsg(1, _ROOM)[1]
        if not ancillary or ancillary[0][2] != self._places_told:
            raise ConnectionError(f"the descriptors of a test came as {ancillary}")
        resource.setrlimit(resource.RLIMIT_CPU, self._cpu)
        self._confinement.enter()
        if self._is_script:
            os.closerange(VALUE_FD, 1 << 20)
            return b""
        arguments = files.read_from_start(0, os.fstat(0).st_size)
        place(os.open("/dev/null", os.O_RDONLY), 0)
        os.set_inheritable(VALUE_FD, False)
        os.closerange(_FAULT_FD, 1 << 20)
        return arguments


def memory(job: wire.JobMessage, base_bytes: int) -> tuple[int, int]:
    """Return the writable memory and the address space allowed, in bytes, with room for thread
    stacks beyond the job's limit unless it is `strict`. `base_bytes` is the use of an interpreter
    before its program."""
    if job.strict:
        return base_bytes + job.memory_bytes, base_bytes + job.memory_bytes
    stacks, most = job.processes * THREAD_STACK, base_bytes + job.memory_bytes
    return most + max(stacks, _DATA_RESERVE), most + max(stacks, _ADDRESS_RESERVE)


def place(fd: int, at: int) -> None:
    """Move a descriptor to a fixed number, and close what was there. Standard streams are inherited
    by exec, others are not."""
    if fd != at:
        os.dup2(fd, at, inheritable=at <= 2)
        os.close(fd)
