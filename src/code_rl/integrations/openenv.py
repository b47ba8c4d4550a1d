"""OpenEnv: an environment server. Run `uvicorn my_module:app` with `app = make_app("builtin")` in
the module; `environment="repair"` gives several turns."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import openenv.core.env_server as server

from code_rl.data import load_problems
from code_rl.grading import Problem
from code_rl.grading.sandbox import shared_executor
from code_rl.integrations.rows import why
from code_rl.policy import GroupGrader, environments
from code_rl.util.concurrency import wait_for
from code_rl.util.errors import DataError, SandboxError


class CodeAction(server.Action):  # type: ignore[misc]
    """The policy's answer, with its program in a fenced block."""

    answer: str


class CodeObservation(server.Observation):  # type: ignore[misc]
    """The new messages of the conversation, and the verdict on the answer (`passed`,
    `wrong_answer`, …)."""

    messages: list[dict[str, str]]
    problem_id: str
    verdict: str | None = None


class CodeEnvironment(server.Environment):  # type: ignore[misc]
    """One conversation about one problem at a time."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    state = server.State()  # abstract in the interface

    def __init__(self, problems: Sequence[Problem], environment: environments.Environment) -> None:
        """Begin nothing yet; `reset` chooses one of `problems`. Several sessions may share both
        arguments."""
        super().__init__()
        self._problems, self._environment = problems, environment
        self._problem: Problem | None = None
        self._conversation: list[Any] = []

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        index: int | None = None,
        **_: Any,
    ) -> CodeObservation:
        """Begin a conversation about the problem at `index`, or else about one that `seed` chooses
        (None: at random), and return its opening messages. An unfinished one is dropped. Raises
        DataError for an `index` out of range."""
        if index is None:
            index = random.Random(seed).randrange(len(self._problems))
        elif not 0 <= index < len(self._problems):
            raise DataError(f"index={index} must be from 0 to {len(self._problems) - 1}")
        self._problem = self._problems[index]
        self._conversation = self._environment.begin(self._problem.view())
        self.state = server.State(episode_id=episode_id)
        return CodeObservation(messages=list(self._conversation), problem_id=self._problem.id)

    def step(
        self,
        action: CodeAction,
        timeout_s: float | None = None,  # noqa: ARG002
        **_: Any,
    ) -> CodeObservation:
        """Judge an answer and return the environment's reply; `done` is True without further
        messages, and only then can the reward be 1. `timeout_s` has no effect; the call blocks.
        Raises DataError before `reset` or after the last step.

        Raises SandboxError if there is no verdict, since clients read a reward of None as 0; the
        conversation is then as before, so the answer can be sent again.
        """
        problem = self._problem
        if problem is None:
            raise DataError(
                "step came before reset, or after the last step of an episode; call reset"
            )
        conversation = [*self._conversation, {"role": "assistant", "content": action.answer}]
        reply = wait_for(
            shared_executor.run(
                lambda executor: self._environment.reply(
                    problem.view(), conversation, GroupGrader(problem, executor)
                )
            )
        )
        if reply.verdict.undecided:
            raise SandboxError(
                f"no reward ({why(reply.verdict)}); send the answer again, or drop the episode"
            )
        self._conversation = [*conversation, *reply.messages]
        self._problem = problem if reply.messages else None
        self.state.step_count += 1
        return CodeObservation(
            messages=list(reply.messages),
            problem_id=problem.id,
            verdict=reply.verdict.kind.value,
            done=not reply.messages,
            reward=float(reply.verdict.correct and not reply.messages),
        )


def make_app(
    dataset: str,
    *,
    limit: int | None = None,
    environment: str = "single",
    sessions: int = 64,
    **given: Any,
) -> Any:
    """Return a FastAPI application over the problems of train's `dataset=` (`limit` None: all), for
    `sessions` conversations at once. `max_turns`, `prompt` and `system_prompt` are those of train.
    Raises ConfigError for an unknown data set or environment, DataError for unusable files."""
    problems, ours = (
        load_problems(dataset, limit=limit),
        environments.get_environment(environment, **given),
    )
    make = lambda: CodeEnvironment(problems, ours)  # noqa: E731
    return server.create_app(
        make, CodeAction, CodeObservation, env_name="code-rl", max_concurrent_envs=sessions
    )
