"""The result file: frames that the harness appends, one after each test, read here without trusting them.

A frame is `CRX1`, header length (u32), body length (u64), CRC-32 of header and body (u32), a JSON header, the body. Frames are
appended as tests end, so that a file cut anywhere still holds every test before the cut.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import Any

from code_rl.sandbox.executor import Execution, Status
from code_rl.sandbox.fusion.remote.harness import MAGIC, PREFIX

MAX_HEADER_BYTES = 1 << 16
DETAIL_CHARS = 2000


@dataclass(frozen=True, slots=True)
class Records:
    """What a result file says. `executions` are the tests from the chunk's first on, without gaps.

    `end` is why the harness stopped (done, failed, bytes, deadline, starved, error), None when the file ends before its last frame.
    `expected_bytes` is the size that the file needs at least to hold the frame that was cut, else its own size.
    """

    executions: tuple[Execution, ...]
    end: str | None
    detail: str
    expected_bytes: int


def read_records(data: bytes, nonce: str, count: int) -> Records:
    """Read up to `count` executions. Never raises: what cannot be read ends the records."""
    executions: list[Execution] = []
    position = 0
    while len(data) - position >= PREFIX.size:
        magic, header_bytes, body_bytes, crc = PREFIX.unpack_from(data, position)
        start = position + PREFIX.size
        stop = start + header_bytes + body_bytes
        if magic != MAGIC or header_bytes > MAX_HEADER_BYTES:
            break
        if stop > len(data):
            return Records(tuple(executions), None, "cut within a frame", stop)
        header = _header(data, start, header_bytes, stop, crc)
        if header is None or header.get("nonce") != nonce:
            break
        end = header.get("end")
        if end is not None:
            return Records(tuple(executions), str(end), str(header.get("detail", ""))[:DETAIL_CHARS], stop)
        execution = _execution(header, data[start + header_bytes : stop])
        if execution is None or header.get("index") != len(executions) or len(executions) >= count:
            break
        executions.append(execution)
        position = stop
    return Records(tuple(executions), None, "no end frame", len(data))


def _header(data: bytes, start: int, size: int, stop: int, crc: int) -> dict[str, Any] | None:
    if zlib.crc32(memoryview(data)[start:stop]) != crc:
        return None
    try:
        header = json.loads(data[start : start + size])
    except (ValueError, RecursionError):
        return None
    return header if isinstance(header, dict) else None


def _execution(header: dict[str, Any], body: bytes) -> Execution | None:
    try:
        sizes = [int(header[name]) for name in ("stdout", "value", "stderr")]
        stdout, value, stderr = max(sizes[0], 0), max(sizes[1], 0), max(sizes[2], 0)
        if stdout + value + stderr != len(body):
            return None
        code = header["exit_code"]
        return Execution(
            status=Status(header["status"]),
            stdout=body[:stdout],
            value=body[stdout : stdout + value] if sizes[1] >= 0 else None,
            stderr=body[stdout + value :],
            exit_code=None if code is None else int(code),
            cpu_s=float(header["cpu_s"]),
            wall_s=float(header["wall_s"]),
            peak_memory_bytes=int(header["peak_memory_bytes"]),
            detail=str(header["detail"])[:DETAIL_CHARS],
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
