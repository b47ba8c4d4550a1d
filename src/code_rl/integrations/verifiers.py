"""verifiers (v1): a taskset of problems. Export it from your own module: `from
code_rl.integrations.verifiers import CodeTaskset; __all__ = ["CodeTaskset"]`."""

from __future__ import annotations

from collections.abc import Iterator

import verifiers.v1 as vf

from code_rl.data import load_problems
from code_rl.integrations.rows import to_row, verdict_of, why
from code_rl.policy.prompt_templates import get_prompt_template
from code_rl.util.errors import SandboxError

__all__ = ["CodeConfig", "CodeData", "CodeTask", "CodeTaskset"]


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
        """Yield one task per problem."""
        template = get_prompt_template(self.config.prompt)
        for problem in load_problems(self.config.dataset, limit=self.config.limit):
            row = to_row(problem, template)
            yield CodeTask(
                CodeData(id=problem.id, prompt=row["prompt"], problem=row["problem"]),
                self.config.task,
            )
