"""What the server counts: `/metrics` in Prometheus' text form, and the line that it prints now and then."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from dataclasses import fields

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from tinker import types

from .core import Core
from .promises import Promise
from .seam import Load

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Counters of one server."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._registry = CollectorRegistry()
        self._requests = Counter("code_rl_serve_requests", "HTTP requests", ["call", "status"], registry=self._registry)
        self._ended = Counter("code_rl_serve_promises", "Ended promises", ["kind", "outcome"], registry=self._registry)
        self._tokens = Counter(
            "code_rl_serve_tokens", "Tokens sampled and trained on", ["kind"], registry=self._registry
        )
        self._seconds = Histogram(
            "code_rl_serve_promise_seconds",
            "Time from acceptance to the end",
            ["kind"],
            buckets=(0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60, 600),
            registry=self._registry,
        )
        ProcessCollector(registry=self._registry)
        self._registry.register(_Gauges(core))
        self._sampled = self._trained = 0
        self._line_at, self._line_tokens = time.monotonic(), 0

    def answered(self, call: str, status: int) -> None:
        """Count an HTTP answer."""
        self._requests.labels(call, str(status)).inc()

    def ended(self, promise: Promise) -> None:
        """Count a promise that ended."""
        outcome = "done" if promise.error is None else promise.error_category
        self._ended.labels(promise.kind, outcome).inc()
        self._seconds.labels(promise.kind).observe(time.monotonic() - promise.created)
        result = promise.result
        if isinstance(result, types.SampleResponse):
            count = sum(len(s.tokens_np) for s in result.sequences if s.tokens_np is not None)
            self._tokens.labels("sampled").inc(count)
            self._sampled += count
        elif isinstance(result, types.ForwardBackwardOutput):
            count = sum(len(output["logprobs"].to_numpy()) for output in result.loss_fn_outputs)
            self._tokens.labels("trained").inc(count)
            self._trained += count

    def text(self) -> bytes:
        """The exposition."""
        return generate_latest(self._registry)

    def status_line(self) -> str | None:
        """Queues, speed and memory since the last line; None when nothing has happened."""
        now, tokens = time.monotonic(), self._sampled + self._trained
        if tokens == self._line_tokens and not self._core.promises.open:
            self._line_at = now
            return None
        speed = (tokens - self._line_tokens) / max(now - self._line_at, 1e-9)
        self._line_at, self._line_tokens = now, tokens
        load = _load(self._core)
        return (
            f"queued {load.operations_waiting} training, {load.samples_waiting} samples; {speed:,.0f} tokens/s; in memory "
            f"{len(self._core.engines)} base, {load.models} training, {load.snapshots} samplers; {_resident_mb():,.0f} MB"
        )


def _load(core: Core) -> Load:
    """Over all engines, with what waits for a request before it."""
    loads = [engine.load_now() for engine in list(core.engines.values())]
    total = Load(**{f.name: sum(getattr(load, f.name) for load in loads) for f in fields(Load)})
    total.operations_waiting += sum(len(run.held) for run in core.runs.values())
    return total


def _resident_mb() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6


class _Gauges:
    """What is read from the server's state when it is asked for."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def collect(self) -> Iterator[Metric]:
        """The gauges now."""
        core, load = self._core, _load(self._core)
        queues = GaugeMetricFamily("code_rl_serve_queue", "Requests that wait", labels=["kind"])
        queues.add_metric(["training"], load.operations_waiting)
        queues.add_metric(["sample"], load.samples_waiting)
        yield queues
        memory = GaugeMetricFamily("code_rl_serve_in_memory", "What is in memory", labels=["kind"])
        for kind, count in (("base", len(core.engines)), ("training", load.models), ("sampler", load.snapshots)):
            memory.add_metric([kind], count)
        yield memory
        alive = sum(not s.vanished and not s.finished for s in core.sessions.values())
        for name, text, value in (
            ("sessions", "Sessions that are alive", alive),
            ("promises_kept", "Promises kept", len(core.promises)),
            ("result_bytes", "Bytes of results kept", core.promises.result_bytes),
            ("sample_batches", "Batches sampled by the engines in memory", load.batches),
            ("sample_requests", "Requests in those batches", load.batched_requests),
        ):
            yield GaugeMetricFamily(f"code_rl_serve_{name}", text, value=value)
