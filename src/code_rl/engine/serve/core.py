"""State shared by the calls: model names, sessions, runs, sampling sessions, promises, and weights
in memory. The embedded engine does the work."""

from __future__ import annotations

import asyncio
import threading
import time
import tomllib
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tinker.lib.public_interfaces.api_future import AwaitableConcurrentFuture

from code_rl.engine.local.sampling import EmbeddedSamplingClient
from code_rl.engine.local.service import EmbeddedService
from code_rl.engine.local.training import EmbeddedTrainingClient
from code_rl.engine.names import locate, source_of
from code_rl.util.errors import CodeRLError, ConfigError
from code_rl.util.redaction import print_exception

from .promises import Promise, Promises, ServiceLimits, session_of, unchanged
from .store import RunRecord, StateStore, now
from .wire import Refusal, bad, busy, gone, unknown

MAX_HELD = 4096
TICK_S = 1.0
# Longer than the SDK retries a request.
GAP_S = 360.0
ABANDONED_S = 24 * 3600.0
Queued = AwaitableConcurrentFuture[Any]
Start = Callable[[EmbeddedTrainingClient], Queued]
Weights = tuple[str, int, int]
"""A base model, with the identity of a file of weights on it, or zeros."""


def read_models(path: str | None) -> dict[str, str]:
    """Read the map from hosted names to local models in a TOML file's table `models`. None: no
    names. Raises ConfigError, also for a local model that does not exist."""
    if path is None:
        return {}
    try:
        data = tomllib.loads(Path(path).expanduser().read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"models={path} cannot be read as TOML: {error}") from error
    table = data.get("models")
    if set(data) != {"models"} or not isinstance(table, dict):
        raise ConfigError(
            f'models={path} must hold one table [models] with lines "name" = "local name or path"'
        )
    for asked, local in table.items():
        if not isinstance(local, str) or not local:
            raise ConfigError(f"models={path}: {asked!r} must be a string, not {local!r}")
        try:
            source_of(local)
        except ConfigError as error:
            raise ConfigError(f"models: {asked!r} stands for {local!r}: {error}") from error
    return dict(table)


@dataclass
class Session:
    """One `ServiceClient`. `vanished` means that it has been silent for long and its samples were
    dropped; it may come back."""

    session_id: str
    last_seen: float = field(default_factory=time.monotonic)
    vanished: bool = False
    finished: bool = False


@dataclass(eq=False)
class ServedRun:
    """A model in training. Requests run in the order of their numbers; number 0 creates the model.
    `record` and `client` are None until that succeeds, and later requests are held until then."""

    run_id: str
    local: str
    next_seq: int = 1
    record: RunRecord | None = None
    client: EmbeddedTrainingClient | None = None
    held: dict[int, tuple[Promise, Start, Callable[[Any], object]]] = field(default_factory=dict)
    held_since: float = 0.0
    queued: int = 0


@dataclass(eq=False)
class SamplingSession:
    """Weights to sample from: those in `file`, or the base model's (None). `model_path` is the
    checkpoint that they were made from, if any."""

    sampler_id: str
    base_model: str
    local: str
    model_path: str | None
    file: Path | None
    queued: int = 0
    last_used: float = field(default_factory=time.monotonic)


