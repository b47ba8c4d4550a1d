"""Opens a box, on machines that can have one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

from code_rl.grading.sandbox.executor import require_linux
from code_rl.util.door import Lazy

if TYPE_CHECKING:
    from code_rl.grading.sandbox.local import box
else:  # it can be imported only on Linux
    box = Lazy("code_rl.grading.sandbox.local.box")


@contextlib.asynccontextmanager
async def open_box(
    isolation: str = "auto",
    *,
    disk_mb: int = 256,
    environment: Mapping[str, str] | None = None,
    readable: tuple[str, ...] = (),
) -> AsyncIterator[box.Box]:
    """Open a box for shell commands; it ends with the block, or with this process.

    `disk_mb` is the quota of /box, and of each command's /tmp. `environment` adds variables;
    `readable` names further directories of this machine that commands can read and execute.
    Raises ConfigError for bad arguments, IsolationError if namespaces are not available.
    """
    require_linux("a box")
    box.check_arguments(isolation, disk_mb, readable)
    made = await asyncio.to_thread(box.Box, disk_mb, environment or {}, readable)
    try:
        yield made
    finally:
        await asyncio.to_thread(made.close)
