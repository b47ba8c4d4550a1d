"""Harbor: tasks whose image is plain run in a box, with
`--env code_rl.integrations.harbor:BoxEnvironment`."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path, PurePosixPath
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities

from code_rl.grading.sandbox import Box
from code_rl.integrations.tasks import PlainImage, files_below, open_task_box, read_image, run_in
from code_rl.util.errors import SandboxError

__all__ = ["BoxEnvironment"]

COMMAND_S = 3600


class BoxEnvironment(BaseEnvironment):  # type: ignore[misc]
    """One box for one trial. It has no network: a task that asks for one still runs, and what it
    would load is missing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Open nothing yet; the arguments are those of Harbor's environment, which calls
        `_validate_definition`."""
        self._stack = contextlib.AsyncExitStack()
        self._opened: Box | None = None
        super().__init__(*args, **kwargs)

    @staticmethod
    def type() -> str:
        """Return the environment's name, `code-rl-box`."""
        return "code-rl-box"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """The capabilities for Harbor: a box never has internet."""
        return EnvironmentCapabilities(disable_internet=True)

    def _validate_definition(self) -> None:
        """Read the task's image. Raises ConfigError for one that is not plain. Called by Harbor
        when the environment is made."""
        self._image: PlainImage = read_image(self.environment_dir)

    @property
    def _box(self) -> Box:
        """The open box. Raises SandboxError before `start` and after `stop`."""
        if self._opened is None:
            raise SandboxError("the environment is not started")
        return self._opened

    async def start(self, force_build: bool) -> None:
        """Open the box, with the image's files; `force_build` has no effect, since nothing is
        built. Raises SandboxError or IsolationError if no box can be made."""
        self._opened = await self._stack.enter_async_context(open_task_box(self._image))

    async def stop(self, delete: bool) -> None:
        """Close the box, whose files are gone whatever `delete` says. Idempotent."""
        self._opened = None
        await self._stack.aclose()

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a shell command in `cwd` (None: the image's working directory) for at most
        `timeout_sec` seconds (None: an hour). `env` adds variables; every `user` is the box's own.
        Raises TimeoutError if it runs longer, SandboxError if the box is not open or has ended."""
        variables = self._merge_env(env) or {}
        place = cwd or self._image.workdir
        limit_s = timeout_sec or COMMAND_S
        ended = await run_in(self._box, command, place, limit_s, variables)
        if ended.limit == "wall":
            raise TimeoutError(f"the command ran longer than {limit_s} s")
        return ExecResult(stdout=ended.stdout, stderr=ended.stderr, return_code=ended.exit_code)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Put a file of this machine into the box, at a path in one of its directories. Raises
        OSError, ConfigError for another path, and SandboxError."""
        await self._box.write(str(target_path), Path(source_path).read_bytes())

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Put the files below a directory into the box, under the same names; empty directories are
        left out. Raises ConfigError for a link out of the directory, and the errors of
        `upload_file`."""
        source = Path(source_dir)
        for path, inner in files_below(source, source):
            await self.upload_file(path, str(PurePosixPath(target_dir, inner)))

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy a file of the box to this machine, whose missing directories are made; an existing
        file is replaced. Raises DataError or ConfigError if the box has no such file, and
        OSError."""
        target = Path(target_path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(await self._box.read(str(source_path)))

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy the files below a directory of the box to this machine. A name that leads out of
        `target_dir` is left out, since the policy's commands choose the names; a missing directory
        copies nothing."""
        listing = f"cd {shlex.quote(source_dir)} && find . -type f -print0"
        found = await run_in(self._box, listing, "/tmp", 60, {})  # noqa: S108
        whole = Path(target_dir).resolve()
        for name in filter(None, found.stdout.split("\0")):
            target = Path(whole, name).resolve()
            # The agent chose the names.
            if target.is_relative_to(whole):
                await self.download_file(f"{source_dir}/{name}", target)
