"""The server's upkeep: counters for Prometheus, and freeing models, samplers and engines that no
client uses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.process_collector import ProcessCollector
from tinker import types

from code_rl.util.redaction import print_exception

from .core import Core
from .promises import Promise
from .wire import bad

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
TICK_S = 1.0
# Longer than the SDK retries a request.
GAP_S = 360.0
ABANDONED_S = 24 * 3600.0


class Metrics:
    """Counters of one server."""

    def __init__(self, core: Core) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "code_rl_serve_requests", "HTTP requests", ["call", "status"], registry=self._registry
        )
        self._ended = Counter(
            "code_rl_serve_promises", "Ended promises", ["kind", "outcome"], registry=self._registry
        )
        self._tokens = Counter(
            "code_rl_serve_tokens",
            "Tokens sampled and trained on",
            ["kind"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "code_rl_serve_promise_seconds",
            "Time from acceptance to the end",
            ["kind"],
            buckets=(0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60, 600),
            registry=self._registry,
        )
        ProcessCollector(registry=self._registry)
        waiting: dict[str, Callable[[], float]] = {
            "training": lambda: sum(run.queued + len(run.held) for run in core.runs.values()),
            "sample": lambda: sum(sampler.queued for sampler in core.samplers.values()),
        }
        held: dict[str, Callable[[], float]] = {
            "base": lambda: len(core.service.models),
            "training": lambda: len(core.runs),
            "sampler": lambda: len(core.weights),
            "session": lambda: sum(
                not s.vanished and not s.finished for s in core.sessions.values()
            ),
        }
        for name, text, counts in (
            ("queue", "Requests that wait or run", waiting),
            ("in_memory", "What is in memory", held),
        ):
            gauge = Gauge(f"code_rl_serve_{name}", text, ["kind"], registry=self._registry)
            for kind, count in counts.items():
                gauge.labels(kind).set_function(count)

    def answered(self, call: str, status: int) -> None:
        """Count an HTTP answer."""
        self._requests.labels(call, str(status)).inc()

    def ended(self, promise: Promise, result: object) -> None:
        """Count a promise that ended, and the tokens of its result."""
        outcome = "done" if promise.error is None else promise.error_category
        self._ended.labels(promise.kind, outcome).inc()
        self._seconds.labels(promise.kind).observe(time.monotonic() - promise.created)
        kind, count = "sampled", 0
        if isinstance(result, types.SampleResponse):
            count = sum(len(s.tokens_np) for s in result.sequences if s.tokens_np is not None)
        elif isinstance(result, types.ForwardBackwardOutput):
            kind, count = (
                "trained",
                sum(len(output["logprobs"].to_numpy()) for output in result.loss_fn_outputs),
            )
        self._tokens.labels(kind).inc(count)

    def text(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class Janitor:
    """Checks the server every second."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._looked_at = time.monotonic()

    async def work(self) -> None:
        """Run until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            try:
                self.tick()
            # For example a full disk: the server goes on and checks again
            except Exception as error:  # noqa: BLE001
                print_exception(error)

    def tick(self) -> None:
        """Do one check."""
        core = self._core
        now = time.monotonic()
        core.promises.sweep()
        # While this process was suspended it received no heartbeats: clients are not blamed for
        # that time.
        deaf = max(0.0, now - self._looked_at - 2 * TICK_S)
        self._looked_at = now
        for session in list(core.sessions.values()):
            session.last_seen += deaf
            silent = not session.finished and not session.waiting and now - session.last_seen
            if silent > core.limits.session_timeout_s:
                session.vanished = True
                core.promises.drop_samples(session.session_id)
                for run in core.runs_of(session.session_id):
                    core.drop_held(run, bad("the client is gone"))
                    if silent > core.limits.session_timeout_s + core.limits.idle_s:
                        core.unload(run)
        for run in list(core.runs.values()):
            if run.client is not None and run.held and now - run.held_since > GAP_S:
                core.close_gap(run)
        for sampler in list(core.samplers.values()):
            if sampler.queued == 0 and now - sampler.last_used > max(
                core.limits.idle_s, ABANDONED_S
            ):
                core.drop_sampler(sampler.sampler_id)
        used = {run.local for run in core.runs.values()}
        used |= {sampler.local for sampler in core.samplers.values() if sampler.queued}
        for name in list(core.service.models):
            if name not in used and now - core.last_used.setdefault(name, now) > core.limits.idle_s:
                core.unload_base(name)
