"""One seeded step of reinforcement learning is the same in process and over HTTP, to the last bit, under each loss."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("prometheus_client")
import tinker

from code_rl.engine.local import EmbeddedService
from code_rl.engine.losses import POLICY_LOSSES
from tests.engine.conformance.cases.shapes import ready, seeded_step
from tests.engine.serve.serve_support import ServerThread


@pytest.fixture(scope="module")
def services(tmp_path_factory):
    with ServerThread(tmp_path_factory.mktemp("state")) as server:
        yield EmbeddedService(device="cpu"), tinker.ServiceClient(base_url=server.url, api_key="tml-dummy")


@pytest.mark.parametrize("loss", POLICY_LOSSES)
def test_one_seeded_step_is_the_same_in_process_and_over_http(services, loss):
    trainers = [ready(each.create_lora_training_client("tiny", rank=8, seed=11)) for each in services]
    here, there = (seeded_step(trainer, loss) for trainer in trainers)
    assert here == there
