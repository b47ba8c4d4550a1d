"""The HTTP application: routes, the token, refusals, counters for Prometheus, and the server's
startup and shutdown."""

from __future__ import annotations

import asyncio
import hmac
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.process_collector import ProcessCollector
from pydantic import BaseModel
from tinker import types
from tinker.types.future_retrieve_request import FutureRetrieveRequest

from code_rl.util.admission import listening
from code_rl.util.errors import BackendError, CodeRLError
from code_rl.util.redaction import print_exception, redacted

from .client_calls import CancelRequest, SamplingCalls, TrainingCalls
from .core import Core
from .promises import Promise
from .service_calls import ServiceCalls, WeightsInfoRequest
from .store import Checkpoint
from .wire import (
    SERVER,
    Refusal,
    category,
    digest,
    read_json,
    read_pass,
    validated,
)

API = "/api/v1"
HEALTH = ("/health", f"{API}/healthz")
LARGE_PASS = 256 << 10
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Call = Callable[[web.Request, bytes], Any]


class TinkerApplication:
    """Serves a Core. It belongs to one event loop."""

    def __init__(self, core: Core, token: str | None, max_request_bytes: int) -> None:
        """`token` is the key that requests must have (None: any key). Requests above
        `max_request_bytes` are refused with 413. The core's promises report to this application's
        metrics from now on."""
        self.core = core
        self.metrics = Metrics(core)
        core.promises.on_done = self.metrics.ended
        self._token = token
        self._max_request_bytes = max_request_bytes
        self._training, self._sampling = TrainingCalls(core), SamplingCalls(core)
        self._service = ServiceCalls(core)

    @asynccontextmanager
    async def listening(self, host: str, port: int) -> AsyncIterator[int]:
        """Accept connections at `host` and `port` (0: a free one) within the block, and free what
        no client uses every second; yields the port. At its end, open HTTP requests are cancelled
        after a second; call `drain` first. Raises ConfigError if the address cannot be used."""
        app = web.Application(client_max_size=self._max_request_bytes, middlewares=[self._guard])
        self._route(app)
        janitor = asyncio.create_task(self.core.keep_house())
        try:
            async with listening(app, host, port) as bound:
                yield bound
        finally:
            janitor.cancel()

    async def drain(self, grace_s: float) -> bool:
        """Refuse new requests for good, finish accepted ones, and give clients two seconds at most
        to fetch the results. Training requests that wait for an earlier one fail at once.

        Return False if a request was still queued after `grace_s` seconds.
        """
        core = self.core
        core.draining = True
        for run in core.runs.values():
            core.drop_held(
                run, BackendError("the server shut down before the request before this one came")
            )
        try:
            await asyncio.wait_for(core.promises.idle.wait(), grace_s)
        except TimeoutError:
            return False
        for _ in range(20):
            if not core.promises.unfetched():
                break
            await asyncio.sleep(0.1)
        return True

    def _route(self, app: web.Application) -> None:
        """Route every call to a function of the request and its body; `_answer` lists the possible
        results. Called once, before the application starts."""
        training, sampling, service = self._training, self._sampling, self._service

        def add(method: str, path: str, call: Call, disk: bool = False) -> None:
            """Route a call below `/api/v1/`. With `disk` it runs on another thread."""
            getattr(app.router, f"add_{method}")(f"{API}/{path}", self._handler(call, disk))

        def post(path: str, kind: type[BaseModel], call: Callable[[Any], object]) -> None:
            """Route a call whose body is one of the SDK's requests in JSON. A body that is not gets
            a Refusal."""
            add("post", path, lambda _, b: call(validated(kind, read_json(b))))

        def promise(
            path: str, kind: type[BaseModel], call: Callable[[Any, bytes], Promise]
        ) -> None:
            """Route a call that promises its result; every copy of the request gets the same
            promise."""
            add("post", path, lambda _, b: training.promise(kind, call, b))

        app.router.add_get("/metrics", self._metrics_text)
        for path in HEALTH:
            app.router.add_get(path, self._health)
        add("post", "client/config", lambda _r, _b: CLIENT_CONFIG)
        add("post", "client/dynamic_config", lambda _r, _b: DYNAMIC_CONFIG)
        add("post", "telemetry", lambda _r, _b: {"status": "accepted"})
        post("create_session", types.CreateSessionRequest, service.create)
        post("session_heartbeat", types.SessionHeartbeatRequest, service.heartbeat)
        add(
            "post",
            "sessions/{session_id}/finish",
            lambda r, b: service.finish(**r.match_info, data=read_json(b)),
        )
        promise("create_model", types.CreateModelRequest, training.create)
        promise("load_weights", types.LoadWeightsRequest, training.load)
        add("post", "forward_backward", self._pass)
        promise("optim_step", types.OptimStepRequest, training.optim_step)
        promise("save_weights", types.SaveWeightsRequest, training.save)
        promise(
            "save_weights_for_sampler",
            types.SaveWeightsForSamplerRequest,
            training.save_for_sampler,
        )
        promise("save_weights_external", types.SaveWeightsExternalRequest, training.save_external)
        post("get_info", types.GetInfoRequest, training.info)
        post("create_sampling_session", types.CreateSamplingSessionRequest, sampling.create_session)
        add("post", "asample", lambda _, b: sampling.sample(read_json(b), digest(b), len(b)))
        add("post", "retrieve_future", self._retrieve)
        post("cancel_future", CancelRequest, sampling.cancel)
        post("weights_info", WeightsInfoRequest, service.weights_info)
        add("get", "samplers/{sampler_id}", lambda r, _: sampling.get_sampler(**r.match_info))
        self._route_stored(add)

    def _route_stored(self, add: Callable[..., None]) -> None:
        """Route the calls that read or delete in the state folder, by `add` of `_route`. They run
        on other threads, except for the extension of a lifetime, which changes nothing."""
        service, store = self._service, self.core.store
        one = "training_runs/{run}/checkpoints/{checkpoint:[^/]+/[^/]+}"
        external = "{checkpoint:external_weights/[^/]+}"

        def found(r: web.Request) -> Checkpoint:
            """Return the checkpoint that the path of a request names. Raises a Refusal if there is
            none."""
            return store.find_in_run(r.match_info["run"], r.match_info["checkpoint"])

        for path, look in (
            (
                "get_server_capabilities",
                lambda r, _: service.capabilities(r.query.get("model_name")),
            ),
            ("training_runs", lambda r, _: service.runs(r.query)),
            ("training_runs/{run_id}", lambda r, _: service.run(**r.match_info)),
            (
                "training_runs/{run_id}/checkpoints",
                lambda r, _: service.checkpoints_of(**r.match_info),
            ),
            ("checkpoints", lambda r, _: service.checkpoints(r.query)),
            ("sessions", lambda r, _: service.sessions(r.query)),
            ("sessions/{session_id}", lambda r, _: service.session(**r.match_info)),
            (
                f"training_runs/{{run}}/checkpoints/{external}/external_weights_urls",
                lambda r, _: service.external_urls(found(r), f"{r.url.origin()}{API}"),
            ),
            (
                f"download/{{secret}}/{{run}}/{external}/{{file}}",
                lambda r, _: service.external_file(found(r), r.match_info["file"]),
            ),
        ):
            add("get", path, look, disk=True)
        add("delete", one, lambda r, _: store.delete_checkpoint(found(r)), disk=True)
        # `tinker checkpoint download` extends its export's lifetime; here checkpoints stay until
        # deleted.
        add("put", f"{one}/ttl", lambda r, _: found(r) and None)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check the key, and turn every refusal and failure into an HTTP answer, which is counted.
        An unexpected exception is printed and answered with 500; only a cancellation passes."""
        try:
            self._check_key(request)
            response = await handler(request)
        except Refusal as refusal:
            response = _refused(refusal)
        except web.HTTPRequestEntityTooLarge:
            response = _refused(Refusal(413, f"a request may have {self._max_request_bytes} bytes"))
        except web.HTTPException as error:
            said = f"{request.method} {request.path}: {error.reason}"
            response = _refused(Refusal(error.status, f"{said}; docs/serve.md lists the calls"))
        except CodeRLError as error:
            response = _refused(Refusal(400 if category(error) != SERVER else 500, str(error)))
        # An internal error is answered too, and printed
        except Exception as error:  # noqa: BLE001
            print_exception(error)
            response = _refused(Refusal(500, redacted(f"{type(error).__name__}: {error}")))
        resource = request.match_info.route.resource
        self.metrics.answered(
            resource.canonical if resource is not None else "other", response.status
        )
        return response

    def _check_key(self, request: web.Request) -> None:
        """Raise a Refusal (401) for a request without the server's key, in `X-API-Key` or as a
        bearer token. Health and secret downloads pass, and metrics if the server has no token."""
        download = request.path.startswith(f"{API}/download/{self._service.secret}/")
        if download or request.path in HEALTH:
            return
        if request.path == "/metrics" and self._token is None:
            return
        bearer = request.headers.get("Authorization", "")
        key = request.headers.get("X-API-Key") or bearer.removeprefix("Bearer ")
        if not key:
            # Without a token any key is accepted, but a web page cannot send this header without
            # permission.
            key = "any key" if self._token is None else "this server's token"
            raise Refusal(401, f"an X-API-Key header is missing; give {key}")
        if self._token is not None and not hmac.compare_digest(key.encode(), self._token.encode()):
            raise Refusal(401, "the key is not this server's token")

    def _handler(self, call: Call, disk: bool) -> Handler:
        """Return a handler that gives `call` the request and its body, and answers with its result,
        awaited if need be. With `disk` the call may be slow and runs on another thread."""

        async def handle(request: web.Request) -> web.StreamResponse:
            """Answer one request with the call's result. A Refusal is raised to `_guard`."""
            body = await request.read()
            found = await asyncio.to_thread(call, request, body) if disk else call(request, body)
            return _answer(await found if inspect.isawaitable(found) else found)

        return handle

    async def _pass(self, _: web.Request, body: bytes) -> Promise:
        """Promise a pass. A body of 256 KiB or more is read on a thread, so that others are
        answered meanwhile. Raises a Refusal for a malformed one."""
        large = len(body) >= LARGE_PASS
        read = await asyncio.to_thread(read_pass, body) if large else read_pass(body)
        return self._training.run_pass(read, len(body))

    async def _retrieve(self, _: web.Request, sent: bytes) -> web.StreamResponse | dict[str, Any]:
        """Answer with the request's result, its error, or 408 if it is still pending after a wait.
        Raises a Refusal for an unknown request."""
        wanted = validated(FutureRetrieveRequest, read_json(sent)).request_id
        found = await self._sampling.retrieve(wanted)
        if found is None:
            waiting = {"type": "try_again", "request_id": wanted, "queue_state": "active"}
            return web.json_response(waiting, status=408)
        if found.error is not None:
            return {"error": found.error, "category": found.error_category}
        return web.Response(body=found.body, content_type=found.content_type)

    async def _health(self, _request: web.Request) -> web.Response:
        """Answer 200, or 503 while the server is shutting down. No key is needed."""
        draining = self.core.draining
        return web.json_response(
            {"status": "draining" if draining else "ok"}, status=503 if draining else 200
        )

    async def _metrics_text(self, _request: web.Request) -> web.Response:
        """Answer with the metrics in Prometheus' text format."""
        return web.Response(body=self.metrics.text(), headers={"Content-Type": CONTENT_TYPE})


