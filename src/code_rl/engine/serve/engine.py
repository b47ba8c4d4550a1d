"""The embedded engine behind the server: one thread per base model does all work on its weights.

Training operations wait in lanes, one per model in training, and run in the order of their lane.
Waiting samples that share weights are sampled as one batch. A round takes one batch for every
snapshot with waiting samples, then one operation of every lane, so no client can block the others.
While nothing else waits, samples of the same weights join the running batch.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
from tinker import types

from code_rl.engine.local.decode import MAX_ROWS
from code_rl.engine.local.learner import check_adam
from code_rl.engine.local.lora import LoraSettings
from code_rl.engine.local.models import Model, load_model
from code_rl.engine.local.passes import read_datums, read_pass
from code_rl.engine.local.sampling import EmbeddedSamplingClient, Request, Sampler, Snapshot, answer
from code_rl.engine.local.state import read_state
from code_rl.engine.local.training import EmbeddedTrainingClient
from code_rl.engine.local.worker import Inline, run_into, start_thread
from code_rl.util.errors import BackendError, ConfigError

T = TypeVar("T")
QUIET_S = 0.015
LINGER_S = 0.1
_Job = tuple[Callable[[], Any], "Future[Any]"]
_Key = tuple[int, int]
LossConfig = Mapping[str, float | str] | None


@dataclass(frozen=True)
class ModelFacts:
    """Facts about a loaded base model; `context` is in tokens."""

    family: str
    tokenizer: str
    context: int


@dataclass
class Load:
    """An engine's counters and the sizes of its queues; `idle_s` is the time since it last had
    work, in seconds."""

    batches: int
    operations_waiting: int
    samples_waiting: int
    models: int
    snapshots: int
    idle_s: float


@dataclass(frozen=True, eq=False)
class _Sample:
    weights: Path | None
    key: _Key | None
    request: Request
    order: int


class EmbeddedEngine:
    """One base model and its thread, the adapters in training on it, and the `max_snapshots`
    weights that were last sampled from.

    Calls return at once; those for one adapter (`run` is its id) run in order. Futures raise
    CodeRLError; `loaded` raises ConfigError if the model cannot be loaded.
    """

    def __init__(
        self, name: str, device: torch.device, dtype: torch.dtype, max_snapshots: int
    ) -> None:
        self.name = name
        self._max_snapshots = max_snapshots
        self._batches = 0
        self._last_used = time.monotonic()
        self._lanes: dict[str, deque[_Job]] = {}
        self._samples: deque[_Sample] = deque()
        self._arrived, self._closed = 0.0, False
        self._changed = threading.Condition()
        self._sampler = Sampler()
        self._clients: dict[str, EmbeddedTrainingClient] = {}
        self._snapshots: OrderedDict[_Key, tuple[Path, Snapshot]] = OrderedDict()

        def load() -> ModelFacts:
            self._base = load_model(name, device, dtype)
            arch = self._base.weights.arch
            return ModelFacts(arch.family, self._base.source, arch.max_context)

        self.loaded = self.submit("", load)
        self._thread = start_thread(f"engine-{name}", self._work, self.close)

    def create(
        self, run: str, lora: LoraSettings | None, file: Path | None = None, optimizer: bool = False
    ) -> Future[LoraSettings]:
        """Create a new adapter, or (`lora` None) load the adapter that `save` wrote to `file`, with
        its optimizer if `optimizer` is True."""

        def work() -> LoraSettings:
            self._clients[run] = client = self._client(run, lora, file, optimizer)
            return client.settings

        return self.submit(run, work)

    def _client(
        self, run: str, lora: LoraSettings | None, file: Path | None, optimizer: bool = False
    ) -> EmbeddedTrainingClient:
        if file is None:
            assert lora is not None
            return EmbeddedTrainingClient(self._model(), lora, self._sampler, run, None, Inline())
        saved = read_state(file)
        settings = LoraSettings.read(saved.meta)
        client = EmbeddedTrainingClient(self._model(), settings, self._sampler, run, None, Inline())
        client.restore(saved, optimizer)
        return client

    def check_pass(self, data: Sequence[types.Datum], loss_fn: str, config: LossConfig) -> None:
        """Raise InputError for a loss or data that the engine would refuse."""
        read_datums(data, read_pass(loss_fn, config).loss, self._model().weights.arch)

    def run_pass(
        self,
        run: str,
        data: Sequence[types.Datum],
        loss_fn: str,
        config: LossConfig,
        backward: bool,
    ) -> Future[types.ForwardBackwardOutput]:
        """Return losses and log-probabilities. `backward` also adds the gradient to the accumulated
        one."""
        return self._on(
            run,
            lambda c: (c.forward_backward if backward else c.forward)(
                data, loss_fn, config
            ).result(),
        )

    def refuse(self, run: str, error: Exception, backward: bool) -> Future[None]:
        """Queue the failure of a refused pass: the future raises `error`. If the pass was backward,
        the next step fails too."""

        def work(client: EmbeddedTrainingClient) -> NoReturn:
            if backward:
                client.spoil(error)
            raise error

        return self._on(run, work)

    def optim_step(self, run: str, params: object) -> Future[types.OptimStepResponse]:
        """Take one step of AdamW. Raises ConfigError at once."""
        adam = check_adam(params)
        return self._on(run, lambda client: client.optim_step(adam).result())

    def save(
        self, run: str, file: Path, training: bool, overwrite: bool, keep: bool = False
    ) -> Future[None]:
        """Write the adapter, and for `training` its optimizer and gradient. `keep` keeps the
        weights in memory for sampling."""

        def work(client: EmbeddedTrainingClient) -> None:
            client.write(file, training, overwrite)
            if keep:
                self._remember(file, _key(file), client.snapshot())

        return self._on(run, work)

    def load(self, run: str, file: Path, optimizer: bool) -> Future[None]:
        """Replace the adapter by a saved one."""
        return self._on(run, lambda client: client.restore(read_state(file), optimizer))

    def drop(self, run: str) -> Future[None]:
        """Forget an adapter, and snapshots whose files were deleted."""

        def work() -> None:
            self._clients.pop(run, None)
            for key in [key for key, (file, _) in self._snapshots.items() if not file.exists()]:
                del self._snapshots[key]

        return self.submit(run, work)

    def sample(
        self, weights: Path | None, request: types.SampleRequest, order: int
    ) -> Future[types.SampleResponse]:
        """Queue a sample. With the client's request numbers as `order`, a batch does not depend on
        the order of arrival.

        Raises FileNotFoundError if the weights were deleted.
        """
        model = self._model()
        checked = EmbeddedSamplingClient(self._sampler, Snapshot(model, model.weights)).request(
            request.prompt,
            request.num_samples,
            request.sampling_params,
            bool(request.prompt_logprobs),
            request.prompt_logprobs_last_n,
            request.topk_prompt_logprobs,
        )
        sample = _Sample(weights, _key(weights) if weights is not None else None, checked, order)
        with self._changed:
            self._refuse_if_closed()
            self._samples.append(sample)
            self._arrived = time.monotonic()
            self._changed.notify()
        return checked.future

    def submit(self, lane: str, operation: Callable[[], T]) -> Future[T]:
        """Queue an operation behind the others of its lane."""
        future: Future[T] = Future()
        with self._changed:
            self._refuse_if_closed()
            self._lanes.setdefault(lane, deque()).append((operation, future))
            self._changed.notify()
        return future

    def load_now(self) -> Load:
        """Return the current load: counts of queued, held and finished work."""
        with self._changed:
            waiting, samples = sum(map(len, self._lanes.values())), len(self._samples)
        return Load(
            batches=self._batches,
            operations_waiting=waiting,
            samples_waiting=samples,
            models=len(self._clients),
            snapshots=len(self._snapshots),
            idle_s=0.0 if waiting or samples else time.monotonic() - self._last_used,
        )

    def close(self) -> None:
        """Accept no more work; queued work still runs."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _model(self) -> Model:
        self.loaded.result()
        return self._base

    def _on(self, run: str, operation: Callable[[EmbeddedTrainingClient], T]) -> Future[T]:
        def work() -> T:
            client = self._clients.get(run)
            if client is None:
                raise ConfigError(f"model {run} was not created, or was unloaded")
            return operation(client)

        return self.submit(run, work)

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise BackendError(f"the engine of {self.name!r} is closed")

    def _remember(self, file: Path, key: _Key, snapshot: Snapshot) -> None:
        self._snapshots[key] = file, snapshot
        self._snapshots.move_to_end(key)
        while len(self._snapshots) > self._max_snapshots:
            self._snapshots.popitem(last=False)

    def _snapshot(self, sample: _Sample) -> Snapshot:
        """Return the weights, read from disk if they are not in memory."""
        model = self._model()
        if sample.weights is None or sample.key is None:
            return Snapshot(model, model.for_sampling)
        known = self._snapshots.get(sample.key)
        found = known[1] if known is not None else self._client("", None, sample.weights).snapshot()
        self._remember(sample.weights, sample.key, found)
        return found

    def _work(self) -> None:
        while self._wait():
            batches = self._take_samples()
            for number, batch in enumerate(batches, 1):
                self._sample_batch(batch, last=number == len(batches))
            with self._changed:
                taken = [lane.popleft() for lane in self._lanes.values()]
                self._lanes = {name: lane for name, lane in self._lanes.items() if lane}
            for operation, future in taken:
                run_into(future, operation)
            self._last_used = time.monotonic()

    def _wait(self) -> bool:
        """Wait for work. Return False if there is none and none can come."""
        with self._changed:
            idle = not (self._lanes or self._samples)
            while not (self._lanes or self._samples):
                if self._closed:
                    return False
                self._changed.wait()
            # A client sends a batch request by request: wait briefly until no more arrive.
            end = time.monotonic() + LINGER_S
            while (
                idle
                and not self._lanes
                and (left := min(end, self._arrived + QUIET_S) - time.monotonic()) > 0
            ):
                self._changed.wait(left)
        return True

    def _take_samples(self) -> list[list[_Sample]]:
        """Return a batch for each snapshot with waiting samples: as many requests as fit, the
        oldest first."""
        with self._changed:
            batches: dict[object, list[_Sample]] = {}
            rows: dict[object, int] = {}
            left: deque[_Sample] = deque()
            for sample in self._samples:
                if (
                    sample.key not in batches
                    or rows[sample.key] + sample.request.samples <= MAX_ROWS
                ):
                    batches.setdefault(sample.key, []).append(sample)
                    rows[sample.key] = rows.get(sample.key, 0) + sample.request.samples
                else:
                    left.append(sample)
            self._samples = left
            return [sorted(batch, key=lambda sample: sample.order) for batch in batches.values()]

    def _join(self, key: _Key | None, room: int) -> list[_Sample]:
        """Return waiting samples of the weights `key`, at most `room` completions. Return none
        while anything else waits."""
        with self._changed:
            joining: list[_Sample] = []
            if room > 0 and not self._lanes and all(sample.key == key for sample in self._samples):
                while self._samples and (room := room - self._samples[0].request.samples) >= 0:
                    joining.append(self._samples.popleft())
            return sorted(joining, key=lambda sample: sample.order)

    def _sample_batch(self, batch: Sequence[_Sample], last: bool) -> None:
        live = _begun(batch)
        if not live:
            return
        try:
            snapshot = self._snapshot(live[0])
        # Whoever waits for the futures gets the exception
        except BaseException as error:  # noqa: BLE001
            for sample in live:
                sample.request.future.set_exception(error)
            return
        self._batches += 1

        def more() -> list[Request]:
            if not (last and self._samples):
                return []
            live[:] = [sample for sample in live if not sample.request.future.done()]
            joining = _begun(
                self._join(batch[0].key, MAX_ROWS - sum(sample.request.samples for sample in live))
            )
            live.extend(joining)
            return [replace(sample.request, snapshot=snapshot) for sample in joining]

        answer([replace(sample.request, snapshot=snapshot) for sample in live], more)


def _begun(samples: Sequence[_Sample]) -> list[_Sample]:
    """Return the requests that were not cancelled while waiting."""
    return [sample for sample in samples if sample.request.future.set_running_or_notify_cancel()]


def _key(file: Path) -> _Key:
    """Return an identity of weights. Links to one checkpoint have the same, and share weights and
    batches; a file that replaces the checkpoint has another."""
    found = file.stat()
    return found.st_ino, found.st_mtime_ns
