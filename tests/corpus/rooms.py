"""Where the corpora run: the embedded sandbox at each level that this machine has, and our server behind the Fusion client."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from code_rl.errors import IsolationError
from code_rl.problems.files import data_folder
from code_rl.sandbox.embedded import EmbeddedSandbox
from code_rl.sandbox.executor import Executor
from code_rl.sandbox.fusion import FusionClient

LEVELS = ("full", "landlock", "none")
CONFINED = ("full", "landlock")
FUSION = "fusion"
ROOMS = (*LEVELS, FUSION)
THIRDS = [
    *(pytest.param(name, 1, id=name) for name in ("full",)),
    pytest.param("landlock", 3, id="landlock-third", marks=pytest.mark.slow),
    pytest.param(FUSION, 3, id=f"{FUSION}-third"),
    *(pytest.param(name, 1, id=name, marks=pytest.mark.slow) for name in ("landlock", FUSION)),
]
"""The strongest level runs everything; the server a third of it by default; all else is in the slow run."""
DATA = (data_folder(), Path(__file__).parents[2] / ".." / "shared" / "data")
"""Where public files are looked for; the first is what `code-rl data fetch` fills, as it is before a test moves the cache."""


@contextlib.asynccontextmanager
async def room(name: str, concurrency: int = 4) -> AsyncIterator[Executor]:
    """The executor called `name`. Skips the test when this machine cannot have that level."""
    try:
        executor = await _server(concurrency) if name == FUSION else _Embedded(name, concurrency)
    except IsolationError as error:
        pytest.skip(str(error))
    async with executor as opened:
        yield opened


class _Embedded:
    def __init__(self, level: str, concurrency: int) -> None:
        self._sandbox = EmbeddedSandbox(concurrency=concurrency, isolation=level)

    async def __aenter__(self) -> Executor:
        return self._sandbox

    async def __aexit__(self, *_: object) -> None:
        await self._sandbox.aclose()


class _Served:
    """Our server as a process of its own, and a client of it."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, concurrency: int) -> None:
        self._process = process
        self._client = FusionClient([url], concurrency=concurrency)

    async def __aenter__(self) -> Executor:
        return self._client

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()
        self._process.terminate()
        await self._process.wait()


async def _server(concurrency: int) -> _Served:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "code_rl.cli",
        "sandbox",
        "port=0",
        f"concurrency={concurrency}",
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    assert line.startswith("serving "), line
    return _Served(process, line.split()[1], concurrency)


def data_file(name: str) -> Path:
    """A public file; skips the test where it is absent."""
    found = [folder / name for folder in DATA if (folder / name).exists()]
    if not found:
        pytest.skip(f"{name} is not in $CODE_RL_DATA, which `code-rl data fetch` fills")
    return found[0]
