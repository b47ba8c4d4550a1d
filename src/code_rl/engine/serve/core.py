"""State shared by the calls: model names, sessions, runs, sampling sessions, engines, promises, and
models in memory."""

from __future__ import annotations

import time
import tomllib
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from code_rl.engine.names import source_of
from code_rl.util.errors import CodeRLError, ConfigError

from .engine import EmbeddedEngine, ModelFacts
from .promises import Promise, Promises, ServiceLimits, session_of, unchanged
from .store import RunRecord, SamplerRecord, StateStore, now
from .wire import Refusal, bad, busy, gone, unknown

MAX_HELD = 4096
Start = Callable[[EmbeddedEngine], "Future[Any]"]


def read_models(path: str | None) -> dict[str, str]:
    """Read the map from hosted names to local models in a TOML file's table `models`. Raises
    ConfigError with the reason."""
    if path is None:
        return {}
    try:
        data = tomllib.loads(Path(path).expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"models={path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"models={path} is not TOML: {error}") from error
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
    waiting: int = 0

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Keep the session alive while its client waits for an answer, even without a heartbeat."""
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1
            self.last_seen = time.monotonic()


@dataclass(eq=False)
class ServedRun:
    """A model in training. Requests run in the order of their numbers; number 0 creates the model.
    `record` is None until that succeeds."""

    run_id: str
    local: str
    next_seq: int = 0
    record: RunRecord | None = None
    held: dict[int, tuple[Promise, Callable[[], None]]] = field(default_factory=dict)
    held_since: float = 0.0
    queued: int = 0
    last_used: float = field(default_factory=time.monotonic)


@dataclass(eq=False)
class SamplingSession:
    """Weights to sample from."""

    record: SamplerRecord
    queued: int = 0
    last_used: float = field(default_factory=time.monotonic)


class Core:
    """The server's state. It belongs to the event loop, except for the engines' threads."""

    def __init__(
        self,
        store: StateStore,
        models: Mapping[str, str],
        limits: ServiceLimits,
        start: Callable[[str], EmbeddedEngine],
    ) -> None:
        self.store = store
        self.models = models
        self.limits = limits
        self._start = start
        self.promises = Promises(limits)
        self.engines: dict[str, EmbeddedEngine] = {}
        self.sessions: dict[str, Session] = {}
        self.runs: dict[str, ServedRun] = {}
        self.samplers: dict[str, SamplingSession] = {}
        self.draining = False

    def local(self, asked: str) -> str:
        """Return the local model of a name, which may be the name itself. Raises ConfigError for an
        impossible name."""
        local = self.models.get(asked, asked)
        source_of(local)
        return local

    def create_session(self, record: dict[str, Any]) -> str:
        """Begin a session and return its id."""
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

    def engine(self, local: str) -> EmbeddedEngine:
        """Return the engine of a base model, started on first use."""
        engine = self.engines.get(local)
        if engine is None:
            engine = self.engines[local] = self._start(local)
            engine.loaded.add_done_callback(lambda loaded: self._forget_failed(local, loaded))
        return engine

    def _forget_failed(self, local: str, loaded: Future[ModelFacts]) -> None:
        if loaded.exception() is not None and (engine := self.engines.pop(local, None)) is not None:
            engine.close()

    def run(self, run_id: str) -> ServedRun:
        """Return a run. Raises a Refusal if it is unknown, or no longer in memory."""
        found = self.runs.get(run_id)
        if found is None:
            if self.store.read_run(run_id) is None:
                raise unknown(f"model {run_id[:100]!r}")
            self.session(run_id)
            raise gone(
                f"model {run_id} is no longer loaded: it was unloaded, its client showed no life, "
                "or the server stopped; create a training client from its last checkpoint"
            )
        self.session(run_id)
        found.last_used = time.monotonic()
        return found

    def begin(
        self,
        run_id: str,
        local: str,
        kind: str,
        fingerprint: bytes,
        start: Start,
        then: Callable[[ServedRun, Any], object],
    ) -> Promise:
        """Promise a new run. `then` makes its record and the answer from the result of `start`."""
        seen = self.promises.seen(f"{run_id}:0", kind, fingerprint)
        if seen is not None:
            return seen
        self.refuse_when_draining()
        if run_id in self.runs or self.store.read_run(run_id) is not None:
            raise gone(f"model {run_id} was created before, and the answer is no longer kept")
        self.promises.check_room(0)
        if len(self.runs) >= self.limits.max_models:
            # A vanished client's model makes room.
            lost = [
                r
                for r in self.runs.values()
                if (s := self.sessions.get(session_of(r.run_id))) and s.vanished
            ]
            if not lost:
                raise busy(f"{len(self.runs)} models are in training, the limit (max_models)")
            self.unload(min(lost, key=lambda run: run.last_used))
        run = self.runs[run_id] = ServedRun(run_id, local)
        return self.accept(run, 0, kind, fingerprint, start, lambda result: then(run, result))

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
        """Promise the result of an operation on a run's model. The same number and request give the
        same promise.

        Raises:
            Refusal: the number was used for something else or long ago, or the queues are full.
        """
        request_id = f"{run.run_id}:{seq}"
        seen = self.promises.seen(request_id, kind, fingerprint)
        if seen is not None:
            return seen
        self.refuse_when_draining()
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
        promise = self.promises.add(Promise(request_id, kind, fingerprint, size))

        def begin() -> None:
            try:
                future = start(self.engine(run.local))
            except CodeRLError as error:
                future = Future()
                future.set_exception(error)
            self.follow(run, promise, future, then)

        run.held[seq] = promise, begin
        run.held_since = time.monotonic()
        while (ready := run.held.pop(run.next_seq, None)) is not None:
            ready[1]()
            run.next_seq += 1
        return promise

    def follow(
        self,
        owner: ServedRun | SamplingSession,
        promise: Promise,
        future: Future[Any],
        then: Callable[[Any], object] = unchanged,
    ) -> None:
        """Fulfill a promise from an engine's future. Until it ends it counts in its owner's
        queue."""
        owner.queued += 1

        def on_end() -> None:
            owner.queued -= 1
            owner.last_used = time.monotonic()
            if (
                isinstance(owner, ServedRun)
                and owner.record is None
                and promise.request_id.endswith(":0")
            ):
                self.runs.pop(owner.run_id, None)  # it could not be created

        promise.on_end = on_end
        self.promises.follow(promise, future, then)

    def drop_held(self, run: ServedRun, error: Exception) -> None:
        """Fail the requests that wait for an earlier one."""
        for promise, _ in run.held.values():
            self.promises.end(promise, None, error)
        run.held.clear()

    def close_gap(self, run: ServedRun) -> None:
        """Fail the requests whose predecessor never came, and the next step, whose gradient would
        be incomplete."""
        error = bad(f"request {run.next_seq} of model {run.run_id}, before this one, never came")
        run.next_seq = max(run.held) + 1
        self.drop_held(run, error)
        self.engine(run.local).refuse(run.run_id, error, backward=True)

    def unload(self, run: ServedRun) -> None:
        """Forget a run's model after its queued requests; its checkpoints stay."""
        self.runs.pop(run.run_id, None)
        self.drop_held(run, gone(f"model {run.run_id} was unloaded"))
        self.engine(run.local).drop(run.run_id)

    def sampler(self, sampler_id: str) -> SamplingSession:
        """Return a sampling session. Raises a Refusal if it is unknown."""
        found = self.samplers.get(sampler_id)
        if found is None:
            record = self.store.read_sampler(sampler_id)
            if record is None:
                raise unknown(f"sampling session {sampler_id[:100]!r}")
            found = self.samplers[sampler_id] = SamplingSession(record)
        self.session(sampler_id)
        found.last_used = time.monotonic()
        return found

    def add_sampler(self, record: SamplerRecord) -> None:
        """Register a new sampling session, whose weights are already on disk."""
        self.store.write_sampler(record)
        self.samplers[record.sampler_id] = SamplingSession(record)

    def runs_of(self, session_id: str) -> list[ServedRun]:
        """Return a session's models in memory."""
        return [run for run in list(self.runs.values()) if run.run_id.startswith(f"{session_id}:")]

    def refuse_when_draining(self) -> None:
        """Raise a Refusal if the server is shutting down. The SDK retries until it reaches the next
        server."""
        if self.draining:
            raise Refusal(503, "the server is shutting down", retry_after_s=2)
