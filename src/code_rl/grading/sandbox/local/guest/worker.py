"""One worker: it gives each submission, one at a time, a supervisor in new namespaces.

A worker never receives a byte of a job. When its control socket closes, the worker ends together
with all processes below it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
from typing import NoReturn

from code_rl.grading.sandbox.local.guest import files, kernel, supervisor, watch, wire
from code_rl.grading.sandbox.local.guest.confinement import confine

FAILED_EXIT = 98


class Worker:
    """Serves submissions until `control` closes."""

    def __init__(
        self, control: socket.socket, wanted: confine.Confinement, base_bytes: int, directory: str
    ) -> None:
        """Open what `serve` needs. `base_bytes` is the use of an interpreter before its program;
        `directory` is where working directories are made if /tmp is not private."""
        self._control, self._wanted, self._directory = control, wanted, directory
        self._log = os.dup(2)
        try:
            tree = watch.open_tree(wanted.level)
        except OSError:  # then only the CPU time of the test's first process is known
            tree = watch.Tree(-1, wanted.level)
        self._tools = supervisor.Supervisor(wanted, base_bytes, tree)

    def serve(self) -> NoReturn:
        """Run submissions, one at a time, until `control` closes; then remove the directory and end
        this process. Never returns."""
        select.select([self._control], [], [])
        if self._wanted.level == confine.FULL:
            # The host has now put this process into its control group: make that group the root
            # that programs see.
            with contextlib.suppress(OSError):
                kernel.unshare(kernel.NEWCGROUP, "unshare(CLONE_NEWCGROUP)")
        clone = kernel.Clone(confine.submission_namespaces(self._wanted.level))
        self._run_one(clone, real=False)  # for processes that the first round missed
        while self._control.recv(1, socket.MSG_PEEK):  # the child takes the datagram
            self._run_one(clone, real=True)
        if self._directory:
            files.remove_directory(self._directory)
        os._exit(0)

    def _run_one(self, clone: kernel.Clone, *, real: bool) -> None:
        """Run one submission to its end and tell the host how its supervisor ended. With `real`
        False only fork. The few objects made here are freed, so that every submission begins with
        the same memory."""
        pid = clone.fork()
        if pid == 0:
            self._begin() if real else os._exit(0)
        ended = wire.ENDED.pack(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        if real:
            self._control.send(ended)

    def _begin(self) -> NoReturn:
        """In the forked process: take the channel of the submission, and supervise it. Never
        returns."""
        word, descriptors, _, _ = socket.recv_fds(self._control, 1, 1)
        if word != wire.START:
            os._exit(0)
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, descriptors[0])
        if self._wanted.level == confine.FULL:
            self._control.close()
            kernel.die_with_parent()
            self._supervise(channel, "")
        self._attend(channel)

    def _attend(self, channel: socket.socket) -> NoReturn:
        """Watch a submission's supervisor where no namespace contains its processes, and leave
        nothing behind. Exit with the supervisor's status; never returns.

        The supervisor is killed when the host closes the submission's channel, or when the worker
        is closed or dead. This process outlives all three, so that it can clean up.
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
            end.register(other, 0)  # poll always reports a closed other end
        end.register(os.pidfd_open(os.getppid()), select.POLLIN)
        end.poll()
        os.kill(pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        supervisor.end_orphans()
        files.remove_directory(directory, supervisor.SOURCE)
        os._exit(status if status >= 0 else wire.KILLED - status)

    def _supervise(self, channel: socket.socket, directory: str) -> NoReturn:
        """Run tests until the host is gone; any other end is logged on stderr, with exit code 98.
        Never returns."""
        try:
            self._tools.supervise(channel, directory)
        except (ConnectionError, BrokenPipeError):  # the host is gone, or has no more tests
            os._exit(0)
        # The host sees a lost supervisor
        except BaseException as error:  # noqa: BLE001
            os.write(self._log, f"supervisor: {error!r}\n".encode())
        os._exit(FAILED_EXIT)


def start(
    control: socket.socket, wanted: confine.Confinement, base_bytes: int, directory: str
) -> NoReturn:
    """Become a worker, in a process just forked by the zygote. Never returns: it ends with 0 when
    the host is gone, with 97, and a line on stderr, after an error."""
    try:
        kernel.die_with_parent()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        gc.disable()
        Worker(control, wanted, base_bytes, directory).serve()
    except ConnectionError:  # the host is gone
        os._exit(0)
    except BaseException as error:  # noqa: BLE001 - the host sees the channel close
        os.write(2, f"worker: {error!r}\n".encode())
    os._exit(97)
