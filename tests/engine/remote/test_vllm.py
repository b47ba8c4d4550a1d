"""`sampler=`: a run whose completions come from a server of vLLM's endpoints. `test_vllm_real.py` has the real one."""

from __future__ import annotations

import asyncio
import math
import os
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from code_rl.engine import connect
from code_rl.training import read_metrics
from code_rl.training.config import make_config
from code_rl.util.errors import BackendError
from tests.engine.remote.fake_vllm import FakeVllm, error
from tests.engine.remote.remote_support import FaultyProxy, settings
from tests.refusals import refused
from tests.verbs import train_command


def given(url: str, log_path: Path, **changes: str) -> dict[str, str]:
    made = settings("embedded", log_path, sampler=url, max_steps="2", max_tokens="80", threads="1")
    return {**made, "outage_timeout": "20", **changes}


@pytest.fixture
def vllm():
    with FakeVllm() as made:
        yield made


@pytest.mark.long
def test_every_step_draws_from_an_adapter_of_its_own_with_log_probabilities_that_are_the_trainers(
    vllm, tmp_path, monkeypatch
):
    vllm.key = "tml-mine"
    monkeypatch.setenv("CODE_RL_SERVER_KEY", "tml-mine")
    run = tmp_path / "run"
    assert train_command(given(f"{vllm.url}/v1", run, learning_rate="1e-2")) == 0
    lines = [line for line in read_metrics(run) if line["step"] >= 0]
    assert len(vllm.names) == len(set(vllm.names)) == 4  # tried at the start, before each step, and after the last
    assert vllm.loaded == {}
    assert not (run / "checkpoints" / "adapters").exists()
    assert all(line["sampler/gap_mean"] <= line["sampler/gap_max"] < 1e-4 for line in lines)
    assert [bool(line["n_datums"]) for line in lines] == [True, True]
    assert lines[1]["ratio_max"] < 1e-3  # it was drawn from the weights after the first step
    assert not [path for path in run.rglob("*") if path.is_file() and b"tml-mine" in path.read_bytes()]


@pytest.mark.slow
def test_a_resumed_run_drops_what_a_killed_one_left_on_the_server(vllm, tmp_path):
    assert train_command(given(vllm.url, tmp_path / "run", max_steps="1")) == 0
    left = f"{vllm.names[-1]}7"
    vllm.loaded[left], vllm.roots[left] = None, str(tmp_path / "run" / "checkpoints" / "adapters" / left)
    vllm.loaded["anothers"], vllm.roots["anothers"] = None, str(tmp_path / "run" / "checkpoints" / "adapters" / "left")
    assert train_command(given(vllm.url, tmp_path / "run", max_steps="2")) == 0
    assert list(vllm.loaded) == ["anothers"]


@pytest.mark.long
@pytest.mark.parametrize(("log_path", "sampler_dir"), [(".", "shared"), ("..", "shared"), ("run", "..")])
def test_nothing_in_a_shared_folder_is_deleted_but_what_the_run_wrote(
    vllm, tmp_path, monkeypatch, log_path, sampler_dir
):
    work = tmp_path / "outer" / "work"
    mine = [work / sampler_dir / below / "mine" for below in (".", "run", "code-rl-mine")] + [work / "mine"]
    for file in mine:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x")
    monkeypatch.chdir(work)

    async def whole():
        config = make_config({}, given(vllm.url, tmp_path, sampler_dir=sampler_dir))
        (await connect(config, config.training, Path(log_path, "checkpoints"))).close()

    asyncio.run(whole())
    assert all(file.exists() for file in mine)
    assert not list(tmp_path.rglob("adapter_config.json"))


def test_runs_of_one_name_that_share_a_folder_leave_each_other_alone(vllm, tmp_path):
    async def both():
        config = make_config({}, given(vllm.url, tmp_path, sampler_dir=str(tmp_path / "shared")))
        first = await connect(config, config.training, tmp_path / "a" / "run" / "checkpoints")
        held = dict(vllm.roots)
        second = await connect(config, config.training, tmp_path / "b" / "run" / "checkpoints")
        second.close()
        assert list(vllm.loaded) == list(held)
        assert all(map(os.listdir, held.values()))
        first.close()

    asyncio.run(both())


@pytest.mark.long
@pytest.mark.parametrize(
    ("attribute", "value", "named"),
    [
        ("updates", False, "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"),
        ("reads", False, "sampler_dir="),
        ("rank", 8, "--max-lora-rank"),
        ("vocabulary", 300, "sampler="),
        ("off", 0.5, "sampler="),
        ("context", 20, "--max-model-len"),
        ("key", "tml-mine", "CODE_RL_SERVER_KEY"),
    ],
)
def test_a_server_that_cannot_serve_the_run_is_refused_at_the_start(vllm, tmp_path, attribute, value, named):
    setattr(vllm, attribute, value)
    with refused(named):
        train_command(given(vllm.url, tmp_path / "run"))
    assert vllm.loaded == {}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"sampler": "http://127.0.0.1:9"}, "sampler=http://127.0.0.1:9"),
        ({"sampler": "gpu-box:8000"}, "sampler='gpu-box:8000'"),
        ({"backend": "http://127.0.0.1:9", "threads": None}, "backend=http://127.0.0.1:9"),
        ({"sampler": None, "sampler_dir": "/x"}, "sampler_dir=/x"),
        ({"sampler_dir": "/proc/x"}, "sampler_dir=/proc/x"),
        ({"sampler_dir": __file__}, "sampler_dir="),
    ],
)
def test_settings_that_cannot_be_honoured_are_refused(vllm, tmp_path, changes, named):
    made = {**given(vllm.url, tmp_path / "run"), **changes}
    with refused(named):
        train_command({name: value for name, value in made.items() if value is not None})


