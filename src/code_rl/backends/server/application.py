"""The HTTP application: routes, the token, refusals, and the life of the server."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from pydantic import BaseModel
from tinker import types

from code_rl.errors import BackendError, CodeRLError
from code_rl.redaction import print_exception, redacted

from .core import Core
from .future_calls import FutureCalls
from .janitor import Janitor
from .listings import Listings
from .metrics import CONTENT_TYPE, Metrics
from .promises import Promise
from .refusals import SERVER, Refusal, category
from .requests import decompressed, digest, read_json, read_json_pass, read_proto_pass
from .responses import PROTOBUF, has_protobuf, to_json, to_protobuf
from .sampling_calls import SamplingCalls
from .session_calls import SessionCalls
from .training_calls import TrainingCalls

API = "/api/v1"
LARGE_RESULT = 256 << 10
CORE: web.AppKey[Core] = web.AppKey("core", Core)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_PROMISING = {
    "create_model": "create",
    "load_weights": "load",
    "optim_step": "optim_step",
    "save_weights": "save",
    "save_weights_for_sampler": "save_for_sampler",
    "unload_model": "unload",
}
_NOT_HERE = {
    "auth/token": "keys are not exchanged: client/config says pjwt_auth_enabled false",
    "create_custom_loss": "custom losses run in the client: client/config says custom_loss_server_side false",
}


class Application:
    """Serves a Core. Belongs to one event loop."""

    def __init__(self, core: Core, token: str | None, max_request_bytes: int, status: bool) -> None:
        self.core = core
        self.metrics = Metrics(core)
        core.promises.on_done = self.metrics.ended
        self._token = token
        self._max_request_bytes = max_request_bytes
        self._sessions = SessionCalls(core)
        self._training = TrainingCalls(core)
        self._sampling = SamplingCalls(core)
        self._futures = FutureCalls(core)
        self._listings = Listings(core)
        self._janitor = Janitor(core, self.metrics, status)

    @asynccontextmanager
    async def listening(self, host: str, port: int) -> AsyncIterator[int]:
        """Accept connections; yields the port."""
        app = web.Application(client_max_size=self._max_request_bytes, middlewares=[self._guard])
        self._route(app)
        # Bodies come as they were sent: zstd, which the SDK may use, is not among what aiohttp decodes by itself.
        runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0, auto_decompress=False
        )
        await runner.setup()
        janitor = asyncio.create_task(self._janitor.work())
        try:
            site = web.TCPSite(runner, host, port, backlog=1024)
            await site.start()
            yield runner.addresses[0][1]
        finally:
            janitor.cancel()
            await runner.cleanup()

    async def drain(self, grace_s: float) -> bool:
        """Refuse what is new, end what was accepted, give clients a moment to fetch it, and move all models to the disk.

        False when something was still queued after `grace_s`; its models are then not saved.
        """
        core = self.core
        core.draining = True
        start = asyncio.get_running_loop().time()
        for run in core.runs.values():
            core.drop_held(run, BackendError("the server shut down before the request before this one came"))
        try:
            await asyncio.wait_for(core.promises.idle(), grace_s)
        except TimeoutError:
            return False
        for _ in range(20):
            if not core.promises.unfetched():
                break
            await asyncio.sleep(0.1)
        left = grace_s - (asyncio.get_running_loop().time() - start)
        parked = [asyncio.wrap_future(core.park(run)) for run in core.runs.values() if run.trainer is not None]
        try:
            await asyncio.wait_for(asyncio.gather(*parked), max(left, 5.0))
        except TimeoutError:
            return False
        return True

    def _route(self, app: web.Application) -> None:
        post, get = app.router.add_post, app.router.add_get
        get("/metrics", self._metrics_text)
        get(f"{API}/healthz", self._fixed({"status": "ok"}))
        post(f"{API}/client/config", self._body(lambda _: CLIENT_CONFIG))
        post(f"{API}/client/dynamic_config", self._body(lambda _: DYNAMIC_CONFIG))
        post(f"{API}/telemetry", self._fixed({"status": "accepted"}))
        get(f"{API}/get_server_capabilities", self._no_body(lambda _: self._sessions.capabilities()))
        post(f"{API}/create_session", self._create_session)
        post(f"{API}/session_heartbeat", self._body(self._sessions.heartbeat))
        post(f"{API}/sessions/{{session}}/finish", self._finish)
        post(f"{API}/get_info", self._body(self._training.info))
        post(f"{API}/create_sampling_session", self._body(self._sampling.create_session))
        post(f"{API}/join_sampling_session", self._body(self._sampling.join))
        post(f"{API}/asample", self._sample)
        for name, method in _PROMISING.items():
            post(f"{API}/{name}", self._promising(getattr(self._training, method)))
        post(f"{API}/forward", self._pass)
        post(f"{API}/forward_backward", self._pass)
        post(f"{API}/retrieve_future", self._retrieve)
        post(f"{API}/retrieve_futures", self._retrieve_many)
        post(f"{API}/cancel_future", self._body(self._futures.cancel))
        self._route_listings(app)
        app.router.add_route("*", "/{tail:.*}", self._missing)

    def _route_listings(self, app: web.Application) -> None:
        get, listings = app.router.add_get, self._listings
        checkpoint = f"{API}/training_runs/{{run}}/checkpoints/{{checkpoint:(?:weights|sampler_weights)/[^/]+}}"
        get(f"{API}/training_runs", self._from_disk(lambda r: listings.runs(r.query)))
        get(f"{API}/training_runs/{{run}}", self._from_disk(lambda r: listings.run(r.match_info["run"])))
        get(
            f"{API}/training_runs/{{run}}/checkpoints",
            self._from_disk(lambda r: listings.checkpoints_of(r.match_info["run"])),
        )
        get(f"{API}/checkpoints", self._from_disk(lambda r: listings.checkpoints(r.query)))
        get(f"{API}/sessions", self._from_disk(lambda r: listings.sessions(r.query)))
        get(f"{API}/sessions/{{session}}", self._from_disk(lambda r: listings.session(r.match_info["session"])))
        get(f"{API}/samplers/{{sampler}}", self._no_body(lambda r: self._sampling.get_sampler(r.match_info["sampler"])))
        app.router.add_post(f"{API}/weights_info", self._body(listings.weights_info))
        app.router.add_delete(
            checkpoint, self._from_disk(lambda r: listings.delete(r.match_info["run"], r.match_info["checkpoint"]))
        )
        app.router.add_put(f"{checkpoint}/ttl", self._set_ttl)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """The token, and every refusal and failure as an answer."""
        try:
            self._check_key(request)
            response = await handler(request)
        except Refusal as refusal:
            response = _refused(refusal)
        except web.HTTPRequestEntityTooLarge:
            response = _refused(Refusal(413, f"a request may have {self._max_request_bytes} bytes"))
        except web.HTTPException as error:
            response = _refused(Refusal(error.status, error.reason))
        except CodeRLError as error:
            response = _refused(Refusal(400 if category(error) != SERVER else 500, str(error)))
        except Exception as error:  # noqa: BLE001 - a fault of ours is an answer too, and is printed
            print_exception(error)
            response = _refused(Refusal(500, redacted(f"{type(error).__name__}: {error}")))
        resource = request.match_info.route.resource
        self.metrics.answered(resource.canonical if resource is not None else "other", response.status)
        return response

    def _check_key(self, request: web.Request) -> None:
        if request.method == "GET" and request.path in ("/metrics", f"{API}/healthz") and self._token is None:
            return
        bearer = request.headers.get("Authorization", "")
        key = request.headers.get("X-API-Key") or bearer.removeprefix("Bearer ")
        if not key:
            # Any key will do without a token, but a web page cannot send this header to us unasked.
            raise Refusal(401, "an X-API-Key header is missing; set TINKER_API_KEY, to tml-dummy for instance")
        if self._token is not None and not hmac.compare_digest(key.encode(), self._token.encode()):
            raise Refusal(401, "the key is not this server's token; set TINKER_API_KEY to it")

    async def _json(self, request: web.Request) -> dict[str, Any]:
        return read_json(await self._read(request))

    async def _read(self, request: web.Request) -> bytes:
        size = request.content_length or 0
        if size > self._max_request_bytes:
            raise Refusal(413, f"a request may have {self._max_request_bytes} bytes, this one has {size}")
        body = await request.read()
        encoding = request.headers.get("Content-Encoding", "identity")
        if encoding == "zstd":
            return await asyncio.to_thread(decompressed, body, self._max_request_bytes)
        if encoding != "identity":
            raise Refusal(415, f"Content-Encoding {encoding[:40]!r} is not supported, only zstd")
        return body

    def _body(self, call: Callable[[dict[str, Any]], BaseModel | None]) -> Handler:
        async def handle(request: web.Request) -> web.Response:
            return _model(call(await self._json(request)))

        return handle

    def _no_body(self, call: Callable[[web.Request], BaseModel | None]) -> Handler:
        async def handle(request: web.Request) -> web.Response:
            return _model(call(request))

        return handle

    def _from_disk(self, call: Callable[[web.Request], BaseModel | None]) -> Handler:
        async def handle(request: web.Request) -> web.Response:
            return _model(await asyncio.to_thread(call, request))

        return handle

    def _fixed(self, answer: dict[str, Any]) -> Handler:
        async def handle(request: web.Request) -> web.Response:
            await self._read(request)
            return web.json_response(answer)

        return handle

    def _promising(self, call: Callable[[dict[str, Any], bytes], Promise]) -> Handler:
        async def handle(request: web.Request) -> web.Response:
            body = await self._read(request)
            return _promised(call(read_json(body), digest(body)))

        return handle

    async def _create_session(self, request: web.Request) -> web.Response:
        return _model(self._sessions.create(await self._json(request), request.headers.get("X-Idempotency-Key")))

    async def _finish(self, request: web.Request) -> web.Response:
        self._sessions.finish(request.match_info["session"], await self._json(request))
        return web.json_response({})

    async def _set_ttl(self, request: web.Request) -> web.Response:
        self._listings.set_ttl(request.match_info["run"], request.match_info["checkpoint"], await self._json(request))
        return web.json_response({})

    async def _sample(self, request: web.Request) -> web.Response:
        body = await self._read(request)
        promise, ids = await self._sampling.sample(read_json(body), digest(body), len(body))
        return web.json_response({"request_id": promise.request_id, "sample_sequence_ids": ids})

    async def _pass(self, request: web.Request) -> web.Response:
        body = await self._read(request)
        if request.content_type == PROTOBUF:
            read = read_proto_pass(body) if len(body) < LARGE_RESULT else await asyncio.to_thread(read_proto_pass, body)
        else:
            read = read_json_pass(body, request.path.endswith("/forward"))
        return _promised(await self._training.run_pass(read, len(body)))

    async def _retrieve(self, request: web.Request) -> web.Response:
        data = await self._json(request)
        found = await self._futures.retrieve(data)
        if found is None:
            waiting = {"type": "try_again", "request_id": data["request_id"], "queue_state": "active"}
            return web.json_response(waiting, status=408)
        if isinstance(found, dict):
            return web.json_response(found)
        if found.error is not None:
            return web.json_response({"error": found.error, "category": found.error_category})
        if has_protobuf(found.result) and PROTOBUF in request.headers.get("Accept", ""):
            encode: Callable[[object], bytes] = to_protobuf
            kind = PROTOBUF
        else:
            encode, kind = _json_bytes, "application/json"
        body = encode(found.result) if found.size < LARGE_RESULT else await asyncio.to_thread(encode, found.result)
        return web.Response(body=body, content_type=kind)

    async def _retrieve_many(self, request: web.Request) -> web.Response:
        return _model(await self._futures.retrieve_many(await self._json(request)))

    async def _metrics_text(self, _request: web.Request) -> web.Response:
        return web.Response(body=self.metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def _missing(self, request: web.Request) -> web.Response:
        call = request.path.removeprefix(f"{API}/")
        known = {r.canonical for r in request.app.router.resources()}
        if request.path in known:
            raise Refusal(405, f"{request.path} does not take {request.method}")
        why = _NOT_HERE.get(call, "the calls that it has are listed in docs/serve.md")
        raise Refusal(404, f"{request.method} {request.path[:200]} is not implemented by code-rl serve: {why}")


CLIENT_CONFIG = types.ClientConfigResponse(
    pjwt_auth_enabled=False,
    parallel_fwdbwd_chunks=True,
    proto_compress_fwdbwd=False,
    sample_join_sampling_session=True,
    custom_loss_server_side=False,
)
DYNAMIC_CONFIG = types.ClientDynamicConfigResponse(sample_cancel_enabled=True)


def _json_bytes(result: object) -> bytes:
    return json.dumps(to_json(result)).encode()


def _model(answer: BaseModel | None) -> web.Response:
    if answer is None:
        return web.json_response({})
    return web.json_response(answer.model_dump(mode="json"))


def _promised(promise: Promise) -> web.Response:
    return web.json_response({"request_id": promise.request_id, "model_id": promise.model_id})


def _refused(refusal: Refusal) -> web.Response:
    headers = {"Retry-After": str(refusal.retry_after_s)} if refusal.retry_after_s is not None else None
    return web.json_response({"detail": str(refusal)}, status=refusal.status, headers=headers)
