"""One test's process: its descriptors, its limits, and the way from the fork to the program."""

from __future__ import annotations

import math
import os
import resource
import socket
import sys
from typing import NoReturn

from code_rl.sandbox import runner
from code_rl.sandbox.embedded.guest import cycle, files, kernel, wire
from code_rl.sandbox.embedded.guest.confinement import confine

VALUE_FD, _FAULT_FD = 3, 4
RESERVED = (VALUE_FD, _FAULT_FD)
"""Descriptors that the zygote keeps free of anything of its own."""
BROKEN_EXIT = 99
THREAD_STACK = 8 << 20
_DATA_RESERVE, _ADDRESS_RESERVE = 1 << 30, 8 << 30
"""Beyond the memory limit: what may be writable, for stacks of threads and buffers that are never touched; and address space, for the room that
the C library reserves for each thread. What is touched is judged by peak memory."""


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
    ) -> None:
        """Takes on the limits of the tests, in the supervisor: make it when nothing is left to be done that they forbid."""
        self._job, self._channel, self._confinement, self._program = job, channel, confinement, program
        self._fault_seen, fault = os.pipe()
        os.set_blocking(self._fault_seen, False)
        place(fault, _FAULT_FD)
        self._fetched = -1
        largest = max(job.file_bytes, job.output_bytes + 1)
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
        # A backstop: the watch stops a test at its limit, the kernel's own counts in whole seconds.
        seconds = math.ceil(1.5 * job.cpu_s + 2)
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

    def take_fetched(self) -> None:
        """In the supervisor, before the fork: the descriptor where files are read back to, which no test gets."""
        self._fetched = wire.receive_file(self._channel)[1]

    def make_ready(self, first: First) -> None:
        """In the supervisor, when it opens no descriptors any more: see to it that the process just forked finds `first` as it has to be."""
        self._first = first
        for fd in first.places:
            os.close(fd)
        given = first.expect(self._channel.fileno(), self._cpu)
        if given != list(first.places):
            raise RuntimeError(f"a test's descriptors would be {given}")

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

    def child(self) -> NoReturn:
        """In the process just forked: drop all that is ours, become the program."""
        arguments = b""
        try:
            if not self._first.steps.take():
                if self._first.only_rehearses():
                    os._exit(0)
                raise ConnectionError("the descriptors of a test cannot be had")
            if not self._first.closes:
                arguments = self._enter()
        except BaseException as error:  # noqa: BLE001 - reported by `close`
            os.write(_FAULT_FD, repr(error).encode())
            os._exit(BROKEN_EXIT)
        if self._job.files:
            sys.path.insert(0, os.getcwd())
        if self._job.fn_name is None:
            runner.run_script(self._program)
        runner.run_call(self._program, arguments, VALUE_FD)

    def _enter(self) -> bytes:
        """What is left to be done where it takes more than a few calls. Returns the input of a call."""
        self._confinement.enter()
        if self._job.fn_name is None:
            os.closerange(VALUE_FD, 1 << 20)
            return b""
        arguments = files.read_from_start(0, os.fstat(0).st_size)
        place(os.open("/dev/null", os.O_RDONLY), 0)
        os.set_inheritable(VALUE_FD, False)
        os.closerange(_FAULT_FD, 1 << 20)
        return arguments


class First:
    """What every test of a kind does first: hear signals, take its descriptors, be limited, drop what is ours."""

    def __init__(self, call: bool, dropping: tuple[cycle.Step, ...], account: kernel.Account) -> None:
        """Made in the worker, so that no supervisor has to. `dropping`: how capabilities are given up; where that takes more, it is left to be done.

        Where `account` says that this is a rehearsal, nothing is done.
        """
        self._account = account
        self.places = (0, 1, 2, VALUE_FD) if call else (0, 1, 2)
        """What is to be free before the fork: the kernel gives the lowest numbers that are, so that nothing has to be moved."""
        self._count = len(self.places)
        self._descriptors = cycle.Descriptors(wire.CASE_DATAGRAM, self._count)
        self._cpu = cycle.two_numbers()
        self.closes = bool(dropping) and not call
        self.steps = cycle.Once(
            cycle.equal(account.cause, bytes([wire.RAN]), 1),
            cycle.block_no_signal(),
            *self._descriptors.taking,
            cycle.limit(resource.RLIMIT_CPU, self._cpu),
            *dropping,
            *((cycle.close_from(VALUE_FD),) if self.closes else ()),
        )

    def only_rehearses(self) -> bool:
        """Whether the test is to end at once."""
        return self._account.view[wire.CAUSE_AT] != wire.RAN

    def expect(self, channel: int, cpu: tuple[int, int]) -> list[int]:
        """Before the fork. Returns the numbers that the descriptors will have."""
        numbers = [os.dup(channel) for _ in range(self._count)]
        for fd in numbers:
            os.close(fd)
        self._descriptors.expect(channel, numbers)
        self._cpu[:] = cpu
        return numbers


def memory(job: wire.JobMessage, base_bytes: int) -> tuple[int, int]:
    """How much may be writable, and how much address space may be in use. `base_bytes`: what an interpreter has before its program asks for anything."""
    if job.strict:
        return base_bytes + job.memory_bytes, base_bytes + job.memory_bytes
    stacks, most = job.processes * THREAD_STACK, base_bytes + job.memory_bytes
    return most + max(stacks, _DATA_RESERVE), most + max(stacks, _ADDRESS_RESERVE)


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
