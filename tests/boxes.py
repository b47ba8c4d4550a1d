"""Sandboxes that the tests of one process share: to start one takes longer than most programs.

What a submission leaves is no business of the next one's, which is what `tests/grading/corpus` holds the sandbox to; a test that kills workers,
closes the sandbox or counts what it has makes one of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path

import pytest
from aiohttp import web

from code_rl import open_box
from code_rl.grading.sandbox.server import EmbeddedSandbox
from code_rl.util.errors import IsolationError

_servers: list[subprocess.Popen[str]] = []


@cache
def shared_box(level: str = "auto", concurrency: int = 1) -> EmbeddedSandbox:
    """An embedded sandbox, open until the session ends. Raises IsolationError."""
    return EmbeddedSandbox(concurrency, level)


def start_server(concurrency: int) -> tuple[subprocess.Popen[str], str]:
    """A `code-rl sandbox` in a process of its own, and its address."""
    command = [sys.executable, "-m", "code_rl.cli", "sandbox", "port=0", f"sandbox_concurrency={concurrency}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("serving "), line
    return process, line.split()[1]


def end_server(process: subprocess.Popen[str]) -> None:
    """Have it end, and wait for that."""
    process.terminate()
    process.communicate()


@contextlib.asynccontextmanager
async def served(app: web.Application) -> AsyncIterator[str]:
    """The address of `app` on loopback; a client that goes away takes its request with it."""
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@cache
def shared_server(concurrency: int) -> str:
    """The address of a server that runs until the session ends."""
    process, url = start_server(concurrency)
    _servers.append(process)
    return url


def end_servers() -> None:
    """When the session ends; the processes of a sandbox end with this one."""
    for process in _servers:
        end_server(process)


def require_boxes(level: str = "auto") -> None:
    """Skip the test where this machine has no boxes at that level."""

    async def opened() -> None:
        async with open_box(level):
            pass

    try:
        asyncio.run(opened())
    except IsolationError as error:
        pytest.skip(str(error))


def descendants(pid: str = "self") -> set[str]:
    """The processes below this one, or below `pid`, that have not ended."""
    found: set[str] = set()
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for child in file.read_text().split():
                found |= {child} | descendants(child)
    return found
