"""Boxes of the server: one for each connection, which ends with it."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

from aiohttp import web

from code_rl.grading.sandbox.boxes import open_box
from code_rl.grading.sandbox.commands import READ, SHELL, WRITE, Box, BoxLimits
from code_rl.grading.sandbox.fusion.boxes import result_row
from code_rl.grading.sandbox.fusion.transport import failure_row
from code_rl.grading.sandbox.server.run_code import RunLimits
from code_rl.util.errors import CodeRLError, ConfigError


async def serve_box(
    request: web.Request, limits: RunLimits, most_bytes: int, running: asyncio.Semaphore
) -> web.WebSocketResponse:
    """Open a box, and answer the requests of a connection, of up to `most_bytes` each, until it
    ends. Commands hold `running` while they run. A failure is sent as the last message, not
    raised."""
    socket = web.WebSocketResponse(max_msg_size=most_bytes)
    await socket.prepare(request)
    try:
        settings = await socket.receive_json()
        async with open_box(
            disk_mb=_number(settings["disk_mb"], "disk_mb", limits.memory_mb),
            environment={str(name): str(text) for name, text in settings["environment"].items()},
            writable=tuple(settings["writable"]),
        ) as box:
            await socket.send_json({})
            async for message in socket:
                async with running:
                    answer = await _answer(box, message.json(), limits)
                await socket.send_json(answer)
                if box.closed:
                    break
    except CodeRLError as error:
        failure: Exception = error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        failure = ConfigError(f"an unreadable message: {error!r}")
    else:
        return socket
    if not socket.closed:
        await socket.send_json(failure_row(failure))
    return socket


async def _answer(box: Box, message: dict[str, Any], most: RunLimits) -> dict[str, Any]:
    """Run one request of a box within the server's limits; return its row, or the failure's. Raises
    KeyError, TypeError or ValueError for a malformed message."""
    kind, text, data, given, home_read_only = message["request"]
    limits = BoxLimits(*given)
    if kind not in (SHELL, WRITE, READ):
        raise ValueError(kind)
    bounds = (most.longest_s, most.longest_s, most.memory_mb, most.output_bytes, most.processes)
    stdin = base64.b64decode(data, validate=True)
    try:
        for name, value, bound in zip(BoxLimits._fields, limits, bounds, strict=True):
            # A file is read whole, up to the quota.
            _number(value, name, bound if kind == SHELL else (most.memory_mb << 20) + 1)
        result = await box.request(kind, text, stdin, limits, bool(home_read_only))
    except CodeRLError as error:
        return failure_row(error)
    return result_row(result)


def _number(value: Any, name: str, most: float) -> Any:
    """Return a number that is above 0 and at most `most`. Raises ConfigError for any other, and
    TypeError for what is no number."""
    if not 0 < value <= most:  # also for NaN
        raise ConfigError(f"{name}={value}: use a number above 0, up to the server's {most:g}")
    return value
