"""Who is evaluated, seen as one thing: given a problem and the numbers of the samples wanted, it gives samples."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from code_rl.errors import CodeRLError
from code_rl.evaluation.samples import GREEDY, Mode, Sample
from code_rl.problems.problem import Problem
from code_rl.renderers.base import Message, Renderer
from code_rl.rollouts.sample import draw, read_answer

if TYPE_CHECKING:
    import tinker


class AskError(CodeRLError):
    """One sample could not be had; the rest goes on. `reason` is a code to count by."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Question:
    """A problem, how it is asked, and the seed of its draws; `total` samples of this mode are wanted in all."""

    problem: Problem
    messages: Sequence[Message]
    seed: int
    mode: Mode
    total: int


class Asked(Protocol):
    """Someone who answers. `at_once` questions may be put at a time; `grouped`: all samples of a question in one."""

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


class Weights:
    """A sampling client of any back end, with its renderer. All samples of a question come from one draw: seeds make them repeatable."""

    grouped = True

    def __init__(
        self,
        sampler: tinker.SamplingClient,
        renderer: Renderer,
        context: int,
        *,
        max_tokens: int,
        temperature: float,
        at_once: int,
        description: str,
        facts: Mapping[str, Any],
        close: Callable[[], object],
    ) -> None:
        self._close = close
        self.description = description
        self.facts = facts
        self.at_once = at_once
        self._sampler = sampler
        self._renderer = renderer
        self._context = context
        self._max_tokens = max_tokens
        self._temperature = temperature

    async def ask(self, question: Question, numbers: Sequence[int]) -> list[Sample]:
        """Draw the whole group and keep the samples wanted. A prompt that fills the context leaves room for no answer: an empty one."""
        prompt = self._renderer.prompt_tokens(question.messages)
        room = min(self._max_tokens, self._context - len(prompt))
        problem_id, mode = question.problem.id, question.mode
        if room < 1:
            return [
                Sample(problem_id, mode, number, completion="", truncated=True, prompt_tokens=len(prompt))
                for number in numbers
            ]
        temperature = 0.0 if mode == GREEDY else self._temperature
        started = time.perf_counter()
        sequences = await draw(self._sampler, self._renderer, prompt, question.total, room, temperature, question.seed)
        seconds = time.perf_counter() - started
        drawn = []
        for number in numbers:
            text, truncated = read_answer(self._renderer, sequences[number])
            drawn.append(
                Sample(
                    problem_id,
                    mode,
                    number,
                    completion=text,
                    truncated=truncated,
                    prompt_tokens=len(prompt),
                    completion_tokens=len(sequences[number].tokens),
                    seconds=seconds,
                )
            )
        return drawn

    async def aclose(self) -> None:
        """Give back what the service holds."""
        self._close()
