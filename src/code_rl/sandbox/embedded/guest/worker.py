"""One worker: takes jobs from the host, one at a time, and gives each its own supervisor in fresh namespaces.

A worker never runs or parses anything of a program itself. When its channel closes, it ends, and with it all below it.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import time
from collections import deque
from typing import NoReturn

from code_rl.sandbox.embedded.guest import confine, idleness, kernel, scratch, stragglers, supervisor, wire

COMPILE_CPU_S = 20.0
_TICK_MS = 1000
_CRASH_SIGNALS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)


class Worker:
    """Serves jobs from `channel` until it closes."""

    def __init__(self, channel: socket.socket, wanted: confine.Confinement, base_bytes: int, births: int) -> None:
        self._channel, self._wanted, self._base = channel, wanted, base_bytes
        self._assembler = wire.Assembler()
        self._waiting: deque[wire.JobMessage] = deque()
        self._progress_in, self._progress_out = os.pipe()
        os.set_blocking(self._progress_in, False)
        self._processes = idleness.open_view(wanted.level, births)
        self._log = os.dup(2)

    def serve(self) -> NoReturn:
        """Say hello, then run jobs; never returns."""
        wire.send_blocking(self._channel, wire.pack_record(wire.Record(0, wire.HELLO)))
        while True:
            while not self._waiting:
                self._receive()
            self._run(self._waiting.popleft())

    def _receive(self) -> int | None:
        """Take one datagram. Returns the number of a submission to cancel, if that is what completed."""
        datagram = self._channel.recv(wire.CHUNK + 16)
        if not datagram:
            os._exit(0)
        message = self._assembler.feed(datagram)
        if message is None:
            return None
        request = wire.unpack_request(message)
        if isinstance(request, int):
            return request
        self._waiting.append(request)
        return None

    def _run(self, job: wire.JobMessage) -> None:
        while True:
            status, cancelled = self._attempt(job)
            if cancelled:
                return
            compiled, resume = self._read_progress()
            if status == 0:
                return
            if status == supervisor.RESTART_EXIT and resume is not None and resume > job.start:
                job = job._replace(start=resume)
            elif not compiled and (-status in _CRASH_SIGNALS or self._compile_overrun):
                self._send(
                    wire.Record(
                        job.seq,
                        wire.RESULT,
                        job.start,
                        wire.COMPILE_ERROR,
                        detail=b"the program overwhelms the compiler",
                    )
                )
                return
            else:
                self._send(
                    wire.Record(job.seq, wire.CRASH, job.start, detail=f"supervisor ended with {status}".encode())
                )
                return

    def _attempt(self, job: wire.JobMessage) -> tuple[int, bool]:
        """Run one supervisor to its end. Returns its exit code and whether the host cancelled the job."""
        directory = scratch.make(self._wanted.scratch) if self._wanted.scratch else ""
        pid, pidfd = confine.fork_submission(self._wanted.level)
        if pid == 0:
            try:
                supervisor.Supervisor(
                    job, self._wanted, self._base, self._channel, self._progress_out, directory, self._processes
                ).run()
            except ConnectionError:  # the host has gone: nobody to tell
                os._exit(98)
            except BaseException as error:  # noqa: BLE001 - the host hears of it as a crash
                os.write(self._log, f"supervisor: {error!r}\n".encode())
                os._exit(98)
        self._compile_overrun = False
        cancelled = False
        clock = kernel.process_cpu_clock(pid)
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        poller.register(self._channel, select.POLLIN)
        try:
            while True:
                events = dict(poller.poll(_TICK_MS))
                if pidfd in events:
                    break
                if self._channel.fileno() in events:
                    cancelled = self._receive() == job.seq or cancelled
                if not events and _cpu(clock) > COMPILE_CPU_S + 0.1 * len(job.cases):
                    self._compile_overrun = True
                if cancelled or self._compile_overrun:
                    os.kill(pid, signal.SIGKILL)
                    break
        finally:
            os.close(pidfd)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if directory:
            stragglers.end_orphans()
            scratch.remove(directory)
        if cancelled:
            self._read_progress()
        return status, cancelled

    def _read_progress(self) -> tuple[bool, int | None]:
        """Whether the program compiled, and the case to go on with."""
        data = b""
        try:
            while chunk := os.read(self._progress_in, 4096):
                data += chunk
        except BlockingIOError:
            pass
        at = data.rfind(supervisor.RESTART) if len(data) > 1 else -1
        resume = int.from_bytes(data[2:6], "big") if len(data) >= 6 and at >= 0 else None
        return data[:1] == supervisor.COMPILED, resume

    def _send(self, record: wire.Record) -> None:
        wire.send_blocking(self._channel, wire.pack_record(record))


def start(channel: socket.socket, wanted: confine.Confinement, base_bytes: int, births: int) -> NoReturn:
    """Become a worker; called in a process just forked by the zygote."""
    try:
        kernel.die_with_parent()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if wanted.level != confine.FULL:  # what a submission leaves running comes to us
            kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1, step="prctl(PR_SET_CHILD_SUBREAPER)")
        gc.disable()
        Worker(channel, wanted, base_bytes, births).serve()
    except BaseException as error:  # noqa: BLE001 - the host sees the channel close
        os.write(2, f"worker: {error!r}\n".encode())
    os._exit(97)


def _cpu(clock: int) -> float:
    try:
        return time.clock_gettime(clock)
    except OSError:
        return 0.0
