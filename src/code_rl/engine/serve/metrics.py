"""The server's counters, for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.process_collector import ProcessCollector
from tinker import types

from .core import Core
from .promises import Promise

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


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
