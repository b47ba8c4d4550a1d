"""One test's process: its descriptors, its limits, and the way from the fork to the program."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import math
import os
import resource
import socket
import sys
from typing import Any, NoReturn

from code_rl.sandbox import runner
from code_rl.sandbox.embedded.guest import confine, files, kernel, wire

VALUE_FD, _FAULT_FD = 3, 4
RESERVED = (VALUE_FD, _FAULT_FD)
"""Descriptors that the zygote keeps free of anything of its own."""
BROKEN_EXIT = 99
_DESCRIPTORS = 256
_OWN_PROCESSES = 3
"""The worker, its keeper and the supervisor, which the kernel counts with the tests."""
_DATA_RESERVE, _ADDRESS_RESERVE = 1 << 30, 8 << 30
"""Beyond the memory limit: what may be writable, for stacks of threads and buffers that are never touched; and address space, for the room that
the C library reserves for each thread. What is touched is judged by peak memory."""

fork_hooks: list[dict[str, Any]] = []
"""What the standard modules asked to have done at forks; programs get it back."""


class TestRun:
    """How each test of a submission starts.

    Whatever can be done once for all tests is done in the supervisor, and inherited: in a process just forked every first touch copies a page.
    """

    def __init__(
        self,
        job: wire.JobMessage,
        channel: socket.socket,
        confinement: confine.TestConfinement,
        program: runner.Program,
        base_bytes: int,
        rehearses: bool,
    ) -> None:
        """Takes on the limits of the tests, in the supervisor: make it when nothing is left to be done that they forbid.

        `rehearses`: the first test ends at once.
        """
        self._job, self._channel, self._confinement, self._program = job, channel, confinement, program
        self._hooks = fork_hooks
        self._fault_seen, fault = os.pipe()
        os.set_blocking(self._fault_seen, False)
        place(fault, _FAULT_FD)
        self._first_closed = VALUE_FD if job.fn_name is None else _FAULT_FD
        self._fetched = -1
        self._rehearsal = one_byte() if rehearses else -1
        largest = max(job.file_bytes, job.output_bytes + 1)
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
        # A backstop: the watch stops a test at its limit, the kernel's own counts in whole seconds.
        seconds = math.ceil(1.5 * job.cpu_s + 2)
        self._cpu = (seconds, seconds + 1)
        resource.setrlimit(resource.RLIMIT_NOFILE, (_DESCRIPTORS, _DESCRIPTORS))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for kind, most in zip((resource.RLIMIT_DATA, resource.RLIMIT_AS), memory(job, base_bytes), strict=True):
            hard = resource.getrlimit(kind)[1]
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(kind, (most, most))
        if confinement.counts_processes:
            most = job.processes + _OWN_PROCESSES
            resource.setrlimit(resource.RLIMIT_NPROC, (most, most))

    @classmethod
    def rehearsed(cls, confinement: confine.TestConfinement, channel: socket.socket) -> TestRun:
        """One whose `shed` does nothing."""
        run = cls.__new__(cls)
        run._channel, run._confinement, run._hooks, run._first_closed = channel, confinement, [], 1 << 19
        run._cpu = resource.getrlimit(resource.RLIMIT_CPU)
        return run

    def take_fetched(self) -> None:
        """In the supervisor, before the fork: the descriptor where files are read back to, which no test gets."""
        self._fetched = wire.receive_file(self._channel)[1]

    def take(self, descriptors: list[int]) -> int:
        """In the process just forked: put these where the program expects them. Returns the input of a call, or -1.

        They are: its input, stdout, stderr; for a call the value's and perhaps its stdin.
        """
        if self._job.fn_name is None:
            for fd, at in zip(descriptors, (0, 1, 2), strict=True):
                place(fd, at)
            return -1
        given, out, err, value, *talk = descriptors
        place(talk[0] if talk else os.open("/dev/null", os.O_RDONLY), 0)
        place(out, 1)
        place(err, 2)
        place(value, VALUE_FD)
        return given

    def close(self, account: kernel.Account) -> None:
        """In the supervisor, when the test is over: read files back.

        Raises RuntimeError if the process that ended so never became the program: that is our failure, not a result.
        """
        if self._job.fetch:
            files.collect(self._job.fetch, self._fetched, self._job.output_bytes)
        if account.exit_code() == BROKEN_EXIT:
            try:
                raise RuntimeError(os.read(self._fault_seen, 4096).decode("utf-8", "replace"))
            except BlockingIOError:
                return

    def shed(self) -> list[int]:
        """In the process just forked: drop all that is ours. Returns the test's descriptors, as they came."""
        _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
        descriptors = wire.receive_case(self._channel)
        self._confinement.enter()
        resource.setrlimit(resource.RLIMIT_CPU, self._cpu)
        for hook in self._hooks:
            os.register_at_fork(**hook)
        return descriptors

    def child(self) -> NoReturn:
        """In the process just forked: drop all that is ours, become the program."""
        if self._rehearsal >= 0 and os.read(self._rehearsal, 1):
            os._exit(0)
        try:
            given = self.take(self.shed())
            arguments = files.read_from_start(given, os.fstat(given).st_size) if given >= 0 else b""
            os.closerange(self._first_closed, 1 << 20)
        except BaseException as error:  # noqa: BLE001 - reported by `close`
            os.write(_FAULT_FD, repr(error).encode())
            os._exit(BROKEN_EXIT)
        if self._job.files:
            sys.path.insert(0, os.getcwd())
        if self._job.fn_name is None:
            runner.run_script(self._program)
        runner.run_call(self._program, arguments, VALUE_FD)


def memory(job: wire.JobMessage, base_bytes: int) -> tuple[int, int]:
    """How much may be writable, and how much address space may be in use. `base_bytes`: what an interpreter has before its program asks for anything."""
    if job.strict:
        return base_bytes + job.memory_bytes, base_bytes + job.memory_bytes
    return base_bytes + job.memory_bytes + _DATA_RESERVE, base_bytes + job.memory_bytes + _ADDRESS_RESERVE


def place(fd: int, at: int) -> None:
    """Move a descriptor to a fixed place."""
    if fd != at:
        os.dup2(fd, at, inheritable=at <= 2)
        os.close(fd)


def one_byte() -> int:
    """A descriptor from which one byte can be read, by whichever process is the first."""
    reader, writer = os.pipe()
    os.write(writer, b".")
    os.close(writer)
    return reader
