"""Reads a request's body. Its bytes, once unpacked, and the parts of its JSON are counted before anything is built of them; a sender that is too slow is refused."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

from aiohttp import web

from code_rl.sandbox.serving.admission import NotTakenError

PIECE_BYTES = 1 << 18
MOST_PARTS = 100_000
GZIP, ZLIB, RAW = 31, 15, -15


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a body must come: whole within `timeout_s`, and never more than `grace_s` behind `bytes_per_s`."""

    timeout_s: float
    grace_s: float
    bytes_per_s: float


async def read_body(request: web.Request, count: Callable[[int], None], most: int, pace: Pace) -> bytearray:
    """The body, unpacked; `count` is told of its bytes. Raises NotTakenError, too, as soon as all requests together hold too much."""
    body = bytearray()
    unpacker = _Unpacker(request.headers.get("Content-Encoding", "identity").strip().lower())
    parts = _Parts()
    async for packed in _arriving(request, pace):
        for piece in unpacker.unpack(packed):
            count(len(piece))
            body += piece
            if len(body) > most:
                raise NotTakenError(413, f"a request may have {most} bytes")
            if parts.count(piece) > MOST_PARTS:
                raise NotTakenError(413, f"a request may have {MOST_PARTS} commas and brackets outside of its strings")
            await asyncio.sleep(0)
    unpacker.finish()
    return body


async def _arriving(request: web.Request, pace: Pace) -> AsyncIterator[bytes]:
    """The body as it comes. Only the time spent waiting for the sender counts. Raises NotTakenError when it is too slow."""
    left, slack = pace.timeout_s, pace.grace_s
    while True:
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(min(left, slack)):
                part = await request.content.readany()
        except TimeoutError as error:
            if left <= slack:
                raise NotTakenError(408, f"the body did not arrive within {pace.timeout_s:g} s") from error
            raise NotTakenError(408, f"the body came slower than {pace.bytes_per_s:g} bytes a second") from error
        if not part:
            return
        waited = asyncio.get_running_loop().time() - began
        left -= waited
        slack = min(slack - waited + len(part) / pace.bytes_per_s, pace.grace_s)
        yield part


class _Parts:
    """Counts the commas and opening brackets outside of strings: a few bytes of JSON become many of Python's objects."""

    def __init__(self) -> None:
        self._total = 0
        self._in_string = False
        self._rest = b""

    def count(self, piece: bytes) -> int:
        """How many there were up to here."""
        plain = (self._rest + piece).replace(b"\\\\", b"").replace(b'\\"', b"")
        self._rest = b"\\" if plain.endswith(b"\\") else b""
        strings_and_others = plain.split(b'"')
        outside = b"".join(strings_and_others[self._in_string :: 2])
        self._in_string ^= not len(strings_and_others) & 1
        self._total += sum(map(outside.count, (b",", b"[", b"{")))
        return self._total


class _Unpacker:
    """Unpacks a stream piece by piece, so that no few bytes become many before they are counted."""

    def __init__(self, encoding: str) -> None:
        if encoding not in ("identity", "", "gzip", "x-gzip", "deflate"):
            raise NotTakenError(415, f"Content-Encoding {encoding!r} is not known here; use gzip, deflate or none")
        self._packed = encoding not in ("identity", "")
        self._gzip = encoding.endswith("gzip")
        self._stream: zlib._Decompress | None = None

    def unpack(self, part: bytes) -> Iterator[bytes]:
        if not self._packed:
            yield part
            return
        piece = b""
        while part or len(piece) == PIECE_BYTES:  # a full piece: there may be more without more input
            stream = self._stream = self._next_stream(part)
            try:
                piece = stream.decompress(part, PIECE_BYTES)
            except zlib.error as error:
                raise NotTakenError(400, f"the body cannot be unpacked: {error}") from error
            part = stream.unconsumed_tail or stream.unused_data
            yield piece
            if stream.eof:
                piece = b""

    def _next_stream(self, part: bytes) -> zlib._Decompress:
        """What reads `part`: a gzip body of several members is one body."""
        if self._stream is None:
            return zlib.decompressobj(GZIP if self._gzip else ZLIB if part[0] & 15 == 8 else RAW)
        if not self._stream.eof:
            return self._stream
        if not self._gzip:
            raise NotTakenError(400, "there is more after the end of the compressed body")
        return zlib.decompressobj(GZIP)

    def finish(self) -> None:
        """Raise NotTakenError when something is missing."""
        if self._packed and (self._stream is None or not self._stream.eof):
            raise NotTakenError(400, "the compressed body ends too early")
