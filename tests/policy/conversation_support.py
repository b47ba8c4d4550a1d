"""Conversations without a model: a renderer over characters, a sampler with a script, an executor that runs nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from code_rl.grading import Problem, StdinTest
from code_rl.grading.sandbox.executor import Execution, Job, Status, StdinInput
from code_rl.policy import Policy
from code_rl.policy.environments import Environment, Repair
from code_rl.policy.renderers import Message, Renderer
from tests.stand_in import StandIn

STOP = 0


class Characters(Renderer):
    """One token a character. With `keeps`, the prompt of a longer conversation begins with the shorter and its answer."""

    def __init__(self, keeps: bool = True) -> None:
        super().__init__(None)
        self._keeps = keeps

    def prompt_tokens(self, messages: Sequence[Message]) -> list[int]:
        tokens: list[int] = []
        for index, message in enumerate(messages):
            if message["role"] == "assistant":
                tokens += [*map(ord, message["content"] if self._keeps else "…"), STOP]
            else:
                tokens += [*map(ord, f"<{index}>{message['content']}</{index}>")]
        return tokens

    def build_supervised_example(self, messages: Sequence[Message]) -> tuple[list[int], list[float]]:
        raise NotImplementedError

    def get_stop_sequences(self) -> list[int]:
        return [STOP]

    def parse_response(self, tokens: Sequence[int]) -> tuple[Message, bool]:
        ended = bool(tokens) and tokens[-1] == STOP
        text = "".join(map(chr, tokens[:-1] if ended else tokens))
        return {"role": "assistant", "content": text}, ended


@dataclass
class Scripted:
    """Answers by number of the turn, the same for every member; notes the prompts. `fails_at` raises at that request."""

    answers: Sequence[str]
    prompts: list[str] = field(default_factory=list)
    fails_at: int | None = None

    def sample(self, prompt: Any, num_samples: int, sampling_params: Any) -> Any:
        text = "".join(map(chr, prompt.to_ints()))
        if self.fails_at == len(self.prompts):
            raise ConnectionError("cut")
        self.prompts.append(text)
        answer = [*map(ord, self.answers[min(text.count(chr(STOP)), len(self.answers) - 1)]), STOP]
        kept = answer[: sampling_params.max_tokens]
        reason = "stop" if len(kept) == len(answer) else "length"
        sequence = SimpleNamespace(
            stop_reason=reason, tokens=kept, logprobs=[-0.1 - 0.01 * i for i in range(len(kept))]
        )
        return SimpleNamespace(sequences=[sequence] * num_samples)


class Echo(StandIn):
    """Runs a program that is a number: it prints that number, whatever it is given. Notes the inputs."""

    description = "echo"

    def __init__(self) -> None:
        self.inputs: list[bytes] = []

    async def run(self, job: Job) -> AsyncIterator[Execution]:
        for case in job.cases:
            assert isinstance(case, StdinInput)
            self.inputs.append(case.stdin)
            yield Execution(Status.OK, stdout=job.code.encode())


def program(text: str) -> str:
    return f"```python\n{text}\n```"


def problem(public: str = "7", hidden: str = "7") -> Problem:
    return Problem(
        "p",
        "Print it.",
        (StdinTest("PUBLIC", public, public=True), StdinTest("HIDDEN-INPUT", hidden), StdinTest("HIDDEN-TOO", hidden)),
    )


def policy(
    sampler: Scripted, *, environment: Environment | None = None, keeps: bool = True, context: int = 10_000
) -> Policy:
    executor: Any = Echo()
    client: Any = sampler
    return Policy(client, Characters(keeps), executor, context, environment or Repair())
