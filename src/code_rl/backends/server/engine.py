"""One thread per base model, where everything that touches its weights happens.

Training operations wait in lanes, one per model in training, and run in the order of their lane. Samples wait together: those
that share weights are sampled as one batch. A round takes one batch for every snapshot that samples wait for, and then one
operation of every lane that has any, so that nobody can hold up the others.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from tinker import types

from code_rl.backends.embedded.ending import start_thread
from code_rl.backends.embedded.models import Model
from code_rl.backends.embedded.sampling import MAX_ROWS, Request, Snapshot, answer
from code_rl.backends.embedded.worker import run_into
from code_rl.errors import BackendError

T = TypeVar("T")
QUIET_S = 0.015
LINGER_S = 0.1


class Source(Protocol):
    """Where a sample's weights come from. Sources of one `key` have the same weights, and their samples share batches.

    `snapshot` is called on the engine's thread and may read the weights from the disk.
    """

    @property
    def key(self) -> object:
        """What the weights are known by."""
        ...

    def snapshot(self) -> Snapshot:
        """The weights."""
        ...


@dataclass(frozen=True, eq=False)
class _Sample:
    source: Source
    request: Request
    order: int
    key: object


@dataclass
class Counts:
    """What an engine has done, for the metrics."""

    batches: int = 0
    batched_requests: int = 0
    sampled_tokens: int = 0
    busy_s: float = 0.0


@dataclass
class _Queue:
    lanes: dict[str, deque[tuple[Callable[[], Any], Future[Any]]]] = field(default_factory=dict)
    samples: deque[_Sample] = field(default_factory=deque)
    arrived: float = 0.0
    closed: bool = False

    @property
    def empty(self) -> bool:
        return not self.lanes and not self.samples


class Engine:
    """A base model and its thread. `loaded` resolves to the model, or raises ConfigError when it cannot be loaded."""

    def __init__(self, name: str, load: Callable[[], Model]) -> None:
        self.name = name
        self.counts = Counts()
        self.last_used = time.monotonic()
        self._queue = _Queue()
        self._changed = threading.Condition()
        self.loaded: Future[Model] = self.submit("", load)
        self._thread = start_thread(f"engine-{name}", self._work, self.close)

    def submit(self, lane: str, operation: Callable[[], T]) -> Future[T]:
        """Queue an operation behind those of its lane."""
        future: Future[T] = Future()
        with self._changed:
            self._refuse_if_closed()
            self._queue.lanes.setdefault(lane, deque()).append((operation, future))
            self._changed.notify()
        return future

    def sample(self, source: Source, request: Request, order: int) -> Future[types.SampleResponse]:
        """Queue a sample; it runs with the others that wait for the same source, in the batch's place that `order` gives.

        With the client's own numbers as `order`, a batch is the same however its requests overtook each other on the way.
        """
        sample = _Sample(source, request, order, source.key)
        with self._changed:
            self._refuse_if_closed()
            self._queue.samples.append(sample)
            self._queue.arrived = time.monotonic()
            self._changed.notify()
        return request.future

    @property
    def waiting(self) -> tuple[int, int]:
        """Queued training operations and queued samples."""
        with self._changed:
            return sum(map(len, self._queue.lanes.values())), len(self._queue.samples)

    def close(self) -> None:
        """Accept nothing more; what is queued still runs."""
        with self._changed:
            self._queue.closed = True
            self._changed.notify()

    def join(self, timeout: float) -> bool:
        """Wait for the thread's end; false when it did not come."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _refuse_if_closed(self) -> None:
        if self._queue.closed:
            raise BackendError(f"the engine of {self.name!r} is closed")

    def _work(self) -> None:
        while self._wait():
            start = time.monotonic()
            for batch in self._take_samples():
                self._sample_batch(batch)
            for operation, future in self._take_operations():
                run_into(future, operation)
            self.last_used = time.monotonic()
            self.counts.busy_s += self.last_used - start

    def _wait(self) -> bool:
        """Wait for work; false when there is none and none can come."""
        with self._changed:
            idle = self._queue.empty
            while self._queue.empty:
                if self._queue.closed:
                    return False
                self._changed.wait()
            if idle and not self._queue.lanes:
                self._linger()
        return True

    def _linger(self) -> None:
        """A client sends a batch request by request: wait until no more arrive, for a moment at most."""
        end = time.monotonic() + LINGER_S
        while (now := time.monotonic()) < min(end, self._queue.arrived + QUIET_S) and not self._queue.lanes:
            self._changed.wait(min(end, self._queue.arrived + QUIET_S) - now)

    def _take_samples(self) -> list[list[_Sample]]:
        """A batch of every source that samples wait for: as many of its requests as fit, the oldest first."""
        with self._changed:
            batches: dict[object, list[_Sample]] = {}
            rows: dict[object, int] = {}
            left: deque[_Sample] = deque()
            for sample in self._queue.samples:
                if sample.key not in batches or rows[sample.key] + sample.request.samples <= MAX_ROWS:
                    batches.setdefault(sample.key, []).append(sample)
                    rows[sample.key] = rows.get(sample.key, 0) + sample.request.samples
                else:
                    left.append(sample)
            self._queue.samples = left
            return [sorted(batch, key=lambda sample: sample.order) for batch in batches.values()]

    def _take_operations(self) -> list[tuple[Callable[[], Any], Future[Any]]]:
        with self._changed:
            taken = [lane.popleft() for lane in self._queue.lanes.values()]
            self._queue.lanes = {name: lane for name, lane in self._queue.lanes.items() if lane}
            return taken

    def _sample_batch(self, batch: Sequence[_Sample]) -> None:
        live = [sample for sample in batch if sample.request.future.set_running_or_notify_cancel()]
        if not live:
            return
        try:
            snapshot = live[0].source.snapshot()
        except BaseException as error:  # noqa: BLE001 - it is handed to whoever waits for the futures
            for sample in live:
                sample.request.future.set_exception(error)
            return
        answer([replace(sample.request, snapshot=snapshot) for sample in live])
        self.counts.batches += 1
        self.counts.batched_requests += len(live)
        for sample in live:
            if sample.request.future.exception() is None:
                sequences = sample.request.future.result().sequences
                self.counts.sampled_tokens += sum(len(s.tokens_np) for s in sequences if s.tokens_np is not None)
