"""Opens a box, on machines that can have one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

from code_rl.grading.sandbox.executor import require_linux

if TYPE_CHECKING:
    from code_rl.grading.sandbox.local.box import Box


@contextlib.asynccontextmanager
async def open_box(
    isolation: str = "auto",
    *,
    disk_mb: int = 256,
    environment: Mapping[str, str] | None = None,
    readable: tuple[str, ...] = (),
) -> AsyncIterator[Box]:
    """Open a box for shell commands; it ends with the block, or with this process.

    `disk_mb` is the quota of /box, and of each command's /tmp. `environment` adds variables;
    `readable` names further directories of this machine that commands can read and execute.
    Raises ConfigError for bad arguments, IsolationError if namespaces are not available.
    """
    require_linux("a box")
    from code_rl.grading.sandbox.local.box import Box, check_arguments

    check_arguments(isolation, disk_mb, readable)
    made = await asyncio.to_thread(Box, disk_mb, environment or {}, readable)
    try:
        yield made
    finally:
        await asyncio.to_thread(made.close)
