"""tinker-cookbook: a box behind its `SandboxInterface`. Give `sandbox_factory=box_sandbox` to its
Harbor recipe."""

from __future__ import annotations

import contextlib
import uuid
from pathlib import Path, PurePosixPath

from tinker_cookbook.sandbox.sandbox_interface import SandboxResult, SandboxTerminatedError

from code_rl.grading.sandbox import Box
from code_rl.integrations.tasks import PlainImage, open_task_box, read_image, run_in
from code_rl.util.errors import ConfigError, DataError, SandboxError

__all__ = ["BoxSandbox", "box_sandbox"]

OUTPUT_BYTES = 128 << 10


class BoxSandbox:
    """One box as a sandbox of the cookbook."""

    def __init__(self, box: Box, image: PlainImage, stack: contextlib.AsyncExitStack) -> None:
        """Take an open box of an image; `cleanup` closes `stack`, which owns the box."""
        self._box, self._image, self._stack = box, image, stack
        self.sandbox_id = f"box-{uuid.uuid4().hex[:12]}"

    async def send_heartbeat(self, timeout: int = 30) -> None:
        """Raise SandboxTerminatedError if the box has ended. Nothing is sent, so `timeout` has no
        effect."""
        if self._box.closed:
            raise SandboxTerminatedError("the box has ended")

    async def run_command(
        self,
        command: str,
        workdir: str | None = None,
        timeout: int = 60,
        max_output_bytes: int | None = None,
    ) -> SandboxResult:
        """Run a shell command in `workdir` (None or `/`: the image's) for at most `timeout`
        seconds; each stream is cut to `max_output_bytes` (None: 128 KiB). A limit is reported in
        `stderr`. Raises SandboxTerminatedError if the box has ended."""
        most = OUTPUT_BYTES if max_output_bytes is None else max_output_bytes
        place = workdir if workdir not in (None, "/") else self._image.workdir
        try:
            ended = await run_in(self._box, command, str(place), timeout, {})
        except SandboxError as error:
            raise SandboxTerminatedError(str(error)) from error
        stdout, stderr = (
            text.encode()[:most].decode("utf-8", "ignore") for text in (ended.stdout, ended.stderr)
        )
        return SandboxResult(stdout=stdout, stderr=stderr, exit_code=ended.exit_code)

    async def read_file(
        self, path: str, max_bytes: int | None = None, timeout: int = 60
    ) -> SandboxResult:
        """Return the first `max_bytes` bytes (None: all) of a file of the box as `stdout`; exit
        code 1, with the reason, if it cannot be read. A relative path begins at the working
        directory; `timeout` has no effect. Raises SandboxError if the box has ended."""
        try:
            data = await self._box.read(self._whole(path))
        except (ConfigError, DataError) as error:
            return SandboxResult(stdout="", stderr=str(error), exit_code=1)
        return SandboxResult(
            stdout=data[:max_bytes].decode("utf-8", "replace"), stderr="", exit_code=0
        )

    async def write_file(
        self, path: str, content: str | bytes, executable: bool = False, timeout: int = 60
    ) -> SandboxResult:
        """Write a file of the box; every file may be executed, whatever `executable` says. Exit
        code 1, with the reason, if the path cannot be written. A relative path begins at the
        working directory; `timeout` has no effect. Raises SandboxError if the box has ended."""
        data = content.encode("utf-8", "replace") if isinstance(content, str) else content
        try:
            await self._box.write(self._whole(path), data)
        except (ConfigError, DataError) as error:
            return SandboxResult(stdout="", stderr=str(error), exit_code=1)
        return SandboxResult(stdout="", stderr="", exit_code=0)

    def _whole(self, path: str) -> str:
        """Return a path from the image's working directory; an absolute one stays."""
        return str(PurePosixPath(self._image.workdir, path))

    async def cleanup(self) -> None:
        """Close the box. Idempotent."""
        await self._stack.aclose()


async def box_sandbox(env_dir: Path, timeout: int) -> BoxSandbox:
    """Open a sandbox for a task's `environment/` folder, as a `SandboxFactory`; the caller calls
    `cleanup`. `timeout` has no effect. Raises ConfigError for an image that is not plain,
    SandboxError or IsolationError if no box can be made."""
    image, stack = read_image(Path(env_dir)), contextlib.AsyncExitStack()
    return BoxSandbox(await stack.enter_async_context(open_task_box(image)), image, stack)
