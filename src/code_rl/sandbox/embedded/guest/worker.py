"""One worker: gives each submission an attendant, one at a time; the attendant gives it a supervisor in fresh namespaces.

A worker never receives a byte of a job, and between two submissions it runs no bytecode (`cycle`): an attendant finds the same memory whatever ran before. It hears from the
host, forks the supervisor and hands it the channel of the submission, waits for its end, and ends. When the control socket closes, the worker ends, and with it all below it.
"""

from __future__ import annotations

import array
import contextlib
import gc
import os
import select
import signal
import socket
from typing import NoReturn

from code_rl.sandbox.embedded.guest import (
    confine,
    cycle,
    kernel,
    scratch,
    stragglers,
    supervisor,
    testrun,
    tree,
    watch,
    wire,
)

FAILED_EXIT = 98


class Worker:
    """Serves submissions until `control` closes."""

    def __init__(
        self, control: socket.socket, wanted: confine.Confinement, base_bytes: int, load: tree.Load, directory: str
    ) -> None:
        """`directory`: where working directories are made, if /tmp is not private."""
        self._control, self._wanted, self._load = control, wanted, load
        self._directory = directory
        self._tree = tree.open_tree(wanted.level)
        self._log = os.dup(2)
        self._rehearsal = testrun.one_byte()
        self._tools = supervisor.Supervisor(wanted, base_bytes, self._tree.sees)
        """Made once, before any fork; each supervisor is a fork of it."""

    def serve(self) -> NoReturn:
        """Run submissions; never returns."""
        select.select([self._control], [], [])
        if self._wanted.level == confine.FULL:
            # By now the host has put this process into its control group: make that group the root of what programs see of groups.
            with contextlib.suppress(OSError):
                kernel.unshare(kernel.NEWCGROUP, "unshare(CLONE_NEWCGROUP)")
        counter = supervisor.open_counter(self._wanted)
        ended = kernel.Account()
        well = kernel.Account()
        well.view[wire.INFO_AT + 8] = os.CLD_EXITED
        if cycle.repeat(
            cycle.something_to_read(self._control.fileno()),
            *((cycle.write(counter, b"1"),) if counter >= 0 else ()),
            *cycle.fork(),
            cycle.waitid(os.P_ALL, 0, os.WEXITED, ended.info, None),
            cycle.equal(ended.how, well.how, 4),
            cycle.equal(ended.status, well.status, 4),
            cycle.wipe(ended.info, wire.USAGE_AT - wire.INFO_AT),
        ):
            self._attend()
        os._exit(97)

    def _attend(self) -> NoReturn:
        """In the process just forked: hear what the host says. A submission is seen to its end."""
        if os.read(self._rehearsal, 1):
            os._exit(0)
        kernel.die_with_parent()
        if self._wanted.level != confine.FULL:  # what a submission leaves running comes to us
            kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1, step="prctl(PR_SET_CHILD_SUBREAPER)")
        word, ancillary, _, _ = self._control.recvmsg(1, socket.CMSG_SPACE(4))
        if word == wire.START:
            descriptors = array.array("i")
            descriptors.frombytes(ancillary[0][2][:4])
            self._run(socket.socket(fileno=descriptors[0]))
        os._exit(0)

    def _run(self, channel: socket.socket) -> None:
        """One submission, from its supervisor's start to its end, which the host is told of."""
        directory = scratch.make(self._directory) if self._directory else ""
        (limits, watched), (marked, marks) = os.pipe(), os.pipe()
        pid, pidfd = confine.fork_submission(self._wanted.level)
        if pid == 0:
            self._control.close()
            self._supervise(channel, directory, watched, marks)
        watching = self._wait(channel, pid, pidfd, limits)
        if watching:
            os.kill(watching, signal.SIGKILL)
            os.waitpid(watching, 0)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if directory:
            stragglers.end_orphans()
            scratch.remove(directory, supervisor.SOURCE)
        os.close(marks)
        progress = wire.COMPILED if os.read(marked, 1) else wire.UNCOMPILED
        with contextlib.suppress(OSError):  # the host may have lost interest
            channel.send(wire.pack(wire.Record(wire.END, progress, status)))

    def _supervise(self, channel: socket.socket, directory: str, watched: int, marks: int) -> NoReturn:
        try:
            self._tools.supervise(channel, directory, watched, marks)
        except (ConnectionError, BrokenPipeError):  # the host has gone, or has no more tests
            os._exit(0)
        except BaseException as error:  # noqa: BLE001 - the host hears of it as a supervisor that was lost
            os.write(self._log, f"supervisor: {error!r}\n".encode())
        os._exit(FAILED_EXIT)

    def _wait(self, channel: socket.socket, pid: int, pidfd: int, limits: int) -> int:
        """Return when the supervisor has ended, however it comes: the process id of its watch, or 0."""
        poller = select.poll()
        for fd in (pidfd, self._control.fileno(), limits):
            poller.register(fd, select.POLLIN)
        watching = 0
        while True:
            ready = dict(poller.poll())
            if pidfd in ready:
                return watching
            if limits in ready:
                poller.unregister(limits)
                watching = self._begin_watch(pid, limits, channel)
            if self._control.fileno() in ready:
                word = self._control.recv(1, socket.MSG_PEEK)
                if word != wire.START:
                    self._control.recv(1)
                    os.kill(pid, signal.SIGKILL)
                    return watching
                poller.unregister(
                    self._control
                )  # the next submission: for the next attendant; this one is about to end

    def _begin_watch(self, supervisor: int, limits: int, channel: socket.socket) -> int:
        watching = os.fork()
        if watching == 0:
            try:
                kernel.die_with_parent()
                watch.watch(supervisor, limits, channel, self._tree, self._load)
            except BaseException as error:  # noqa: BLE001 - without a watch a test would have no end
                os.write(self._log, f"watch: {error!r}\n".encode())
                os.kill(supervisor, signal.SIGKILL)
            os._exit(FAILED_EXIT)
        return watching


def start(
    control: socket.socket, wanted: confine.Confinement, base_bytes: int, load: tree.Load, directory: str
) -> NoReturn:
    """Become a worker; called in a process just forked by the zygote."""
    try:
        kernel.die_with_parent()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        gc.disable()
        Worker(control, wanted, base_bytes, load, directory).serve()
    except BaseException as error:  # noqa: BLE001 - the host sees the channel close
        os.write(2, f"worker: {error!r}\n".encode())
    os._exit(97)
