"""Admission of requests to a server: a guard against web pages, a limit on running requests, a
bounded queue, none while draining."""

from __future__ import annotations

import asyncio
import ipaddress
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from code_rl.util.concurrency import forget_signals, on_loop_signal
from code_rl.util.errors import ConfigError

if TYPE_CHECKING:
    from aiohttp import web

BODY_TYPES = ("application/json", "application/x-protobuf")
"""A browser asks for permission before it sends another site a body of these types. No server of
ours gives it."""
BODY_TIMEOUT_S = 60.0


def is_loopback(host: str) -> bool:
    """Return True if a host, with or without a port, is `localhost` or a loopback address. No name
    is looked up: any other name is False."""
    try:
        name = urlsplit(f"//{host}").hostname or host
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def url_of(host: str, port: int) -> str:
    """Return the `http` URL of a server at a host and port; an IPv6 address is put in brackets."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class NotTakenError(Exception):
    """A request was refused with the HTTP `status`. It may be sent again after `retry_after_s`, if
    given."""

    def __init__(self, status: int, message: str, retry_after_s: int | None) -> None:
        """Make the headers of the answer: `Retry-After` in seconds, or, with `retry_after_s` None,
        one that closes the connection."""
        super().__init__(message)
        self.status = status
        self.headers = (
            {"Connection": "close"}
            if retry_after_s is None
            else {"Retry-After": str(retry_after_s)}
        )


class Admission:
    """Counts requests. It belongs to one event loop."""

    def __init__(self, concurrency: int, max_queue: int) -> None:
        """Allow `concurrency` running requests and `max_queue` waiting ones. All calls must come
        from one event loop."""
        self.draining = False
        self.places = concurrency
        self._room = concurrency + max_queue
        self._admitted = 0
        self.running = asyncio.Semaphore(concurrency)
        """Held while a program runs. The requests that wait for it are the queue."""
        self.idle = asyncio.Event()
        """Set if no request is running or waiting."""
        self.idle.set()

    @property
    def held(self) -> int:
        """The number of requests that run or wait."""
        return self._admitted

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Count a request as running or queued during the block. Raises NotTakenError at once,
        before it counts, if the queue is full (429) or the server is draining (503). The caller
        then waits for `running`."""
        self._check_room()
        self._admitted += 1
        self.idle.clear()
        try:
            yield
        finally:
            self._admitted -= 1
            if not self._admitted:
                self.idle.set()

    def _check_room(self) -> None:
        """Raise NotTakenError if one more request cannot be admitted: 503 while draining, 429 if
        all slots and the queue are full."""
        if self.draining:
            raise NotTakenError(503, "the server is shutting down", 5)
        if self._admitted >= self._room:
            raise NotTakenError(
                429, f"{self._admitted} requests are running or queued, the limit", 1
            )


@asynccontextmanager
async def listening(
    app: web.Application, host: str, port: int, *, unpacks: bool = False
) -> AsyncIterator[int]:
    """Accept connections and yield the port, which the system chooses for `port` 0. On exit no more
    requests are accepted, and open ones are cancelled after a second. Raises ConfigError if the
    address cannot be used.

    If a client disconnects, its request is cancelled. With `unpacks`, bodies may be compressed.

    A web page is refused: a request that names its origin, or whose body has a type that pages may
    send. On a loopback address so is another host name, under which a page could reach this server
    (DNS rebinding). Bodies are read here, before a handler runs. The guard is added to `app`, so an
    application listens only once.
    """
    from aiohttp import web

    @web.middleware
    async def guard(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Refuse requests of web pages (403, 415) and bodies that do not arrive in 60 s (408) or
        are malformed (400); pass the others to the handler with their body read."""
        if is_loopback(host) and not is_loopback(request.host):
            raise web.HTTPForbidden(reason="this server answers requests to this machine only")
        if "Origin" in request.headers:
            raise web.HTTPForbidden(reason="a web page may not send requests here")
        if request.body_exists:
            if request.content_type not in BODY_TYPES:
                raise web.HTTPUnsupportedMediaType(reason="send Content-Type: application/json")
            try:
                async with asyncio.timeout(BODY_TIMEOUT_S):
                    await request.read()
            except TimeoutError:
                raise web.HTTPRequestTimeout(
                    reason=f"the body did not arrive within {BODY_TIMEOUT_S:g} s"
                ) from None
            except web.RequestPayloadError:
                raise web.HTTPBadRequest(reason="the body is not as its headers say") from None
        return await handler(request)

    app.middlewares.append(guard)
    runner = web.AppRunner(
        app,
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=1.0,
        auto_decompress=unpacks,
    )
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port, backlog=1024).start()
        except OSError as error:
            raise ConfigError(
                f"port={port} on host={host} cannot be used: {error.strerror or error}; choose "
                "another"
            ) from error
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def stop_signal() -> asyncio.Event:
    """Return an event that the first SIGTERM or SIGINT sets; a second one ends the process at
    once. It replaces this process's handlers of both signals and must be called in a running event
    loop."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        """Set the event, and let the next signal end the process."""
        stop.set()
        forget_signals(loop, numbers)

    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        on_loop_signal(loop, number, on_signal)
    return stop