class Metrics:
    """Counters of one server."""

    def __init__(self, core: Core) -> None:
        """Make the counters in a registry of their own. Those of queues and of memory are read from
        `core` whenever the metrics are written."""
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
        """Count an HTTP answer to `call`, the route's pattern, since the path would make a series
        for each id."""
        self._requests.labels(call, str(status)).inc()

    def ended(self, promise: Promise, result: object) -> None:
        """Count a promise that ended, its time since acceptance, and the tokens sampled or trained
        on in its result."""
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


CLIENT_CONFIG = types.ClientConfigResponse(
    pjwt_auth_enabled=False,
    parallel_fwdbwd_chunks=True,
    proto_compress_fwdbwd=False,
    custom_loss_server_side=False,
)
DYNAMIC_CONFIG = types.ClientDynamicConfigResponse(sample_cancel_enabled=True)


def _answer(found: object) -> web.StreamResponse:
    """Return the HTTP answer for a call's result: a response as it is, a promise by its id, a model
    of the SDK's or an object as JSON, and nothing as an empty object."""
    if isinstance(found, web.StreamResponse):
        return found
    if isinstance(found, Promise):
        return web.json_response({"request_id": found.request_id})
    return web.json_response(
        found.model_dump(mode="json") if isinstance(found, BaseModel) else found or {}
    )


def _refused(refusal: Refusal) -> web.Response:
    """Return a refusal as the SDK expects it: its status, its message in `detail`, and the time
    after which to try again, in seconds."""
    headers = (
        {"Retry-After": str(refusal.retry_after_s)} if refusal.retry_after_s is not None else None
    )
    return web.json_response({"detail": str(refusal)}, status=refusal.status, headers=headers)
