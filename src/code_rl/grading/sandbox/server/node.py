"""The sandbox of one Ray node: our own server (`server.application`) inside an actor."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from code_rl.grading.sandbox.local.pool import EmbeddedSandbox
from code_rl.grading.sandbox.server.application import SandboxApplication
from code_rl.grading.sandbox.server.run_code import RunLimits
from code_rl.util.admission import Admission, url_of
from code_rl.util.data_files import sources_digest
from code_rl.util.errors import CodeRLError
from code_rl.util.version import __version__

MAX_REQUEST_BYTES = 1 << 30
MAX_QUEUE = 4096
LIMITS = RunLimits(memory_mb=1 << 20, output_bytes=1 << 30, processes=1 << 15, longest_s=1e6)
"""A run's own limits decide: its jobs come from the process that owns the run."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Facts about a node: its code, isolation level and address. `refusal` is why it runs no
    programs."""

    code: str
    isolation: str = ""
    url: str = ""
    refusal: str = ""


def code_here() -> str:
    """Return the version of the sandbox's code here, with a hash of its files, which must be equal
    on all nodes."""
    return (
        f"{__version__} {sources_digest('code_rl.grading.sandbox', 'code_rl.grading.values')[:12]}"
    )


class Node:
    """The actor. The server runs in its event loop, and ends with it."""

    def __init__(self, concurrency: int, isolation: str) -> None:
        """Start nothing yet: Ray makes the actor before it calls `start`."""
        self._concurrency, self._isolation = concurrency, isolation
        self._open = contextlib.AsyncExitStack()

    async def start(self, host: str, token: str) -> NodeFacts:
        """Start a sandbox, and serve it on a free port of `host` to whoever sends `token`. Return
        the facts; a failure is their `refusal`, not an exception. Called once."""
        try:
            sandbox = EmbeddedSandbox(self._concurrency, self._isolation)
            self._open.push_async_callback(sandbox.aclose)
            application = SandboxApplication(
                sandbox, Admission(sandbox.slots, MAX_QUEUE), LIMITS, MAX_REQUEST_BYTES, token
            )
            port = await self._open.enter_async_context(application.listening(host, 0))
        except CodeRLError as error:
            return NodeFacts(code_here(), refusal=str(error))
        return NodeFacts(code_here(), sandbox.isolation, url_of(host, port))

    async def alive(self) -> bool:
        """Return True. That the call is answered shows that the actor lives."""
        return True

    async def close(self) -> None:
        """End the server and all programs. Idempotent."""
        await self._open.aclose()
