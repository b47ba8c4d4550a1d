"""One HTTP exchange with a Sandbox Fusion server; every failure is a typed error."""

from __future__ import annotations

import asyncio
import json
import math

import aiohttp

from code_rl.grading.sandbox.executor import Status
from code_rl.grading.sandbox.fusion.protocol import (
    LONGEST_RUN_HEADER,
    SANDBOX_ERROR,
    ProtocolError,
    RunRequest,
    RunResponse,
)
from code_rl.grading.sandbox.retries import LostError, RefusedError
from code_rl.util.errors import SandboxError
from code_rl.util.proxies import via_proxy

MAX_RESPONSE_BYTES = 512 << 20
PING_TIMEOUT_S = 3.0
CONNECT_TIMEOUT_S = 10.0
PERMANENT = (401, 403, 405, 422)


class TroubleError(SandboxError):
    """The server or the connection failed; another try may work."""


class OverloadedError(SandboxError):
    """The server asks for another try after `retry_after_s` seconds."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class UnansweredError(LostError):
    """The request was sent, but no answer came."""


class TooLargeError(RefusedError):
    """The request is over the server's size limit."""


async def post_run(
    session: aiohttp.ClientSession, url: str, request: RunRequest, timeout_s: float
) -> RunResponse:
    """Run one request.

    Raises:
        TroubleError: no connection, HTTP or protocol failure, or the server's own SandboxError.
        UnansweredError: the connection dropped after the request was sent, or no answer came in
            time.
        OverloadedError: 429, or 503 with Retry-After.
        RefusedError: a status in PERMANENT; TooLargeError for 413.
    """
    timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(CONNECT_TIMEOUT_S, timeout_s))
    try:
        async with session.post(url, json=request.to_json(), timeout=timeout) as response:
            if response.status != 200:
                raise await _refusal(url, response)
            body = await _read(response)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise TroubleError(f"{url}: no connection{via_proxy(url)}: {error}") from error
    except TimeoutError as error:
        raise UnansweredError(
            f"{url}: no answer within {timeout_s:.0f} s", Status.TIME_LIMIT
        ) from error
    except (aiohttp.ClientPayloadError, aiohttp.ClientResponseError) as error:
        raise TroubleError(f"{url}: {type(error).__name__}: {error}") from error
    except (aiohttp.ClientError, OSError) as error:
        raise UnansweredError(
            f"{url}: the connection dropped: {type(error).__name__}: {error}"
        ) from error
    try:
        answer = RunResponse.from_json(json.loads(body))
    except (ProtocolError, ValueError, RecursionError) as error:
        raise TroubleError(f"{url}: unreadable answer of {len(body)} bytes: {error}") from error
    if answer.status == SANDBOX_ERROR:
        raise TroubleError(f"{url}: SandboxError: {answer.message[:500]}")
    if answer.run_result is None:
        raise TroubleError(f"{url}: status {answer.status} without a run_result")
    return answer


async def ping(session: aiohttp.ClientSession, url: str) -> float | None:
    """Return the longest run that a healthy server allows (infinity if it does not say), or None if
    its health check fails."""
    try:
        async with session.get(
            url, timeout=aiohttp.ClientTimeout(total=PING_TIMEOUT_S)
        ) as response:
            return (
                float(response.headers.get(LONGEST_RUN_HEADER, math.inf))
                if response.status == 200
                else None
            )
    except (aiohttp.ClientError, OSError, ValueError):
        return None


async def _read(response: aiohttp.ClientResponse) -> bytes:
    try:
        await response.content.readexactly(MAX_RESPONSE_BYTES)
    except asyncio.IncompleteReadError as whole:
        return whole.partial
    raise TroubleError(f"{response.url}: an answer of {MAX_RESPONSE_BYTES} bytes or more")


async def _refusal(url: str, response: aiohttp.ClientResponse) -> SandboxError:
    text = (await response.content.read(500)).decode("utf-8", "replace").strip()
    message = f"{url}: HTTP {response.status}: {text}"
    retry_after = response.headers.get("Retry-After")
    if response.status == 429 or (response.status == 503 and retry_after):
        return OverloadedError(message, _seconds(retry_after))
    if response.status == 413:
        return TooLargeError(message)
    if response.status in PERMANENT:
        return RefusedError(f"{message}; is this the /run_code address of a Sandbox Fusion server?")
    return TroubleError(message)


def _seconds(text: str | None) -> float:
    try:
        return min(max(float(text or 1.0), 0.05), 60.0)
    except ValueError:
        return 1.0
