"""The calls of a SamplingClient: sessions that hold weights, samples from them, and the results of
all calls."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from pydantic import BaseModel, ConfigDict
from tinker import types

from .core import Core, SamplingSession
from .promises import Promise
from .wire import bad, checked_seq, gone, validated

MAX_SAMPLES = 4096
WAIT_S = 25.0
_REFUSED = {
    "topk_sample_logprobs": "",
    "target_prompt_logprobs": "",
    "prompt_alt_tokens_k": "",
    "record_stability_info": ", nor is loss stable_reinforce, which reads it; train with "
    "importance_sampling, ppo, cispo or gspo",
}


class CancelRequest(BaseModel):
    """The sample to cancel."""

    model_config = ConfigDict(extra="forbid")
    request_id: str


class SamplingCalls:
    """The calls of a SamplingClient."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def create_session(
        self, request: types.CreateSamplingSessionRequest
    ) -> types.CreateSamplingSessionResponse:
        """Create a sampling session on a base model or on saved weights. A repeated request finds
        the same session."""
        core = self._core
        session = core.session(request.session_id)
        number = checked_seq(request.sampling_session_seq_id, "sampling_session_seq_id")
        sampler_id = f"{session.session_id}:sample:{number}"
        made = core.samplers.get(sampler_id)
        if made is not None:
            if (made.model_path, made.base_model) != (
                request.model_path,
                request.base_model or made.base_model,
            ):
                raise bad(f"sampling session {sampler_id} was created before, with other weights")
            return types.CreateSamplingSessionResponse(sampling_session_id=sampler_id)
        core.refuse_when_draining()
        made = core.samplers[sampler_id] = self._made(request, sampler_id)
        # The model begins to load now, before the first sample.
        core.service.load(made.local)
        return types.CreateSamplingSessionResponse(sampling_session_id=sampler_id)

    def _made(
        self, request: types.CreateSamplingSessionRequest, sampler_id: str
    ) -> SamplingSession:
        core = self._core
        if request.model_path is None:
            if request.base_model is None:
                raise bad("create_sampling_session needs model_path or base_model")
            local = core.local(request.base_model)
            return SamplingSession(sampler_id, request.base_model, local, None, None)
        checkpoint = core.store.find(request.model_path, "state", "sampler")
        run = core.store.read_run(checkpoint.run_id)
        if run is None:
            raise gone(f"run {checkpoint.run_id} of {request.model_path} is no longer known")
        if request.base_model is not None and core.local(request.base_model) != run.local:
            raise bad(
                f"base_model={request.base_model[:100]!r}: {request.model_path} belongs to "
                f"{run.base_model!r}"
            )
        file = core.store.link_sampler(sampler_id, core.store.file_of(checkpoint))
        return SamplingSession(sampler_id, run.base_model, run.local, request.model_path, file)

    def get_sampler(self, sampler_id: str) -> types.GetSamplerResponse:
        """Return the facts about a sampling session."""
        found = self._core.sampler(sampler_id)
        return types.GetSamplerResponse(
            sampler_id=sampler_id, base_model=found.base_model, model_path=found.model_path
        )

    async def sample(
        self, data: Mapping[str, Any], fingerprint: bytes, size: int
    ) -> dict[str, Any]:
        """Promise samples; the answer has the ids of their sequences."""
        params = data.get("sampling_params")
        surplus = (
            sorted(set(params) - set(types.SamplingParams.model_fields))
            if isinstance(params, dict)
            else []
        )
        if surplus:
            # The SDK's type would drop them silently.
            raise bad(f"sampling_params: unknown setting {', '.join(map(repr, surplus))[:200]}")
        request = validated(types.SampleRequest, data)
        seq = checked_seq(request.seq_id)
        if request.sampling_session_id is None:
            raise bad("asample needs sampling_session_id; create a sampling session first")
        if request.base_model is not None or request.model_path is not None:
            raise bad("asample with a sampling_session_id takes neither base_model nor model_path")
        for name, instead in _REFUSED.items():
            if getattr(request, name):
                raise bad(f"{name} is not supported by this server{instead}")
        if not 1 <= request.num_samples <= MAX_SAMPLES:
            raise bad(
                f"num_samples={str(request.num_samples)[:40]} must be from 1 to {MAX_SAMPLES}"
            )
        core = self._core
        sampler = core.sampler(request.sampling_session_id)
        request_id = f"{sampler.sampler_id}:{seq}"
        promise = Promise(request_id, "sample", fingerprint, size)
        if core.seen(promise) is None:
            core.promises.check_room(size)
            future = await self._draw(sampler, request, seq)
            if core.promises.seen(promise) is not None:
                future.cancel()  # another copy of the request came first
            else:
                core.promises.add(promise)
                core.follow(sampler, promise, future)
        ids = [f"{request_id}:{i}" for i in range(request.num_samples)]
        return {"request_id": request_id, "sample_sequence_ids": ids}

    async def _draw(
        self, sampler: SamplingSession, request: types.SampleRequest, seq: int
    ) -> Future[types.SampleResponse]:
        try:
            client = await self._core.client_of(sampler)
        except FileNotFoundError:
            raise gone(
                f"the weights of sampling session {sampler.sampler_id} are no longer kept"
            ) from None

        def draw() -> Future[types.SampleResponse]:
            return client.sample(
                request.prompt,
                request.num_samples,
                request.sampling_params,
                bool(request.prompt_logprobs),
                request.topk_prompt_logprobs,
                request.prompt_logprobs_last_n,
                number=seq,
            ).future()

        if isinstance(request.sampling_params.stop, str | list | tuple):
            return await asyncio.to_thread(draw)  # stop texts need the tokenizer
        return draw()

    async def retrieve(self, request_id: str) -> Promise | None:
        """Return a promise once it is finished, else None."""
        promise = self._find(request_id)
        # A client that waits for an answer is alive.
        wait_s = min(WAIT_S, self._core.limits.session_timeout_s / 2)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(promise.done.wait(), wait_s)
        if not promise.done.is_set():
            return None
        promise.fetched = promise.fetched or time.monotonic()
        return promise

    def cancel(self, request: CancelRequest) -> None:
        """Cancel a sample that has not begun. Others are left alone."""
        promise = self._find(request.request_id)
        if promise.kind != "sample":
            raise bad(
                f"{promise.request_id} is a {promise.kind} request; only samples can be cancelled"
            )
        if promise.cancel is not None:
            promise.cancel()

    def _find(self, request_id: str) -> Promise:
        promise = self._core.promises.find(request_id)
        if promise is None:
            raise gone(
                f"request {request_id[:200]!r} is not known: its result was fetched long ago, or "
                "the server restarted"
            )
        self._core.session(promise.session_id)
        return promise
