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
        """The tokens of a conversation, ready for sampling."""
        ...

    def get_stop_sequences(self) -> list[int] | list[str]:
        """Return the stop sequences of a completion."""
        ...

    def parse_response(self, tokens: Sequence[int], /) -> tuple[Any, bool]:
        """The message in sampled tokens, and whether it ended as it should."""
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
        self.convo_prefix = list(self.convo_prefix or [])
        problem_of(self.tests)

    @property
    def stop_condition(self) -> list[str] | list[int]:
        """Where sampling stops."""
        return self.renderer.get_stop_sequences()

    async def initial_observation(self) -> tuple[tinker.ModelInput, list[str] | list[int]]:
        """The prompt's tokens and the stop condition."""
        messages = [*(self.convo_prefix or []), {"role": "user", "content": self.get_question()}]
        return self.renderer.build_generation_prompt(messages), self.stop_condition

    def get_question(self) -> str:
        """The prompt's text."""
        return self.problem if isinstance(self.problem, str) else build_prompt(self.problem.view())

    def get_reference_answer(self) -> str:
        """Nothing: correctness is decided by tests."""
        return ""

    def extract_code_from_model(self, model_response: str) -> str | None:
        """The last fenced block of a response in the problem's language, or None."""
        return extract_code(model_response, problem_of(self.tests).language)

    def check_format(self, sample_str: str) -> bool:
        """True when the response has a fenced block."""
        return self.extract_code_from_model(sample_str) is not None

    async def check_sandbox_correctness(self, sample_str: str) -> bool:
        """True when the response's code passes every test; False without code. Raises SandboxError
        as `step` does."""
        code = self.extract_code_from_model(sample_str)
        if code is None:
            return False
        passed, _ = await sandbox_check_correctness(
            self.tests, code, self.reward_timeout, executor=self.executor
        )
        return passed

    async def step(self, action: Sequence[int]) -> StepResult:
        """Score sampled tokens: reward = format_coef · format_score + correctness, format_score −1
        or 0.

        The format is good when there is a fenced block, cut or not, as in training. Nothing runs
        without one. Raises SandboxError
        when the sandbox gave no verdict: such a completion has no reward, and its caller leaves it
        out.
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
    """Run the program `generation` on the tests in `sample`: whether all passed, and the verdict's
    details. A `Problem` brings its own rule; its own lower time limit wins.

    Raises DataError for malformed tests and SandboxError when there is no verdict about the
    program.
    """
    problem = problem_of(sample, timeout)
    verdict = await judge_async(problem, generation, executor, cpu_limit_s=timeout)
    if verdict.undecided:
        raise SandboxError(verdict.failure.message if verdict.failure else "no verdict")
    return verdict.correct, _details(verdict)


def problem_of(tests: Tests, time_limit_s: float = 6) -> Problem:
    """The problem that the tests are of. Raises DataError where they are malformed."""
    if isinstance(tests, Problem):
        return tests
    given: Any = tests
    typed, fn_name = (tuple(given), None) if are_typed(given) else read_tests(given)
    problem = Problem("sample", "", typed, fn_name=fn_name, time_limit_s=time_limit_s)
    check_problem(problem, "tests")
    return problem


def text_of(message: Any) -> str:
    """The text of a message whose content is a string or a list of parts."""
    content = message["content"] if isinstance(message, Mapping) else message
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part.get("type") == "text")


def _details(verdict: Verdict) -> dict[str, Any]:
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
