"""Calls about futures: fetching one, waiting for any of a sampling client's, cancelling."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict
from tinker import types
from tinker.types.future_completion import FutureFailed, FutureFinished
from tinker.types.future_retrieve_request import FutureRetrieveRequest
from tinker.types.futures_retrieve_request import FuturesRetrieveRequest
from tinker.types.futures_retrieve_response import FuturesRetrieveResponse

from .core import Core
from .promises import Promise
from .refusals import bad, gone
from .requests import validated

WAIT_S = 25.0


class _Cancel(BaseModel):
    model_config = ConfigDict(extra="forbid")
    request_id: str


class FutureCalls:
    """What the SDK's futures call."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def retrieve(self, data: Mapping[str, Any]) -> Promise | None:
        """A promise once it is finished; None: not yet."""
        request = validated(FutureRetrieveRequest, data)
        promise = self._find(request.request_id)
        with self._core.session(promise.session_id).listening(), contextlib.suppress(TimeoutError):
            await asyncio.wait_for(promise.done.wait(), WAIT_S)
        if not promise.done.is_set():
            return None
        promise.fetched = promise.fetched or time.monotonic()
        return promise

    async def retrieve_many(self, data: Mapping[str, Any]) -> FuturesRetrieveResponse:
        """The requests of one sampling client that have ended since `prev_cursor`, once there are any."""
        request = validated(FuturesRetrieveRequest, data)
        target = request.target
        sampler = self._core.sampler(target.sampling_session_id)
        for request_id in request.retrieved_request_ids[:100_000]:
            if request_id.startswith(f"{sampler.record.sampler_id}:"):
                self._core.promises.drop_request(request_id)
        found = self._core.promises.completions(f"{sampler.record.sampler_id}/{target.cloned_sampler_id}")
        if request.prev_cursor > found.cursor:
            raise gone(f"cursor {str(request.prev_cursor)[:40]} is from before a restart of the server")
        while found.events and found.events[0][0] <= request.prev_cursor:
            found.events.popleft()
        wait_s = WAIT_S if request.timeout is None else min(max(request.timeout, 0.0), WAIT_S)
        if not found.events and wait_s:
            found.changed.clear()
            with self._core.session(sampler.record.sampler_id).listening(), contextlib.suppress(TimeoutError):
                await asyncio.wait_for(found.changed.wait(), wait_s)
        return FuturesRetrieveResponse(
            completions=[_completion(promise) for _, promise in found.events], cursor=found.cursor
        )

    def cancel(self, data: Mapping[str, Any]) -> None:
        """Stop a sample that has not begun. One that has begun or ended is left alone."""
        request = validated(_Cancel, data)
        promise = self._find(request.request_id)
        if promise.kind != "sample":
            raise bad(f"{promise.request_id} is a {promise.kind} request; only samples can be cancelled")
        if promise.cancel is not None:
            promise.cancel()

    def _find(self, request_id: str) -> Promise:
        promise = self._core.promises.find(request_id)
        if promise is None:
            raise gone(
                f"request {request_id[:200]!r} is not known: its result was fetched long ago, or the server restarted"
            )
        self._core.session(promise.session_id)
        return promise


def _completion(promise: Promise) -> types.FutureCompletion:
    if promise.error is not None:
        return FutureFailed(request_id=promise.request_id)
    return FutureFinished(request_id=promise.request_id, response_payload_uncompressed_size=promise.size)