@pytest.mark.slow
def test_a_temperature_needs_log_probabilities_that_are_scaled_by_it(vllm, tmp_path):
    with refused("temperature="):
        train_command(given(vllm.url, tmp_path / "raw", temperature="0.7"))
    vllm.processed = True
    assert train_command(given(vllm.url, tmp_path / "scaled", temperature="0.7")) == 0
    assert all(line["ratio_max"] < 1e-3 for line in read_metrics(tmp_path / "scaled") if line["step"] >= 0)
    with refused("top_p="):
        train_command(given(vllm.url, tmp_path / "narrow", top_p="0.9"))
    with refused("temperature=", "top_p="):
        train_command(given(vllm.url, tmp_path / "both", top_p="0.9", temperature="0.7"))


@pytest.mark.slow
def test_a_server_that_drifts_from_the_trainer_ends_the_run_before_its_answers_are_trained_on(vllm, tmp_path):
    complete = vllm._complete

    async def drifting(body):
        vllm.off = 0.3 if len(vllm.names) == 3 else 0.0
        return await complete(body)

    vllm._complete = drifting
    with pytest.raises(BackendError):
        train_command(given(vllm.url, tmp_path / "run"))
    assert [line["step"] for line in read_metrics(tmp_path / "run")] == [0]


@pytest.mark.slow
def test_a_server_that_stays_away_ends_the_run_resumable(vllm, tmp_path):
    with FaultyProxy(vllm.url, {}) as proxy:
        load = vllm._load

        def dying(**body):
            if len(vllm.names) == 2:
                proxy.plan |= {"/health": [503] * 10_000, "/v1/completions": [503] * 10_000}
            return load(**body)

        vllm._load = dying
        with pytest.raises(BackendError):
            train_command(given(proxy.url, tmp_path / "run", outage_timeout="1"))
    vllm._load = load
    assert train_command(given(vllm.url, tmp_path / "run")) == 0
    assert [line["step"] for line in read_metrics(tmp_path / "run")] == [0, 1]


@pytest.mark.long
def test_an_adapter_that_the_server_does_not_unload_is_said_once_kept_and_tried_again(vllm, tmp_path):
    complete, held = vllm._complete, []

    async def pinning(body):
        vllm.keeps = len(vllm.names) < 4
        held.append([name for name in vllm.loaded if os.listdir(vllm.roots[name])])
        return await complete(body)

    vllm._complete = pinning
    assert train_command(given(vllm.url, tmp_path / "run", max_steps="4")) == 0
    assert max(map(len, held)) == 4
    assert len(held[-1]) <= 2
    assert vllm.loaded == {}
    assert (tmp_path / "run" / "logs.log").read_text().count("does not unload") == 1


WRONG: dict[str, Any] = {
    "beyond": lambda c: c["token_ids"].__setitem__(0, 772),
    "float": lambda c: c["token_ids"].__setitem__(0, 5.7),
    "true": lambda c: c["token_ids"].__setitem__(0, True),
    "none": lambda c: (c["token_ids"].clear(), c["logprobs"]["token_logprobs"].clear()),
    "fewer": lambda c: c["token_ids"].pop(),
    "nan": lambda c: c["logprobs"]["token_logprobs"].__setitem__(0, math.nan),
    "nothing": lambda c: c.update(logprobs=None),
}


@pytest.mark.long
@pytest.mark.parametrize("wrong", WRONG)
def test_an_answer_that_is_not_what_was_asked_for_is_refused(vllm, tmp_path, wrong):
    vllm.spoil = WRONG[wrong]
    with refused("sampler="):
        config = make_config({}, given(vllm.url, tmp_path))
        asyncio.run(connect(config, config.training, tmp_path / "checkpoints"))


def test_an_answer_that_is_not_what_was_asked_for_ends_the_run_before_it_is_used(vllm, tmp_path):
    vllm.spoil = lambda choice: len(vllm.bodies) > 3 and WRONG["beyond"](choice)
    with refused(vllm.url, kind=BackendError):
        train_command(given(vllm.url, tmp_path / "run"))
    assert not read_metrics(tmp_path / "run")


ABORTED = {"finish_reason": "abort", "token_ids": [], "logprobs": {"token_logprobs": []}}


@pytest.mark.long
@pytest.mark.parametrize(
    ("answer", "named"),
    [
        (lambda: error(404, "NotFoundError", "The model `x` does not exist."), ("outage_timeout=0.1", "404")),
        (lambda: error(429, "TooManyRequests", "slow down"), ("outage_timeout=0.1", "429")),
        (lambda: error(503, "ServiceUnavailable", "busy"), ("sampler=", "503")),
        (lambda: web.json_response({"choices": [ABORTED]}), ("outage_timeout=0.1", "abort")),
    ],
    ids=["forgotten", "overloaded", "broken", "given up"],
)
def test_a_completion_that_never_comes_ends_the_run_after_a_few_attempts(vllm, tmp_path, answer, named):
    asked = []

    async def complete(body):
        asked.append(body)
        return answer()

    vllm._complete = complete
    with refused(*named):
        train_command(given(vllm.url, tmp_path / "run", outage_timeout="0.1"))
    assert 1 < len(asked) < 6  # with pauses between
