"""Our own server's `/v1/boxes`: a WebSocket whose connection is a box, and ends with its owner.

The first message of the client has the box's settings, each further one a request; the server
answers each. The guard of `util.admission` refuses a connection that a web page opens.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict
from typing import Any

import aiohttp

from code_rl.grading.sandbox.commands import Box, BoxLimits, BoxResult
from code_rl.grading.sandbox.fusion.protocol import BOXES_PATH, beside, run_urls
from code_rl.grading.sandbox.fusion.transport import TOKEN_VARIABLE, bearer, raise_failure
from code_rl.util.errors import SandboxError
from code_rl.util.proxies import settle_proxies, via_proxy

SILENCE_S = 660.0
"""Seconds beyond a command's wall limit after which its box counts as lost."""
_STREAMS = ("stdout", "stderr")


class RemoteBox(Box):
    """A box on the machine of a `code-rl sandbox`."""

    def __init__(
        self,
        socket: aiohttp.ClientWebSocketResponse,
        url: str,
        disk_mb: int,
        writable: tuple[str, ...],
    ) -> None:
        """Use an open connection, whose first message the caller still has to send."""
        super().__init__(disk_mb, writable)
        self._socket, self._url = socket, url
        self._turn = asyncio.Lock()

    @property
    def closed(self) -> bool:
        """True once the box has ended: its connection is closed."""
        return self._socket.closed

    async def request(
        self, kind: str, text: str, stdin: bytes, limits: BoxLimits, home_read_only: bool = False
    ) -> BoxResult:
        """Send a request as `Box.request` says, one at a time, and wait up to its wall limit and
        660 s for the answer. Raises SandboxError, which ends the box, if the connection or the
        server fails. If the call is cancelled, the box closes."""
        async with self._turn:
            if self.closed:
                raise SandboxError("the box is closed; open another")
            try:
                data = base64.b64encode(stdin).decode()
                sent = [kind, text, data, list(limits), home_read_only]
                row = await self.exchange({"request": sent}, limits.wall_s + SILENCE_S)
                streams = {name: base64.b64decode(row[name]) for name in _STREAMS}
                return BoxResult(**{**row, **streams})
            except (KeyError, TypeError, ValueError) as error:
                raise SandboxError(f"{self._url}: an unreadable answer: {error}") from error
            except asyncio.CancelledError:
                await self._socket.close()
                raise

    async def exchange(self, message: Mapping[str, Any], wait_s: float) -> dict[str, Any]:
        """Send a message and return its answer, for which it waits up to `wait_s` seconds. Raises
        the server's refusal (RefusedError, ConfigError, IsolationError), or SandboxError if the box
        is lost; its connection is closed then."""
        try:
            await self._socket.send_json(message)
            answer: dict[str, Any] = await self._socket.receive_json(timeout=wait_s)
        except (TimeoutError, TypeError, ValueError, aiohttp.ClientError, OSError) as error:
            await self._socket.close()
            raise SandboxError(f"{self._url}: the box is lost: {error!r}") from error
        raise_failure(self._url, answer)
        return answer


@contextlib.asynccontextmanager
async def connect_box(
    url: str, disk_mb: int, environment: Mapping[str, str], writable: tuple[str, ...]
) -> AsyncIterator[RemoteBox]:
    """Open a box on the server at `url`; it ends with the block. The token is that of
    CODE_RL_SANDBOX_TOKEN. Raises ConfigError for a bad URL or setting, IsolationError if the
    server's level has no boxes, SandboxError if it cannot be reached or refuses the connection."""
    (run_url,) = run_urls(url, "url")
    settle_proxies(run_url)
    address = beside(run_url, BOXES_PATH)
    headers = bearer(os.environ.get(TOKEN_VARIABLE))
    async with aiohttp.ClientSession(headers=headers, trust_env=True) as session:
        try:
            socket = await session.ws_connect(address, max_msg_size=0)
        except aiohttp.WSServerHandshakeError as error:
            raise SandboxError(
                f"{address}: HTTP {error.status}; is this a code-rl sandbox, and does "
                f"{TOKEN_VARIABLE} hold its token?"
            ) from error
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            why = getattr(error, "strerror", None) or type(error).__name__
            raise SandboxError(
                f"{address}{via_proxy(address)} cannot be reached ({why}); boxes are opened by a "
                "running `code-rl sandbox`"
            ) from error
        async with socket:
            box = RemoteBox(socket, address, disk_mb, writable)
            await box.exchange(
                {"disk_mb": disk_mb, "environment": dict(environment), "writable": writable},
                SILENCE_S,
            )
            yield box


def result_row(result: BoxResult) -> dict[str, Any]:
    """Return a result as a JSON object; streams are base64."""
    streams = {name: base64.b64encode(getattr(result, name)).decode() for name in _STREAMS}
    return {**asdict(result), **streams}
