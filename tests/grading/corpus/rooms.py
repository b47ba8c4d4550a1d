"""Where the corpora run: the embedded sandbox at each level that this machine has, our server, and a Sandbox Fusion server (a relay in front of ours, which hides that it takes whole jobs)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from code_rl.grading.sandbox import Executor, connect_executor
from code_rl.grading.sandbox.server import EmbeddedSandbox
from code_rl.util.data_files import data_folder
from code_rl.util.errors import IsolationError
from tests.boxes import end_server, shared_box, shared_server, start_server
from tests.grading.fusion.fusion_support import fake_server, relay

LEVELS = ("full", "landlock", "none")
CONFINED = ("full", "landlock")
FUSION, SERVER = "fusion", "server"
ROOMS = (*LEVELS, FUSION)
CONFINING = (*CONFINED, FUSION, SERVER)
SAMPLES = [
    pytest.param("full", True, id="full-sample"),
    *(pytest.param(name, False, id=name, marks=[pytest.mark.slow, pytest.mark.timeout(1800)]) for name in CONFINING),
]
"""Rooms, and whether only a sample runs there."""
DATA = (data_folder(), Path(__file__).parents[3] / ".." / "shared" / "data")
"""Where public files are looked for; the first is what `python -m tests.grading.corpus.public` fills, as it is before a test moves the cache."""


@contextlib.asynccontextmanager
async def room(name: str, concurrency: int = 4, *, own: bool = False) -> AsyncIterator[Executor]:
    """The executor called `name`, shared or `own`. Skips the test when this machine cannot have that level."""
    async with contextlib.AsyncExitStack() as stack:
        if name in (FUSION, SERVER):
            pytest.importorskip("chz", reason="the verb `sandbox` needs the extra train")
            url = shared_server(concurrency) if not own else await stack.enter_async_context(_server(concurrency))
            if name == FUSION:
                url = await stack.enter_async_context(fake_server(relay, url.removesuffix("/run_code")))
            client = connect_executor(url, concurrency=concurrency)
            stack.push_async_callback(client.aclose)
            yield client
            return
        try:
            box = EmbeddedSandbox(concurrency, name) if own else shared_box(name, concurrency)
        except IsolationError as error:
            pytest.skip(str(error))
        if own:
            await stack.enter_async_context(box)
        yield box


@contextlib.asynccontextmanager
async def _server(concurrency: int) -> AsyncIterator[str]:
    process, url = await asyncio.to_thread(start_server, concurrency)
    yield url
    await asyncio.to_thread(end_server, process)


def data_file(name: str) -> Path:
    """A public file; skips the test where it is absent."""
    found = [folder / name for folder in DATA if (folder / name).exists()]
    if not found:
        pytest.skip(f"{name} is not in $CODE_RL_DATA, which `python -m tests.grading.corpus.public` fills")
    return found[0]
