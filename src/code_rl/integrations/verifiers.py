"""verifiers (v1): a taskset of problems, and a runtime for any taskset.

Export the taskset from your own module: `from code_rl.integrations.verifiers import CodeTaskset;
__all__ = ["CodeTaskset"]`. Give the runtime (`async with box_runtime() as runtime`) to a run, as in
`Agent.run(runtime=runtime)`, or to the methods of a task.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace

import verifiers.v1 as vf
from verifiers.v1 import errors
from verifiers.v1.runtimes import BaseRuntimeInfo, ProgramResult, Runtime

from code_rl.data import load_problems
from code_rl.grading.sandbox import Box
from code_rl.integrations.rows import to_row, verdict_of, why
from code_rl.integrations.tasks import PlainImage, open_task_box, run_in
from code_rl.policy.prompt_templates import get_prompt_template
from code_rl.util.errors import CodeRLError, SandboxError

__all__ = ["BoxRuntime", "CodeConfig", "CodeData", "CodeTask", "CodeTaskset", "box_runtime"]

COMMAND_S = 3600.0


class CodeData(vf.TaskData):  # type: ignore[misc]
    """One problem; `problem` is its native JSON."""

    problem: str


class CodeTask(vf.Task[CodeData]):  # type: ignore[misc]
    """A task that our judge scores."""

    @vf.reward(weight=1.0)  # type: ignore[untyped-decorator]
    async def passes(self, trace: vf.Trace) -> float:
        """Return 1.0 if the program of the last reply passes every test, else 0.0. Raises
        SandboxError without a verdict: verifiers then records a failed rollout, which is retried or
        dropped."""
        verdict = await verdict_of(self.data.problem, trace.last_reply)
        if verdict.undecided:
            raise SandboxError(f"no reward ({why(verdict)})")
        return float(verdict.correct)


class CodeConfig(vf.TasksetConfig):  # type: ignore[misc]
    """The problems, and their prompt template."""

    dataset: str = "builtin"
    """As `dataset=` of train: a name, a hub id, files, a folder."""
    limit: int | None = None
    """The number of problems, always the same ones."""
    prompt: str | None = None
    """As `prompt=` of train."""


class CodeTaskset(vf.Taskset[CodeTask, CodeConfig]):  # type: ignore[misc]
    """The problems that `dataset=` would train on."""

    def load(self) -> Iterator[CodeTask]:
        """Yield one task per problem, in order. Raises ConfigError for an unknown data set or
        template, DataError for unusable files."""
        template = get_prompt_template(self.config.prompt)
        for problem in load_problems(self.config.dataset, limit=self.config.limit):
            row = to_row(problem, template)
            yield CodeTask(
                CodeData(id=problem.id, prompt=row["prompt"], problem=row["problem"]),
                self.config.task,
            )


class BoxRuntime(Runtime):  # type: ignore[misc]
    """A box in which a rollout's commands run, without a network. Programs have this machine's
    interpreters and packages below /usr only."""

    def __init__(self, box: Box, image: PlainImage) -> None:
        """Take an open box of an image; whoever opened it closes it."""
        super().__init__()
        self.config = SimpleNamespace(type="box")
        self.info = BaseRuntimeInfo(id=self.name)
        self._box, self._image = box, image

    async def start(self) -> None:
        """Do nothing: the box is open."""

    async def run(self, argv: list[str], env: dict[str, str]) -> ProgramResult:
        """Run a program in the image's working directory for at most an hour; `env` adds variables.
        Raises the SandboxError of verifiers if the box has ended."""
        variables = self.process_env(env)
        try:
            ended = await run_in(
                self._box, shlex.join(argv), self._image.workdir, COMMAND_S, variables
            )
        except CodeRLError as error:
            raise errors.SandboxError(str(error)) from error
        return ProgramResult(ended.exit_code, ended.stdout, ended.stderr)

    async def _read(self, path: str, max_bytes: int | None = None) -> bytes:
        """Return the first `max_bytes` bytes of a file (None: all). Raises the SandboxError of
        verifiers."""
        with _failures(path):
            return (await self._box.read(self._whole(path)))[:max_bytes]

    async def write(self, path: str, data: bytes) -> None:
        """Write a file; a relative path begins at the working directory. Raises the SandboxError of
        verifiers."""
        with _failures(path):
            await self._box.write(self._whole(path), data)

    def _whole(self, path: str) -> str:
        """Return a path from the image's working directory; an absolute one stays."""
        return path if path.startswith("/") else f"{self._image.workdir}/{path}"


@contextlib.contextmanager
def _failures(path: str) -> Iterator[None]:
    """Raise errors of the box in the block as the SandboxError of verifiers, with the path."""
    try:
        yield
    except CodeRLError as error:
        raise errors.SandboxError(f"{path!r}: {error}") from error


@contextlib.asynccontextmanager
async def box_runtime(
    image: PlainImage | None = None, url: str | None = None
) -> AsyncIterator[BoxRuntime]:
    """Open a box as a runtime for the block; `image` as `integrations.tasks.read_image` gives it
    (None: an empty one), `url` a `code-rl sandbox` (None: this machine). Raises ConfigError,
    IsolationError or SandboxError as `open_box` does."""
    image = image or PlainImage()
    async with open_task_box(image, url) as box:
        yield BoxRuntime(box, image)
