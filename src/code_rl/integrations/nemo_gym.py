"""NeMo Gym: a resources server whose `app.py` is `from code_rl.integrations.nemo_gym import
CodeServer; CodeServer.run_webserver()`."""

from __future__ import annotations

from typing import Any

import nemo_gym.base_resources_server as gym

from code_rl.grading import Problem
from code_rl.integrations import rows
from code_rl.policy.prompt_templates import PromptTemplate, livecodebench

FAILED = "_ng_failure_class"
"""Gym 0.4's key of a rollout that has no reward: it goes to the file of failures, out of every
figure, and is tried again on resume."""
MASK, KIND = "mask_sample", "failure_kind"
"""Gym's words since: the sample is left out of the loss, and why."""


class CodeRequest(gym.BaseVerifyRequest):  # type: ignore[misc]
    """`verifier_metadata` holds the row's `problem`."""

    verifier_metadata: dict[str, Any]


class CodeResponse(gym.BaseVerifyResponse, extra="allow"):  # type: ignore[misc, call-arg]
    """The verdict beside the reward."""

    verdict: str


class CodeServer(gym.SimpleResourcesServer):  # type: ignore[misc]
    """`POST /verify` by our judge."""

    config: gym.BaseResourcesServerConfig

    async def verify(self, body: CodeRequest) -> CodeResponse:
        """Return 1.0 for a program that passes every test, else 0.0. Without a verdict, return a
        row that Gym counts as a failure."""
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
    """A line of Gym's data files, without its `agent_ref`."""
    row = rows.to_row(problem, template)
    return {
        "responses_create_params": {"input": row["prompt"]},
        "verifier_metadata": {"problem": row["problem"]},
    }
