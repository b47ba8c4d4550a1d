"""Opens a box: on this machine, if it can have one, or on a server of ours."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING

from code_rl.grading.sandbox.commands import Box
from code_rl.grading.sandbox.executor import encodable, require_linux
from code_rl.util.door import Lazy
from code_rl.util.errors import ConfigError

if TYPE_CHECKING:
    from code_rl.grading.sandbox.local import box
else:  # it can be imported only on Linux
    box = Lazy("code_rl.grading.sandbox.local.box")

_ENVIRONMENT_BYTES = 1 << 15


@contextlib.asynccontextmanager
async def open_box(
    isolation: str = "auto",
    *,
    disk_mb: int = 256,
    environment: Mapping[str, str] | None = None,
    readable: tuple[str, ...] = (),
    writable: tuple[str, ...] = (),
    url: str | None = None,
) -> AsyncIterator[Box]:
    """Open a box for shell commands; it ends with the block, or with this process.

    `disk_mb` is the quota of /box, and of each command's /tmp. `environment` adds variables;
    `readable` names further directories of this machine that commands can read and execute;
    `writable` further directories of the box, such as /app, which are below /box (files in /tmp
    stay from command to command if it is one of them). `url` is a `code-rl sandbox` on whose
    machine the box is (None: on this one).
    Raises ConfigError for bad arguments, IsolationError if `isolation` is not available,
    SandboxError if the server cannot be had.
    """
    if not 0 < disk_mb <= 1 << 20:
        raise ConfigError(f"disk_mb={disk_mb}: use a number from 1 to {1 << 20}")
    for path in writable:
        if path.count("/") != 1 or not path.startswith("/") or path in Box.TAKEN:
            raise ConfigError(f"writable={path!r}: name a directory such as /app")
    variables = environment or {}
    for name, text in variables.items():
        if not name or "=" in name or "\0" in name + text or not encodable(name + text):
            raise ConfigError(f"environment: {name!r} is no name of a variable with a text")
    size = len("".join(chain(*variables.items())).encode())
    if size > _ENVIRONMENT_BYTES:
        raise ConfigError(f"environment: {size} bytes are too many; use {_ENVIRONMENT_BYTES}")
    if url is not None:
        from code_rl.grading.sandbox.fusion.boxes import connect_box

        if readable:
            raise ConfigError(f"readable={readable!r} names directories of this machine: not there")
        async with connect_box(url, disk_mb, variables, writable) as remote:
            yield remote
        return
    require_linux("a box")
    made = await box.opened(isolation, disk_mb, variables, readable, writable)
    try:
        yield made
    finally:
        # A box is closed even if this task is cancelled now, before the thread runs.
        closing = asyncio.get_running_loop().run_in_executor(None, made.close)
        await asyncio.shield(closing)
