"""One worker: gives each submission, one at a time, a supervisor in fresh namespaces.

A worker never receives a byte of a job, and between two submissions it runs no bytecode (`cycle`): a supervisor finds the same memory whatever ran before. What has to be
done beside it, its keeper does: a process that nothing is forked from. When the control socket closes, the worker ends, and with it all below it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
from typing import NoReturn

from code_rl.sandbox.embedded.guest import cycle, files, kernel, supervisor, testrun, watch, wire
from code_rl.sandbox.embedded.guest.confinement import confine
from code_rl.sandbox.starvation import Load

FAILED_EXIT = 98
_BEFORE_SUPERVISOR = b"2"
"""The number of the keeper's process; the worker's is 1."""


class Worker:
    """Serves submissions until `control` closes."""

    def __init__(
        self, control: socket.socket, wanted: confine.Confinement, base_bytes: int, load: Load, directory: str
    ) -> None:
        """`directory`: where working directories are made, if /tmp is not private."""
        self._control, self._wanted, self._load = control, wanted, load
        self._directory = directory
        self._tree = watch.open_tree(wanted.level)
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
        self._keeper, theirs = wire.pair()
        if kernel.clone3(0, end=0)[0] == 0:  # no child that the loop below would wait for
            self._keep(theirs)
        theirs.close()
        counter = supervisor.open_counter(self._wanted)
        ended = kernel.Account()
        cycle.Rounds(
            cycle.something_to_read(self._control.fileno()),
            *((cycle.write(counter, _BEFORE_SUPERVISOR),) if counter >= 0 else ()),
            *cycle.clone(confine.submission_namespaces(self._wanted.level)),
            cycle.waitid(os.P_ALL, 0, os.WEXITED, ended.info, None),
            cycle.send(self._control.fileno(), ended.place, wire.ACCOUNT_BYTES),
            cycle.wipe(ended.info, wire.USAGE_AT - wire.INFO_AT),
        ).run()
        if cycle.cloned():
            self._begin()
        os._exit(97)

    def _begin(self) -> NoReturn:
        """In the process just forked: take the channel of the submission, and see to it."""
        if os.read(self._rehearsal, 1):
            os._exit(0)
        word, descriptors, _, _ = socket.recv_fds(self._control, 1, 1)
        if word != wire.START:
            os._exit(0)
        channel = socket.socket(fileno=descriptors[0])
        if self._wanted.level == confine.FULL:
            self._control.close()
            kernel.die_with_parent()
            self._supervise(channel, "")
        self._attend(channel)

    def _attend(self, channel: socket.socket) -> NoReturn:
        """Where no namespace holds what a submission starts: stand over its supervisor, and leave nothing behind. Ends as the supervisor does.

        The supervisor is ended when the host wants nothing more of it, or of the worker; that this process ends with neither is how nothing is left.
        """
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1, step="prctl(PR_SET_CHILD_SUBREAPER)")
        directory = files.make_directory(self._directory)
        pid = kernel.fork()
        if pid == 0:
            self._control.close()
            self._supervise(channel, directory)
        end = select.poll()
        end.register(os.pidfd_open(pid), select.POLLIN)
        for other in (channel, self._control):
            end.register(other, 0)  # that there is nobody at its other end is always told
        end.poll()
        os.kill(pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        supervisor.end_orphans()
        files.remove_directory(directory, supervisor.SOURCE)
        os._exit(status if status >= 0 else wire.KILLED - status)

    def _supervise(self, channel: socket.socket, directory: str) -> NoReturn:
        try:
            self._tools.supervise(channel, directory, self._keeper)
        except (ConnectionError, BrokenPipeError):  # the host has gone, or has no more tests
            os._exit(0)
        except BaseException as error:  # noqa: BLE001 - the host hears of it as a supervisor that was lost
            os.write(self._log, f"supervisor: {error!r}\n".encode())
        os._exit(FAILED_EXIT)

    def _keep(self, asked: socket.socket) -> NoReturn:
        """Be the keeper: watch the tests that take longer, clear up when the worker has ended."""
        for ours in (self._control, self._keeper):
            ours.close()
        try:
            watch.serve(asked, self._tree, self._load)
            if self._directory:
                files.remove_directory(self._directory)
        except BaseException as error:  # noqa: BLE001 - without a watch a test would have no end
            os.write(self._log, f"watch: {error!r}\n".encode())
            os.kill(os.getppid(), signal.SIGKILL)
        os._exit(0)


def start(control: socket.socket, wanted: confine.Confinement, base_bytes: int, load: Load, directory: str) -> NoReturn:
    """Become a worker; called in a process just forked by the zygote."""
    try:
        kernel.die_with_parent()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        gc.disable()
        Worker(control, wanted, base_bytes, load, directory).serve()
    except ConnectionError:  # the host has gone
        os._exit(0)
    except BaseException as error:  # noqa: BLE001 - the host sees the channel close
        os.write(2, f"worker: {error!r}\n".encode())
    os._exit(97)
