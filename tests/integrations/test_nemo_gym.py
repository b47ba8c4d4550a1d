"""NeMo Gym's web server with our `/verify`. Needs the extra `nemo-gym` (Python 3.12)."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("nemo_gym")

from fastapi.testclient import TestClient
from nemo_gym.base_resources_server import BaseResourcesServerConfig
from nemo_gym.server_utils import ServerClient
from responses_api_agents.simple_agent.app import SimpleAgentVerifyResponse

from code_rl.integrations.nemo_gym import FAILED, KIND, MASK, CodeServer, to_row

from .test_rows import RIGHT, SUM, WRONG


def verified(answer):
    config = BaseResourcesServerConfig(host="127.0.0.1", port=1, entrypoint="app.py", name="code_rl", domain="coding")
    server = CodeServer(config=config, server_client=ServerClient.model_construct())
    message = {
        "id": "m", "type": "message", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": answer, "annotations": []}],
    }  # fmt: skip
    response = {
        "id": "r", "created_at": 0.0, "model": "m", "object": "response", "parallel_tool_calls": False,
        "tool_choice": "none", "tools": [], "output": [message],
    }  # fmt: skip
    with TestClient(server.setup_webserver()) as client:
        answered = client.post("/verify", json={**json.loads(json.dumps(to_row(SUM))), "response": response})
    assert answered.status_code == 200, answered.text
    return answered.json()


@pytest.mark.parametrize(("answer", "reward", "verdict"), [(RIGHT, 1.0, "passed"), (WRONG, 0.0, "wrong_answer")])
def test_verify_gives_our_reward(answer, reward, verdict):
    got = verified(answer)
    print({name: got[name] for name in ("reward", "verdict")})
    assert (got["reward"], got["verdict"]) == (reward, verdict)
    assert not {FAILED, KIND, MASK} & got.keys()


@pytest.mark.usefixtures("broken")
def test_a_sandbox_that_is_down_is_a_failure_of_the_rollout_also_behind_gyms_agent():
    got = verified(RIGHT)
    assert got[FAILED] == got[KIND] == "sandbox_error"
    assert got[MASK] is True
    assert SimpleAgentVerifyResponse.model_validate(got).model_dump()[FAILED] == "sandbox_error"
