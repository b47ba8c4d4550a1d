"""`CodeEnv` and `sandbox_check_correctness` in the shape that course and cookbook code expects.

Behind the names is this project's judge: outputs are compared outside the sandbox, and trouble of
the sandbox raises SandboxError instead of being scored as a wrong answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from code_rl.data.sources.testcases import read_tests
from code_rl.grading.extract import extract_code
from code_rl.grading.judging import judge_async
from code_rl.grading.native import check_problem
from code_rl.grading.problem import Problem, TestCase
from code_rl.grading.sandbox.executor import Executor
from code_rl.grading.verdict import Verdict
from code_rl.policy.prompt_templates import build_prompt
from code_rl.util.door import Lazy
from code_rl.util.errors import SandboxError
from tinker_utils.lcb import are_typed

if TYPE_CHECKING:
    import tinker
else:
    tinker = Lazy("tinker")

Tests: TypeAlias = Problem | Sequence[TestCase] | Sequence[Mapping[str, Any]] | Mapping[str, Any]


class StepRenderer(Protocol):
    """The methods of a renderer that `CodeEnv` needs."""

    def build_generation_prompt(self, messages: Sequence[Any], /) -> tinker.ModelInput:
        """Return the tokens of a conversation, ready for sampling."""
        ...

    def get_stop_sequences(self) -> list[int] | list[str]:
        """Return the stop sequences of a completion."""
        ...

    def parse_response(self, tokens: Sequence[int], /) -> tuple[Any, bool]:
        """Return the message in sampled tokens, and True if it ended at a stop sequence."""
        ...


@dataclass
class StepResult:
    """The result of one step. An episode is one completion, so every step ends it."""

    reward: float
    episode_done: bool
    next_observation: tinker.ModelInput
    next_stop_condition: list[str] | list[int]
    metrics: dict[str, float | int] = field(default_factory=dict)


@dataclass(eq=False)
class CodeEnv:
    """One problem: takes a sampled completion, extracts its last fenced block, runs it on the
    tests, gives the reward.

    `problem` is the question, or a `Problem`, from which it is made. `tests` are a `Problem`, whose
    own rule and limits then hold, its tests, or rows of any shape that
    `code_rl.data.sources.testcases` reads; `reward_timeout` is CPU seconds for each test. Without
    an `executor` the process's shared one is used. Raises DataError for malformed tests.
    """

    problem: str | Problem
    tests: Tests
    renderer: StepRenderer
    convo_prefix: Sequence[Any] | None = None
    format_coef: float = 0.1
    reward_timeout: float = 6
    executor: Executor | None = None

    def __post_init__(self) -> None:
        """Check the tests: raises DataError for malformed ones. The prefix becomes a list (None:
        empty)."""
        self.convo_prefix = list(self.convo_prefix or [])
        self._language = problem_of(self.tests).language

    @property
    def stop_condition(self) -> list[str] | list[int]:
        """The stop sequences of a completion, from the renderer."""
        return self.renderer.get_stop_sequences()

    async def initial_observation(self) -> tuple[tinker.ModelInput, list[str] | list[int]]:
        """Return the prompt's tokens and the stop condition. Raises the renderer's errors."""
        messages = [*(self.convo_prefix or []), {"role": "user", "content": self.get_question()}]
        return self.renderer.build_generation_prompt(messages), self.stop_condition

    def get_question(self) -> str:
        """Return the prompt's text, the last message after `convo_prefix`."""
        return self.problem if isinstance(self.problem, str) else build_prompt(self.problem.view())

    def get_reference_answer(self) -> str:
        """Return an empty text: correctness is decided by tests."""
        return ""

    def extract_code_from_model(self, model_response: str) -> str | None:
        """Return the last fenced block of a response in the problem's language, or None. Without a
        `Problem` the language is Python."""
        return extract_code(model_response, self._language)

    def check_format(self, sample_str: str) -> bool:
        """Return True if the response has a fenced block of code."""
        return self.extract_code_from_model(sample_str) is not None

    async def check_sandbox_correctness(self, sample_str: str) -> bool:
        """Return True if the response's code passes every test, False without code. Raises
        SandboxError as `step` does."""
        code = self.extract_code_from_model(sample_str)
        if code is None:
            return False
        passed, _ = await sandbox_check_correctness(
            self.tests, code, self.reward_timeout, executor=self.executor
        )
        return passed

    async def step(self, action: Sequence[int]) -> StepResult:
        """Score sampled tokens: reward = format_coef · format_score + correctness, format_score −1
        or 0. The state does not change, so a step can be repeated.

        The format is good if there is a fenced block, cut or not, as in training. Nothing runs
        without one. Raises SandboxError if the sandbox gave no verdict: such a completion has no
        reward, and its caller leaves it out.
        """
        message, _ = self.renderer.parse_response(action)
        content = text_of(message)
        format_score = 0.0 if self.check_format(content) else -1.0
        correct = float(await self.check_sandbox_correctness(content))
        return StepResult(
            reward=self.format_coef * format_score + correct,
            episode_done=True,
            next_observation=tinker.ModelInput.empty(),
            next_stop_condition=self.stop_condition,
            metrics={"format": format_score, "correct": correct},
        )


async def sandbox_check_correctness(
    sample: Tests,
    generation: str,
    timeout: float = 6,  # noqa: ASYNC109 - the course's name for the CPU limit of one test
    *,
    executor: Executor | None = None,
) -> tuple[bool, dict[str, Any]]:
    """Run the program `generation` on the tests in `sample`. Return True if all passed, and the
    verdict's details. `timeout` is CPU seconds per test; a `Problem` brings its own rule, and its
    own lower time limit wins. `executor` None is the process's shared one.

    Raises DataError for malformed tests and SandboxError if there is no verdict about the program.
    """
    problem = problem_of(sample, timeout)
    verdict = await judge_async(problem, generation, executor, cpu_limit_s=timeout)
    if verdict.undecided:
        raise SandboxError(verdict.failure.message if verdict.failure else "no verdict")
    return verdict.correct, _details(verdict)


def problem_of(tests: Tests, time_limit_s: float = 6) -> Problem:
    """Return the problem that the tests belong to: a `Problem` as it is, else a new one with
    `time_limit_s` CPU seconds per test. Raises DataError if they are malformed."""
    if isinstance(tests, Problem):
        return tests
    given: Any = tests
    typed, fn_name = (tuple(given), None) if are_typed(given) else read_tests(given)
    problem = Problem("sample", "", typed, fn_name=fn_name, time_limit_s=time_limit_s)
    check_problem(problem, "tests")
    return problem


def text_of(message: Any) -> str:
    """Return the text of a message whose content is a string or a list of parts, or the message
    itself if it is a text. Parts that are not text are left out."""
    content = message["content"] if isinstance(message, Mapping) else message
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part.get("type") == "text")


def _details(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict in the names that course code reads."""
    return {
        "status": "Success" if verdict.correct else "Failed",
        "verdict": verdict.kind.value,
        "passed": verdict.passed,
        "total": verdict.total,
        "failure": asdict(verdict.failure) if verdict.failure else None,
        "rule": verdict.rule,
        "cpu_s": verdict.cpu_s,
        "wall_s": verdict.wall_s,
    }
