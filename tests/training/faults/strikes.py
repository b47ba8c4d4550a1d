"""Faults that strike a training at a chosen stage of its second step. Armed in a forked child, before the run begins.

Lasting damage stays until the process ends; the test mends it before the run is resumed.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import resource
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

STAGES = ("sampling", "scoring", "training", "saving", "logging", "evaluating")
STEP = 1
"""The step whose stages are struck."""
AHEAD = ("sampling", "scoring")
"""Stages that a later step may be in while an earlier one trains."""
FILLER = "filler"

_evaluating = contextvars.ContextVar("evaluating", default=False)


class Armed:
    """Waits for its stage, then strikes once. `down` holds the parts that are broken from then on."""

    def __init__(self, fault: str, stage: str, more: dict[str, Any]) -> None:
        self.strike, self.stage, self.more = FAULTS[fault], stage, more
        self.sampled, self.trained = -1, -1
        self.struck, self.down = False, set[str]()

    def at(self, stage: str) -> None:
        """A stage begins."""
        step = self.sampled if stage in AHEAD else self.trained
        if stage == self.stage and step >= self.more.get("step", STEP) and not self.struck:
            self.struck = True
            if "marker" in self.more:
                Path(self.more["marker"]).touch()
            self.strike(self)
        if "backend" in self.down and stage in ("sampling", "training", "saving", "evaluating"):
            from code_rl.util.errors import BackendError

            raise BackendError("the server said that it has lost the session")


Strike = Callable[[Armed], None]


def disk_full(armed: Armed) -> None:
    """The filesystem of the run directory has no byte left."""
    with contextlib.suppress(OSError), open(Path(armed.more["folder"]) / FILLER, "wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))


def directory_moved(armed: Armed) -> None:
    """The run directory is not there any more."""
    os.rename(armed.more["log_path"], armed.more["log_path"] + ".moved")


def no_descriptors(armed: Armed) -> None:
    """Every further descriptor is refused."""
    del armed
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def no_memory(armed: Armed) -> None:
    """The stage itself runs out of memory."""
    raise MemoryError(f"while {armed.stage}")


def memory_limit(armed: Armed) -> None:
    """Nothing more can be mapped."""
    del armed
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize(), resource.RLIM_INFINITY))


def cancelled(armed: Armed) -> None:
    """A service cancels the request."""
    raise asyncio.CancelledError


def sends(number: signal.Signals) -> Strike:
    """The process gets this signal."""
    return lambda _: os.kill(os.getpid(), number)


def breaks(part: str) -> Strike:
    """This part fails from here on: `backend`, `answers` (a back end that is well and never answers), `sandbox`."""
    return lambda armed: armed.down.add(part)


def jumps(days: float) -> Strike:
    """The wall clock jumps."""
    return lambda _: _jump(days * 86400.0)


def _jump(seconds: float) -> None:
    real = time.time
    time.time = lambda: real() + seconds


def sandbox_away(armed: Armed) -> None:
    """The sandbox fails every submission for a while."""
    import threading

    armed.down.add("sandbox")
    threading.Timer(1.0, lambda: armed.down.discard("sandbox")).start()


def sandbox_killed(armed: Armed) -> None:
    """Every process of the sandbox dies."""
    for pid in descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def data_gone(armed: Armed) -> None:
    """The file with the problems is removed."""
    os.rename(armed.more["dataset"], armed.more["dataset"] + ".moved")


FAULTS: dict[str, Strike] = {
    "disk full": disk_full,
    "run directory moved": directory_moved,
    "no descriptors left": no_descriptors,
    "out of memory": no_memory,
    "memory limit": memory_limit,
    "request cancelled": cancelled,
    "SIGKILL": sends(signal.SIGKILL),
    "SIGTERM": sends(signal.SIGTERM),
    "Ctrl-C": sends(signal.SIGINT),
    "clock forward": jumps(400),
    "clock back": jumps(-400),
    "back end gone": breaks("backend"),
    "back end hung": breaks("answers"),
    "sandbox away": sandbox_away,
    "sandbox gone": breaks("sandbox"),
    "sandbox killed": sandbox_killed,
    "data file gone": data_gone,
}


def descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                parent = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(name))
    found, ahead = [], [pid]
    while ahead:
        more = children.get(ahead.pop(), [])
        found += more
        ahead += more
    return found


def arm(fault: str, stage: str, more: dict[str, Any]) -> None:
    """Make `fault` strike when `stage` of the second step begins."""
    from code_rl.grading.sandbox.server import EmbeddedSandbox
    from code_rl.policy.completion_log import InFlight
    from code_rl.training.console import Console
    from code_rl.util.files import JsonLines
    from tests.engine.local.embedded_models import client_types
    from tinker_utils.log import MultiplexLogger

    armed = Armed(fault, stage, more)
    group_log, append, log_metrics = InFlight.group_log, JsonLines.append, MultiplexLogger.log_metrics
    evaluating, attempt = Console.evaluating, EmbeddedSandbox._attempt

    def sampling(self: Any, step: int, *rest: Any) -> Any:
        if not _evaluating.get():
            armed.sampled = step
        return group_log(self, step, *rest)

    def training(self: Any, record: Any) -> None:
        if "policy_step" in record:  # a group, which is trained on next
            armed.trained = record["step"]
        append(self, record)

    @contextlib.contextmanager
    def evaluated(self: Any, *args: Any) -> Iterator[Any]:
        _evaluating.set(True)
        try:
            with evaluating(self, *args) as judged:
                yield judged
        finally:
            _evaluating.set(False)

    def logged(self: Any, *args: Any, **kwargs: Any) -> None:
        armed.at("logging")
        log_metrics(self, *args, **kwargs)

    async def attempted(self: Any, job: Any, alone: bool) -> AsyncIterator[Any]:
        from code_rl.util.errors import SandboxError

        if not _evaluating.get():
            armed.at("scoring")
        if "sandbox" in armed.down:
            raise SandboxError("nobody answers")
        async for execution in attempt(self, job, alone):
            yield execution

    InFlight.group_log, JsonLines.append = sampling, training  # type: ignore[method-assign, assignment]
    Console.evaluating = evaluated  # type: ignore[method-assign, assignment]
    MultiplexLogger.log_metrics = logged  # type: ignore[method-assign]
    EmbeddedSandbox._attempt = attempted  # type: ignore[method-assign]
    trainer, sampler = client_types()
    _around(armed, sampler, "sample", lambda: "evaluating" if _evaluating.get() else "sampling")
    _around(armed, trainer, "forward_backward", lambda: "training")
    _around(armed, trainer, "optim_step", lambda: "training")
    _around(armed, trainer, "save_state", lambda: "saving")


def _around(armed: Armed, owner: type, name: str, stage: Callable[[], str]) -> None:
    """Let a request's stage begin before it is made; a hung back end never answers it."""
    inner = getattr(owner, name)

    def asked(self: Any, *args: Any, **kwargs: Any) -> Any:
        armed.at(stage())
        return _never() if "answers" in armed.down else inner(self, *args, **kwargs)

    setattr(owner, name, asked)


def _never() -> Any:
    """A request of a real remote client, whose server is well and does not answer it."""
    import httpx

    from code_rl.engine import place_of
    from code_rl.engine.remote import Link, RemoteFuture

    httpx.get = lambda *_, **__: httpx.Response(200)
    return RemoteFuture(Future(), Link(place_of("http://server"), 0.05), lambda value: value)
