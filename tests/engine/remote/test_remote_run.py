"""The hosted path: the real SDK over real HTTP against `code-rl serve`."""

from __future__ import annotations

import asyncio
import json
import shutil
import warnings
from typing import Any

import pytest

from code_rl.engine import TrainingOptions, connect, preflight
from code_rl.engine.names import BUILT_IN_FOLDER
from code_rl.training.config import make_config
from code_rl.util.errors import BackendError, CheckpointError
from tests.engine.remote.remote_support import FaultyProxy, records, sampled, settings
from tests.refusals import refused
from tests.verbs import train_command


@pytest.fixture(scope="module")
def whole(server, tmp_path_factory):
    """Five steps without interruption."""
    log_path = tmp_path_factory.mktemp("runs") / "whole"
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        warnings.filterwarnings("error", category=DeprecationWarning, module="code_rl")
        assert train_command(settings(server.url, log_path)) == 0
    return log_path


@pytest.mark.slow
def test_run_on_a_server_trains_and_logs_session_and_the_services_metrics(whole):
    steps = records(whole)
    assert [record["step"] for record in steps] == [0, 1, 2, 3, 4]
    trained = [record for record in steps if record["n_datums"]]
    assert trained
    assert all(record["ratio_max"] < 1e-3 for record in trained)
    assert (whole / "logs.log").read_text().count("grad_norm:mean") == len(trained)
    saved = [json.loads(line) for line in (whole / "checkpoints.jsonl").read_text().splitlines()]
    assert [line["step"] for line in saved] == [1, 2, 3, 4, 5]
    assert all(line[name].startswith("tinker://") for line in saved for name in ("state_path", "sampler_path"))


@pytest.mark.long
def test_model_that_only_the_servers_disk_has_under_that_name_is_found_and_trained(server, tmp_path):
    folder = shutil.copytree(BUILT_IN_FOLDER, tmp_path / "mine")
    given = settings(server.url, tmp_path / "run", model_name=str(folder), max_steps="1")
    assert train_command(given) == 0
    assert records(tmp_path / "run")


def test_a_server_says_why_it_cannot_load_a_model(server, tmp_path):
    (tmp_path / "cut.gguf").write_bytes(b"GGUF")
    with refused("cut.gguf"):
        asyncio.run(preflight(make_config(settings(server.url, tmp_path, model_name=str(tmp_path / "cut.gguf")))))


@pytest.mark.parametrize(("faults", "expected"), [([], CheckpointError), ([422], BackendError)])
def test_a_server_that_has_a_checkpoint_no_longer_is_told_from_one_that_fails(server, tmp_path, faults, expected):
    with FaultyProxy(server.url, {"load_weights": faults}) as proxy:
        options = make_config(settings(proxy.url, tmp_path, outage_timeout="0.5"))
        with pytest.raises(expected):
            asyncio.run(connect(options, TrainingOptions(), tmp_path, "tinker://run/weights/000002"))


@pytest.mark.long
def test_stopped_and_resumed_run_equals_the_uninterrupted_one(server, whole, tmp_path):
    log_path = tmp_path / "resumed"
    with FaultyProxy(server.url, {}) as proxy:
        assert train_command(settings(proxy.url, log_path, max_steps="2")) == 0
        assert train_command({"log_path": str(log_path), "max_steps": "5"}) == 0
        assert any(path.endswith("load_weights") for path in proxy.seen)
    assert sampled(log_path) == sampled(whole)
    assert records(log_path) == records(whole)


PLANS: dict[str, dict[str, list[Any]]] = {
    "statuses": {"optim_step": [500, 429, 503], "forward_backward": [429, 500], "asample": [429, 500], "save_weights": [500]},
    "lost answers": {"optim_step": ["lost", None, "lost"], "forward_backward": ["lost"], "asample": ["lost", "lost"], "save_weights": ["lost"]},
    "cut answers": {"optim_step": ["cut"], "forward_backward": ["cut"], "retrieve_future": ["cut", None, "cut", "cut"], "asample": ["cut"]},
    "time-outs": {"optim_step": ["hang"], "forward_backward": ["hang"], "retrieve_future": [None, None, "hang"], "asample": ["hang"]},
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(
    "plan", ["lost answers", *(pytest.param(plan, marks=pytest.mark.slow) for plan in PLANS if plan != "lost answers")]
)
def test_faults_on_the_wire_change_nothing_and_no_step_is_taken_twice(server, whole, tmp_path, plan):
    with FaultyProxy(server.url, PLANS[plan]) as proxy:
        assert train_command(settings(proxy.url, tmp_path, max_steps="2")) == 0
        assert len(proxy.injected) == sum(fault is not None for faults in PLANS[plan].values() for fault in faults)
    assert sampled(tmp_path) == sampled(whole)[:8]
    assert records(tmp_path) == records(whole)[:2]
