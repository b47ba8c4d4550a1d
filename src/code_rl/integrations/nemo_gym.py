"""NeMo Gym: a resources server whose `app.py` is `from code_rl.integrations.nemo_gym import
CodeServer; CodeServer.run_webserver()`."""

from __future__ import annotations

from typing import Any

import nemo_gym.base_resources_server as gym

from code_rl.grading import Problem
from code_rl.integrations import rows
from code_rl.policy.prompt_templates import PromptTemplate, livecodebench

FAILED = "_ng_failure_class"
"""Gym 0.4's key of a rollout without a reward. Gym writes it to the file of failures, leaves it out
of every figure, and tries it again on resume."""
MASK, KIND = "mask_sample", "failure_kind"
"""Keys of later versions of Gym: leave the sample out of the loss, and why."""


class CodeRequest(gym.BaseVerifyRequest):  # type: ignore[misc]
    """A request whose `verifier_metadata` holds the row's `problem`."""

    verifier_metadata: dict[str, Any]


class CodeResponse(gym.BaseVerifyResponse, extra="allow"):  # type: ignore[misc, call-arg]
    """The reward, with the verdict."""

    verdict: str


class CodeServer(gym.SimpleResourcesServer):  # type: ignore[misc]
    """Serves `POST /verify` with our judge."""

    config: gym.BaseResourcesServerConfig

    async def verify(self, body: CodeRequest) -> CodeResponse:
        """Return 1.0 for a program that passes every test, else 0.0. Without a verdict, return a
        row that Gym counts as a failure, with reward 0.0 and the reason. Raises DataError for a row
        without a problem."""
        verdict = await rows.verdict_of(
            body.verifier_metadata["problem"], body.response.output_text
        )
        failed = (
            {
                MASK: True,
                KIND: verdict.kind.value,
                FAILED: verdict.kind.value,
                f"{FAILED}_reason": rows.why(verdict),
            }
            if verdict.undecided
            else {}
        )
        return CodeResponse(
            **body.model_dump(), reward=float(verdict.correct), verdict=verdict.kind.value, **failed
        )


def to_row(problem: Problem, template: PromptTemplate = livecodebench) -> dict[str, Any]:
    """Return a line of Gym's data files, without its `agent_ref`: the prompt by `template`, and the
    whole problem with its tests, which only the judge reads."""
    row = rows.to_row(problem, template)
    return {
        "responses_create_params": {"input": row["prompt"]},
        "verifier_metadata": {"problem": row["problem"]},
    }
