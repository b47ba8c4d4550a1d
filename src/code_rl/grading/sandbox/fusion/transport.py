"""One HTTP exchange with a Sandbox Fusion server; every failure is a typed error."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import aiohttp

from code_rl.grading.sandbox.executor import LostError, RefusedError, Status
from code_rl.grading.sandbox.fusion.protocol import (
    SANDBOX_ERROR,
    ProtocolError,
    RunRequest,
    RunResponse,
)
from code_rl.util.errors import CodeRLError, ConfigError, IsolationError, SandboxError
from code_rl.util.proxies import via_proxy

MAX_RESPONSE_BYTES = 512 << 20
PING_TIMEOUT_S = 3.0
CONNECT_TIMEOUT_S = 10.0
TOKEN_VARIABLE = "CODE_RL_SANDBOX_TOKEN"  # noqa: S105 - its name
PERMANENT = (401, 403, 405, 413, 422)


class TroubleError(SandboxError):
    """The server or the connection failed; another try may work."""


_FAILURES: dict[str, type[CodeRLError]] = {
    "refused": RefusedError,
    "config": ConfigError,
    "isolation": IsolationError,
}
"""Failures that another try would meet again. Any other is trouble of the server."""


def failure_row(failure: Exception) -> dict[str, str]:
    """Return a failure as a message of our own server: its kind, by which `raise_failure` restores
    its class, and its text."""
    kind = next((name for name, error in _FAILURES.items() if isinstance(failure, error)), "")
    return {"failure": kind, "text": str(failure)}


def raise_failure(url: str, row: Mapping[str, Any]) -> None:
    """Raise the failure that a message of our own server has, if any: RefusedError, ConfigError,
    IsolationError, else TroubleError."""
    if "failure" in row:
        raise _FAILURES.get(row["failure"], TroubleError)(f"{url}: {row['text']}")


class OverloadedError(SandboxError):
    """The server asks for another try after `retry_after_s` seconds."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        """`retry_after_s` is the pause that the server asks for, in seconds."""
        super().__init__(message)
        self.retry_after_s = retry_after_s


def bearer(token: str | None) -> dict[str, str]:
    """Return the header with a token for our own servers; no header for None or an empty token."""
    return {"Authorization": f"Bearer {token}"} if token else {}


async def post_run(
    session: aiohttp.ClientSession, url: str, request: RunRequest, timeout_s: float
) -> RunResponse:
    """Run one request and return the answer. It is sent once: retries are the caller's.

    Raises:
        TroubleError: no connection, HTTP or protocol failure, or the server's own SandboxError.
        LostError: the connection dropped after the request was sent, or no answer came in time.
        OverloadedError: 429, or 503 with Retry-After.
        RefusedError: a status in PERMANENT.
    """
    timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(CONNECT_TIMEOUT_S, timeout_s))
    try:
        async with session.post(url, json=request.to_json(), timeout=timeout) as response:
            if response.status != 200:
                raise await refusal(url, response)
            text = await _read(response)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise TroubleError(f"{url}: no connection{via_proxy(url)}: {error}") from error
    except TimeoutError as error:
        raise LostError(
            f"{url}: no answer within {timeout_s:.0f} s", Status.TIME_LIMIT, unanswered=True
        ) from error
    except (aiohttp.ClientPayloadError, aiohttp.ClientResponseError) as error:
        raise TroubleError(f"{url}: {type(error).__name__}: {error}") from error
    except (aiohttp.ClientError, OSError) as error:
        raise LostError(
            f"{url}: the connection dropped: {type(error).__name__}: {error}", unanswered=True
        ) from error
    try:
        answer = RunResponse.from_json(json.loads(text))
    except (ProtocolError, ValueError, RecursionError) as error:
        raise TroubleError(f"{url}: unreadable answer of {len(text)} bytes: {error}") from error
    if answer.status == SANDBOX_ERROR:
        raise TroubleError(f"{url}: SandboxError: {answer.message[:500]}")
    if answer.run_result is None and not (
        answer.compile_result and answer.compile_result.return_code
    ):
        raise TroubleError(f"{url}: status {answer.status} without a run_result")
    return answer


async def ping(session: aiohttp.ClientSession, url: str) -> Mapping[str, str] | None:
    """Return the headers of a healthy server's answer, or None if its health check fails or takes 3
    s. Never raises an error of the network."""
    timeout = aiohttp.ClientTimeout(total=PING_TIMEOUT_S)
    try:
        async with session.get(url, timeout=timeout) as response:
            return response.headers if response.status == 200 else None
    except (aiohttp.ClientError, OSError, ValueError):
        return None


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """Return the body of an answer. Raises TroubleError if it has 512 MiB or more."""
    try:
        await response.content.readexactly(MAX_RESPONSE_BYTES)
    except asyncio.IncompleteReadError as whole:
        return whole.partial
    raise TroubleError(f"{response.url}: an answer of {MAX_RESPONSE_BYTES} bytes or more")


async def refusal(url: str, response: aiohttp.ClientResponse) -> SandboxError:
    """Return the error of an answer with another status than 200: OverloadedError, RefusedError for
    a status in PERMANENT, else TroubleError. The caller raises it."""
    text = (await response.content.read(500)).decode("utf-8", "replace").strip()
    message = f"{url}: HTTP {response.status}: {text}"
    retry_after = response.headers.get("Retry-After")
    if response.status == 429 or (response.status == 503 and retry_after):
        return OverloadedError(message, _seconds(retry_after))
    if response.status in PERMANENT:
        no_page = response.status in (404, 405)
        hint = "; is this the /run_code address of a Sandbox Fusion server?" if no_page else ""
        return RefusedError(f"{message}{hint}")
    return TroubleError(message)


def _seconds(text: str | None) -> float:
    """Return the seconds of a Retry-After header, from 0.05 to 60; 1 if it is missing or
    unreadable."""
    try:
        return min(max(float(text or 1.0), 0.05), 60.0)
    except ValueError:
        return 1.0
