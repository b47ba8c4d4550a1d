"""verifiers (v1): a taskset of problems. A module of your own exports it: `from
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
    """Scored by our judge."""

    @vf.reward(weight=1.0)  # type: ignore[untyped-decorator]
    async def passes(self, trace: vf.Trace) -> float:
        """1.0 when the program of the last reply passes every test. Raises SandboxError where we
        could not tell: verifiers records a failed rollout, which is retried or dropped."""
        verdict = await verdict_of(self.data.problem, trace.last_reply)
        if verdict.undecided:
            raise SandboxError(f"no reward ({why(verdict)})")
        return float(verdict.correct)


class CodeConfig(vf.TasksetConfig):  # type: ignore[misc]
    """Which problems, and their prompt template."""

    dataset: str = "builtin"
    """As `dataset=` of train: a name, a hub id, files, a folder."""
    limit: int | None = None
    """That many problems, always the same ones."""
    prompt: str | None = None
    """As `prompt=` of train."""


class CodeTaskset(vf.Taskset[CodeTask, CodeConfig]):  # type: ignore[misc]
    """The problems that `dataset=` would train on."""

    def load(self) -> Iterator[CodeTask]:
        """A task a problem."""
        template = get_prompt_template(self.config.prompt)
        for problem in load_problems(self.config.dataset, limit=self.config.limit):
            row = to_row(problem, template)
            yield CodeTask(
                CodeData(id=problem.id, prompt=row["prompt"], problem=row["problem"]),
                self.config.task,
            )