class Core:
    """The server's state. It belongs to the event loop; `service` has threads of its own."""

    def __init__(
        self,
        store: StateStore,
        models: Mapping[str, str],
        limits: ServiceLimits,
        service: EmbeddedService,
    ) -> None:
        """`models` maps hosted names to local ones. The caller closes `store` and `service`.
        Nothing is loaded."""
        self.store = store
        self.models = models
        self.limits = limits
        self.service = service
        self.promises = Promises(limits)
        self._keeping = threading.Lock()
        self.weights: OrderedDict[Weights, Future[EmbeddedSamplingClient]] = OrderedDict()
        """The `max_samplers` weights that were last sampled from."""
        self.last_used: dict[str, float] = {}
        """When each base model in memory last had work."""
        self.sessions: dict[str, Session] = {}
        self.runs: dict[str, ServedRun] = {}
        self.samplers: dict[str, SamplingSession] = {}
        self.draining = False
        self._looked_at = time.monotonic()

    def local_name(self, asked: str) -> str:
        """Return the local model of a name, which may be the name itself. Nothing is converted or
        looked up. Raises ConfigError if it can be no model."""
        local = self.models.get(asked, asked)
        locate(local)
        return local

    def create_session(self, record: dict[str, Any]) -> str:
        """Begin a session, write its record, and return its id."""
        session_id = str(uuid.uuid4())
        self.store.write_session(session_id, {**record, "created": now(), "finished": None})
        self.sessions[session_id] = Session(session_id)
        return session_id

    def session(self, member_id: str) -> Session:
        """Return the session of this id, or of a run or sampling session, and mark it alive. Raises
        a Refusal if it is unknown or finished."""
        session_id = session_of(member_id)
        found = self.sessions.get(session_id)
        if found is None:
            record = self.store.read_session(session_id)
            found = Session(session_id, finished=record.get("finished") is not None)
            self.sessions[session_id] = found
        if found.finished:
            raise gone(f"session {session_id} has finished")
        found.last_seen = time.monotonic()
        found.vanished = False
        return found

    def run(self, run_id: str) -> ServedRun:
        """Return a run in memory, and mark its session alive. Raises a Refusal if it is unknown, or
        no longer in memory."""
        found = self.runs.get(run_id)
        if found is None:
            if self.store.read_run(run_id) is None:
                raise unknown(f"model {run_id!r}")
            self.session(run_id)
            raise gone(
                f"model {run_id} is no longer loaded: it was unloaded, its client showed no life, "
                "or the server stopped; create a training client from its last checkpoint"
            )
        self.session(run_id)
        return found

    def begin(
        self,
        run_id: str,
        asked: str,
        metadata: dict[str, Any] | None,
        kind: str,
        fingerprint: bytes,
        create: Callable[[str], AwaitableConcurrentFuture[EmbeddedTrainingClient]],
        answer: object,
    ) -> Promise:
        """Promise a new run, whose record is written once it exists. A copy of an earlier request
        gets the same promise. If `max_models` are in training, the oldest one of a vanished client
        is unloaded.

        `asked` is the requested name of the base model, and `create` gets the local one. Raises a
        Refusal if the run exists, metadata are not texts, or there is no room, and ConfigError for
        an unknown model.
        """
        promise = Promise(f"{run_id}:0", kind, fingerprint, 0)
        if (seen := self.seen(promise)) is not None:
            return seen
        if run_id in self.runs or self.store.read_run(run_id) is not None:
            raise gone(f"model {run_id} was created before, and the answer is no longer kept")
        if metadata is not None and not all(isinstance(value, str) for value in metadata.values()):
            raise bad("user_metadata must hold texts only")
        local = self.local_name(asked)
        self.promises.check_room(0)
        if len(self.runs) >= self.limits.max_models:
            # The oldest model of a vanished client makes room.
            vanished = {s.session_id for s in self.sessions.values() if s.vanished}
            lost = [r for r in self.runs.values() if session_of(r.run_id) in vanished]
            if not lost:
                raise busy(f"{len(self.runs)} models are in training, the limit (max_models)")
            self.unload(lost[0])
        created = create(local).future()
        run = self.runs[run_id] = ServedRun(run_id, local)
        self.promises.add(promise)

        def then(client: EmbeddedTrainingClient) -> object:
            """Write the new run's record, on the engine's thread, and return the answer."""
            model, rank = client.model, client.settings.rank
            family = model.weights.arch.family
            made = RunRecord(run_id, asked, local, family, model.source, rank, now(), metadata)
            self.store.write_run(made)
            run.record = made
            return answer

        def on_end() -> None:
            """Start the requests that waited for the model, or fail them and forget the run if it
            could not be made."""
            if run.record is None:
                self.runs.pop(run_id, None)
                self.drop_held(run, bad(f"model {run_id} could not be created"))
            else:
                run.client = created.result()
                self._start_ready(run)

        self.follow(run, promise, created, then, on_end)
        return promise

    def accept(
        self,
        run: ServedRun,
        seq: int,
        kind: str,
        fingerprint: bytes,
        start: Start,
        then: Callable[[Any], object] = unchanged,
        size: int = 0,
    ) -> Promise:
        """Promise the result of an operation on a run's model. Operations start in the order of
        their numbers `seq`; one that is early is held. The same number and request give the same
        promise.

        `start` submits it to the engine, and `then`, on the engine's thread, turns its result into
        the answer. `size` is in bytes. Raises a Refusal if the number was used for something else
        or long ago, or is far ahead, or the queues are full.
        """
        promise = Promise(f"{run.run_id}:{seq}", kind, fingerprint, size)
        if (seen := self.seen(promise)) is not None:
            return seen
        if seq < run.next_seq:
            raise gone(
                f"request {seq} of model {run.run_id} was answered before, and its result is no "
                "longer kept"
            )
        if seq >= run.next_seq + MAX_HELD:
            raise bad(
                f"seq_id={seq} of model {run.run_id} is far ahead of {run.next_seq}, which is "
                "expected next"
            )
        # The request that all others wait for is always accepted, or the queue could never empty.
        if seq != run.next_seq or run.queued:
            self.promises.check_room(size)
        self.promises.add(promise)
        run.held[seq] = promise, start, then
        run.held_since = time.monotonic()
        self._start_ready(run)
        return promise

    def refuse(
        self,
        run: ServedRun,
        seq: int,
        kind: str,
        fingerprint: bytes,
        error: Exception,
        backward: bool = False,
    ) -> None:
        """Let a refused request take its turn, as `accept` does. If it was a `backward` pass, the
        next step fails too. Nobody asks for its result: its answer is the refusal."""
        promise = self.accept(
            run, seq, kind, fingerprint, lambda client: client.refuse(error, backward)
        )
        promise.fetched = time.monotonic()

    def seen(self, asked: Promise) -> Promise | None:
        """Return the promise that an earlier copy of this request made, or None for a new one.
        Raises a Refusal if the id was used for another request, and for a new one while shutting
        down."""
        found = self.promises.seen(asked)
        if found is None:
            self.refuse_when_draining()
        return found

    def _start_ready(self, run: ServedRun) -> None:
        """Start the held requests whose turn has come, in the order of their numbers. An error of a
        start becomes the request's result."""
        while run.client is not None and (ready := run.held.pop(run.next_seq, None)) is not None:
            promise, start, then = ready
            run.next_seq += 1
            try:
                future = start(run.client).future()
            except CodeRLError as error:
                future = Future()
                future.set_exception(error)
            self.follow(run, promise, future, then)

    def follow(
        self,
        owner: ServedRun | SamplingSession,
        promise: Promise,
        future: Future[Any],
        then: Callable[[Any], object] = unchanged,
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        """Fulfill a promise from an engine's future, with `then` of its result. Until it ends it
        counts in its owner's queue; `at_end` is called then, on the event loop."""
        owner.queued += 1

        def on_end() -> None:
            """Take the promise out of its owner's queue."""
            owner.queued -= 1
            self.last_used[owner.local] = time.monotonic()
            at_end()

        promise.on_end = on_end
        self.promises.follow(promise, future, then)

    def drop_held(self, run: ServedRun, error: Exception) -> None:
        """Fail the requests that wait for an earlier one, with `error`. Those that have started are
        left alone."""
        for promise, _, _ in run.held.values():
            self.promises.end(promise, None, error)
        run.held.clear()

    def close_gap(self, run: ServedRun) -> None:
        """Fail the requests whose predecessor never came, and the next step, whose gradient would
        be incomplete. Numbers after the last of them are expected next. The run has held requests
        and a client."""
        error = bad(f"request {run.next_seq} of model {run.run_id}, before this one, never came")
        run.next_seq = max(run.held) + 1
        self.drop_held(run, error)
        assert run.client is not None
        run.client.refuse(error, backward=True)

    def unload(self, run: ServedRun) -> None:
        """Forget a run's model after its queued requests; its checkpoints stay. Requests that are
        held fail."""
        self.runs.pop(run.run_id, None)
        self.drop_held(run, gone(f"model {run.run_id} was unloaded"))

    def drop_samples(self, session_id: str) -> None:
        """Cancel and forget the samples of a session. The SDK submits such a sample again (410)."""
        error = gone("the request was cancelled: its session ended, or its client showed no life")
        self.promises.drop(lambda p: p.session_id == session_id and p.kind == "sample", error)

    def sampler(self, sampler_id: str) -> SamplingSession:
        """Return a sampling session, and mark it and its session as used. Raises a Refusal if it is
        unknown, or no longer kept."""
        self.session(sampler_id)
        found = self.samplers.get(sampler_id)
        if found is None:
            raise gone(
                f"sampling session {sampler_id} is no longer kept: it was not used for a day, or "
                "the server stopped; create a sampling client from saved weights"
            )
        found.last_used = time.monotonic()
        return found

    def drop_sampler(self, sampler_id: str) -> None:
        """Forget a sampling session, and delete its file of weights. Idempotent."""
        self.samplers.pop(sampler_id, None)
        self.store.delete_sampler(sampler_id)

    async def client_of(self, sampler: SamplingSession) -> EmbeddedSamplingClient:
        """Return a client that samples from a session's weights, read from disk if they are not in
        memory; they are now the last used ones. Raises FileNotFoundError if the file is gone, and
        the error of a failed load, which is tried again next time."""
        path, key = sampler.file, _identity(sampler.local, sampler.file)
        found = self.weights.get(key)
        if found is None:
            text = None if path is None else str(path)
            found = self.service.create_sampling_client(text, sampler.local).future()
        self.keep(key, found)
        if found.done() and found.exception() is None:
            return found.result()
        try:
            return await asyncio.shield(asyncio.wrap_future(found))
        except CodeRLError:
            if self.weights.get(key) is found:
                del self.weights[key]
            raise

    def keep_written(self, local: str, file: Path, client: EmbeddedSamplingClient) -> None:
        """Keep the weights that were just written to `file` in memory, so that sampling from them
        reads nothing. It may be called on any thread."""
        known: Future[EmbeddedSamplingClient] = Future()
        known.set_result(client)
        self.keep(_identity(local, file), known)

    def keep(self, key: Weights, found: Future[EmbeddedSamplingClient]) -> None:
        """Keep weights in memory as the last used ones, and forget those that were not used for
        longest, beyond `max_samplers`. It may be called on any thread."""
        with self._keeping:
            self.weights[key] = found
            self.weights.move_to_end(key)
            while len(self.weights) > self.limits.max_samplers:
                self.weights.popitem(last=False)

    def unload_base(self, local: str) -> None:
        """Forget a base model, and the samplers on it. The caller has made sure that nothing uses
        it."""
        self.service.models.pop(local, None)
        for key in [key for key in self.weights if key[0] == local]:
            del self.weights[key]

    async def keep_house(self) -> None:
        """Call `tick` every second, until cancelled. An exception is printed and does not end
        it."""
        while True:
            await asyncio.sleep(TICK_S)
            try:
                self.tick()
            # For example a full disk: the server goes on and checks again
            except Exception as error:  # noqa: BLE001
                print_exception(error)

    def tick(self) -> None:
        """Free what no client uses: old results, samples and models of silent clients, sampling
        sessions unused for a day (or `idle_s`, if longer), and base models without work for
        `idle_s`. Requests whose predecessor has not come for six minutes fail."""
        now = time.monotonic()
        self.promises.sweep()
        # While this process was suspended it received no heartbeats: clients are not blamed for
        # that time.
        deaf = max(0.0, now - self._looked_at - 2 * TICK_S)
        self._looked_at = now
        for session in list(self.sessions.values()):
            session.last_seen += deaf
            silent = not session.finished and now - session.last_seen
            if silent > self.limits.session_timeout_s:
                session.vanished = True
                self.drop_samples(session.session_id)
                for run in self.runs_of(session.session_id):
                    self.drop_held(run, bad("the client is gone"))
                    if silent > self.limits.session_timeout_s + self.limits.idle_s:
                        self.unload(run)
        for run in list(self.runs.values()):
            if run.client is not None and run.held and now - run.held_since > GAP_S:
                self.close_gap(run)
        for sampler in list(self.samplers.values()):
            if sampler.queued == 0 and now - sampler.last_used > max(
                self.limits.idle_s, ABANDONED_S
            ):
                self.drop_sampler(sampler.sampler_id)
        used = {run.local for run in self.runs.values()}
        used |= {sampler.local for sampler in self.samplers.values() if sampler.queued}
        for name in list(self.service.models):
            if name not in used and now - self.last_used.setdefault(name, now) > self.limits.idle_s:
                self.unload_base(name)

    def samplers_of(self, session_id: str) -> list[str]:
        """Return the ids of a session's sampling sessions, sorted as text."""
        return sorted(name for name in list(self.samplers) if name.startswith(f"{session_id}:"))

    def runs_of(self, session_id: str) -> list[ServedRun]:
        """Return a session's models in memory, in the order in which they were created."""
        return [run for run in list(self.runs.values()) if run.run_id.startswith(f"{session_id}:")]

    def refuse_when_draining(self) -> None:
        """Raise a Refusal if the server is shutting down. The SDK retries until it reaches the next
        server."""
        if self.draining:
            raise Refusal(503, "the server is shutting down", retry_after_s=2)


def _identity(local: str, file: Path | None) -> Weights:
    """Return an identity of weights on the base model `local` (`file` None: no adapter). Links to
    one checkpoint have the same, and share weights and batches; a file that replaces the checkpoint
    has another. Raises FileNotFoundError."""
    if file is None:
        return local, 0, 0
    found = file.stat()
    return local, found.st_ino, found.st_mtime_ns
