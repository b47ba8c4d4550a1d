"""Who is evaluated, seen as one thing: given a problem and the numbers of the samples wanted, it gives samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from code_rl.environments.single import Single
from code_rl.errors import CodeRLError
from code_rl.evaluation.samples import GREEDY, Mode, Sample
from code_rl.problems.problem import Problem
from code_rl.renderers.base import Message
from code_rl.reward.extract import extract_code
from code_rl.rollouts.sample import GroupGrader, Policy, Sampling
from code_rl.rollouts.trajectory import Group
from code_rl.runs.inflight import Slot


class AskError(CodeRLError):
    """One sample could not be had; the rest goes on. `reason` is a code to count by."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Entry:
    """One problem's place: `split` and `index` decide the seeds, `tags` the breakdowns. `continued` is what an evalplus completion follows."""

    problem_id: str
    split: str
    index: int
    tags: Mapping[str, str] = field(default_factory=dict)
    continued: str | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """A problem, how it is asked (`messages`; None: as the environment begins), and the seed of its draws.

    `total` samples of this mode are wanted in all. `slot` is where a conversation under way is kept, `grader` who judges (None: the
    policy's own).
    """

    problem: Problem
    messages: Sequence[Message] | None
    seed: int
    mode: Mode
    total: int
    slot: Callable[[], Slot] = Slot.nowhere
    grader: GroupGrader | None = None

    @property
    def opening(self) -> Sequence[Message]:
        """The conversation up to the answer, of someone who answers once."""
        return Single().begin(self.problem.view()) if self.messages is None else self.messages


class Asked(Protocol):
    """Someone who answers, `at_once` questions at a time whatever is put; `grouped`: all samples of a question in one."""

    description: str
    facts: Mapping[str, Any]
    at_once: int
    grouped: bool

    async def ask(self, question: Question, numbers: Sequence[int]) -> list[Sample]:
        """The samples of these numbers. Raises AskError when they cannot be had, CodeRLError when nothing can."""
        ...

    async def aclose(self) -> None:
        """Release everything. Idempotent."""
        ...


class Stored:
    """Samples made elsewhere."""

    at_once = 4
    grouped = True

    def __init__(self, path: str, samples: Mapping[str, Sequence[Sample]], sha256: str) -> None:
        self.description = f"samples of {path}"
        self.facts: Mapping[str, Any] = {"samples": path, "sha256": sha256}
        self._samples = samples

    async def ask(self, question: Question, numbers: Sequence[int]) -> list[Sample]:
        """Those of these numbers that the file has. Raises AskError when it has none of them."""
        stored = self._samples.get(question.problem.id, ())
        mine = [sample for sample in stored if sample.mode == question.mode and sample.sample in numbers]
        if not mine:
            raise AskError("not_in_file", "the samples file has no such sample")
        return mine

    async def aclose(self) -> None:
        """Hold nothing."""


class Reference:
    """The set's own solutions: what the tests say of them is what the set deserves."""

    description = "the benchmark's own solutions"
    facts: Mapping[str, Any] = {"model": "reference"}
    at_once = 4
    grouped = True

    async def ask(self, question: Question, numbers: Sequence[int]) -> list[Sample]:
        """The first reference solution. Raises AskError for a problem without one."""
        problem = question.problem
        if not problem.solutions:
            raise AskError("no_reference", "the benchmark has no solution of this problem")
        return [Sample(problem.id, question.mode, number, code=problem.solutions[0]) for number in numbers]

    async def aclose(self) -> None:
        """Hold nothing."""


@dataclass(slots=True)
class Weights:
    """A policy of any back end, in its environment. All samples of a question come from one group: seeds make them repeatable."""

    policy: Policy
    sampling: Sampling
    at_once: int
    description: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    close: Callable[[], object] = lambda: None
    grouped: bool = True

    async def ask(self, question: Question, numbers: Sequence[int]) -> list[Sample]:
        """Roll out the whole group and keep the samples wanted; they come with their verdicts."""
        sampling = replace(self.sampling, temperature=0.0) if question.mode == GREEDY else self.sampling
        how = (question.total, sampling, question.seed, question.slot(), question.grader, question.messages)
        group = await self.policy.roll_out(question.problem, *how)
        return [_sample(group, question.mode, number) for number in numbers]

    async def aclose(self) -> None:
        """Give back what the service holds."""
        self.close()


def _sample(group: Group, mode: Mode, number: int) -> Sample:
    """One trajectory as a sample: its last answer, or the program that an environment found in it in a way of its own."""
    trajectory = group.trajectories[number]
    plain = extract_code(trajectory.text) == trajectory.last.code
    return Sample(
        group.problem.id,
        mode,
        number,
        completion=trajectory.text if plain else None,
        code=None if plain else trajectory.last.code,
        truncated=trajectory.truncated,
        prompt_tokens=trajectory.prefilled,
        completion_tokens=trajectory.length,
        seconds=group.sample_s,
        verdict=trajectory.verdict,
    )
