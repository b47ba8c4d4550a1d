"""`sampler=`: a run whose completions come from a server of vLLM's endpoints. `test_vllm_real.py` has the real one."""

from __future__ import annotations

import asyncio
import math
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from code_rl.cli.train import train_command
from code_rl.engine import remote
from code_rl.engine.backends import connect
from code_rl.training.config import make_config
from code_rl.training.runs.recorder import read_metrics
from code_rl.util.errors import BackendError, ConfigError
from tests.engine.remote.fake_vllm import FakeVllm, error
from tests.engine.remote.remote_support import FaultyProxy, OtherServer, sampled, settings


def given(url: str, log_path: Path, **changes: str) -> dict[str, str]:
    made = settings("embedded", log_path, sampler=url, max_steps="2", max_tokens="80", threads="1")
    return {**made, "patience": "20", **changes}


@pytest.fixture
def vllm():
    with FakeVllm() as made:
        yield made


def test_every_step_draws_from_an_adapter_of_its_own_with_log_probabilities_that_are_the_trainers(vllm, tmp_path):
    assert train_command(given(f"{vllm.url}/v1", tmp_path / "run", learning_rate="1e-2")) == 0
    lines = [line for line in read_metrics(tmp_path / "run") if line["step"] >= 0]
    assert (
        len(vllm.names) == len(set(vllm.names)) == 4
    )  # the one tried at the start, before each step, and after the last
    assert vllm.loaded == {}
    assert not (tmp_path / "run" / "checkpoints" / "adapters").exists()
    assert all(line["sampler/gap_mean"] <= line["sampler/gap_max"] < 1e-4 for line in lines)
    assert [bool(line["n_datums"]) for line in lines] == [True, True]
    assert lines[1]["ratio_max"] < 1e-3  # it was drawn from the weights after the first step


@pytest.mark.slow
def test_each_completion_is_a_request_of_its_own_with_a_seed_of_its_own(vllm, tmp_path):
    assert train_command(given(vllm.url, tmp_path / "run", max_steps="1")) == 0
    asked = vllm.bodies[1:]
    assert len({body["seed"] for body in asked}) == len(asked) == 16
    assert all("n" not in body and body["repetition_penalty"] == 1 for body in asked)


@pytest.mark.slow
def test_faults_change_nothing_of_what_a_run_draws(vllm, tmp_path):
    assert train_command(given(vllm.url, tmp_path / "calm")) == 0
    vllm.loaded.clear()
    plan: dict[str, list[Any]] = {
        "/v1/completions": [None, 500, "lost", "cut", 429, None, 503],
        "/v1/load_lora_adapter": [None, "lost"],
        "/v1/unload_lora_adapter": ["lost"],
    }
    with FaultyProxy(vllm.url, plan) as proxy:
        assert train_command(given(proxy.url, tmp_path / "rough")) == 0
        assert len(proxy.injected) == 7
    assert sampled(tmp_path / "rough") == sampled(tmp_path / "calm")


@pytest.mark.slow
def test_a_server_that_was_started_anew_gets_the_adapters_again(vllm, tmp_path):
    assert train_command(given(vllm.url, tmp_path / "calm", max_steps_off_policy="1")) == 0
    vllm.bodies.clear()
    vllm.forgets_at = 22
    assert train_command(given(vllm.url, tmp_path / "anew", max_steps_off_policy="1")) == 0
    assert len(vllm.names) > len(set(vllm.names))
    assert sampled(tmp_path / "anew") == sampled(tmp_path / "calm")


@pytest.mark.slow
def test_a_resumed_run_drops_what_a_killed_one_left_on_the_server(vllm, tmp_path):
    assert train_command(given(vllm.url, tmp_path / "run", max_steps="1")) == 0
    left = f"{vllm.names[-1]}7"
    vllm.loaded[left], vllm.roots[left] = None, str(tmp_path / "run" / "checkpoints" / "adapters" / left)
    vllm.loaded["anothers"], vllm.roots["anothers"] = None, str(tmp_path / "run" / "checkpoints" / "adapters" / "left")
    assert train_command(given(vllm.url, tmp_path / "run", max_steps="2")) == 0
    assert list(vllm.loaded) == ["anothers"]


def test_adapters_go_where_both_can_see_them(vllm, tmp_path):
    shared = tmp_path / "shared"
    assert train_command(given(vllm.url, tmp_path / "run", max_steps="1", sampler_dir=str(shared))) == 0
    assert {Path(root).parent.parent for root in vllm.roots.values()} == {shared}
    assert {Path(root).parent.name[:12] for root in vllm.roots.values()} == {"code-rl-run-"}
    assert list(shared.iterdir()) == []


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
        (await connect(config, Path(log_path, "checkpoints"))).close()

    asyncio.run(whole())
    assert all(file.exists() for file in mine)
    assert not list(tmp_path.rglob("adapter_config.json"))


def test_runs_of_one_name_that_share_a_folder_leave_each_other_alone(vllm, tmp_path):
    async def both():
        config = make_config({}, given(vllm.url, tmp_path, sampler_dir=str(tmp_path / "shared")))
        first = await connect(config, tmp_path / "a" / "run" / "checkpoints")
        held = dict(vllm.roots)
        second = await connect(config, tmp_path / "b" / "run" / "checkpoints")
        second.close()
        assert list(vllm.loaded) == list(held)
        assert all(map(os.listdir, held.values()))
        first.close()

    asyncio.run(both())


REFUSALS = {
    "updates": (
        False,
        "does not let adapters be loaded while it runs; start it as: VLLM_ALLOW_RUNTIME_LORA_UPDATING=1",
    ),
    "reads": (False, r"cannot load the adapter in .*No adapter found.*\(sampler_dir=\)"),
    "rank": (8, "LoRA rank 32 is greater than max_lora_rank 8.*--max-lora-rank"),
    "vocabulary": (300, "is out of vocabulary"),
    "off": (0.5, "log-probabilities that are 0.5 apart on average"),
    "context": (20, "max_tokens=80 does not fit into the 20 tokens of sampler=.*--max-model-len 512"),
    "key": ("tml-mine", "refuses the key .*CODE_RL_SERVER_KEY"),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_a_server_that_cannot_serve_the_run_is_refused_at_the_start(vllm, tmp_path, what):
    value, words = REFUSALS[what]
    setattr(vllm, what, value)
    with pytest.raises(ConfigError, match=words):
        train_command(given(vllm.url, tmp_path / "run"))
    assert vllm.loaded == {}


def test_the_key_is_that_of_servers(vllm, tmp_path, monkeypatch):
    vllm.key = "tml-mine"
    monkeypatch.setenv("CODE_RL_SERVER_KEY", "tml-mine")
    assert train_command(given(vllm.url, tmp_path / "run", max_steps="1")) == 0
    assert not [path for path in (tmp_path / "run").rglob("*") if path.is_file() and b"tml-mine" in path.read_bytes()]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sampler": "http://127.0.0.1:9"}, "sampler=http://127.0.0.1:9 cannot be reached"),
        ({"sampler": "gpu-box:8000"}, "sampler='gpu-box:8000' is no URL like http://host:port"),
        ({"backend": "http://127.0.0.1:9", "threads": None}, "sampler=.* has no effect on backend=http://127.0.0.1:9"),
        ({"sampler": None, "sampler_dir": "/x"}, "sampler_dir=/x has no effect without sampler="),
        ({"sampler_dir": "/proc/x"}, "sampler_dir=/proc/x: .* cannot be made"),
        ({"sampler_dir": __file__}, "sampler_dir=.*test_vllm.py: .* cannot be made"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_honoured_are_refused(vllm, tmp_path, changes, words):
    made = {**given(vllm.url, tmp_path / "run"), **changes}
    with pytest.raises(ConfigError, match=words):
        train_command({name: value for name, value in made.items() if value is not None})


def test_an_address_of_something_else_is_refused(tmp_path):
    async def handler(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    with OtherServer(handler) as other, pytest.raises(ConfigError, match="does not answer as vLLM does"):
        train_command(given(other.url, tmp_path / "run"))


@pytest.mark.slow
def test_a_temperature_needs_log_probabilities_that_are_scaled_by_it(vllm, tmp_path):
    with pytest.raises(
        ConfigError, match=r"temperature=0.7 .* cannot .* start it with --logprobs-mode processed_logprobs"
    ):
        train_command(given(vllm.url, tmp_path / "raw", temperature="0.7"))
    vllm.processed = True
    assert train_command(given(vllm.url, tmp_path / "scaled", temperature="0.7")) == 0
    assert all(line["ratio_max"] < 1e-3 for line in read_metrics(tmp_path / "scaled") if line["step"] >= 0)
    with pytest.raises(ConfigError, match=r"top_p=0.9 .* start it without"):
        train_command(given(vllm.url, tmp_path / "narrow", top_p="0.9"))
    with pytest.raises(ConfigError, match=r"temperature=0.7 with top_p=0.9 .* leave one of the two out"):
        train_command(given(vllm.url, tmp_path / "both", top_p="0.9", temperature="0.7"))


@pytest.mark.slow
def test_a_server_that_drifts_from_the_trainer_ends_the_run_before_its_answers_are_trained_on(vllm, tmp_path):
    complete = vllm._complete

    async def drifting(body):
        vllm.off = 0.3 if len(vllm.names) == 3 else 0.0
        return await complete(body)

    vllm._complete = drifting
    with pytest.raises(BackendError, match="apart on average"):
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
        with pytest.raises(BackendError, match="has not answered for"):
            train_command(given(proxy.url, tmp_path / "run", patience="1"))
    vllm._load = load
    assert train_command(given(vllm.url, tmp_path / "run")) == 0
    assert [line["step"] for line in read_metrics(tmp_path / "run")] == [0, 1]


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


def several(choice: dict[str, Any], times: int) -> None:
    choice["token_ids"] *= times
    choice["logprobs"]["token_logprobs"] *= times


NOT_ASKED = r"where 1 to \d+ of the 772 token ids"
WRONG: dict[str, tuple[Any, str]] = {
    "beyond": (lambda c: c["token_ids"].__setitem__(0, 772), NOT_ASKED),
    "far": (lambda c: c["token_ids"].__setitem__(0, 10**12), NOT_ASKED),
    "negative": (lambda c: c["token_ids"].__setitem__(0, -1), NOT_ASKED),
    "float": (lambda c: c["token_ids"].__setitem__(0, 5.7), NOT_ASKED),
    "true": (lambda c: c["token_ids"].__setitem__(0, True), NOT_ASKED),
    "text": (lambda c: c["token_ids"].__setitem__(0, "5"), NOT_ASKED),
    "long": (lambda c: several(c, 81), NOT_ASKED),
    "none": (lambda c: several(c, 0), rf"0 tokens .*{NOT_ASKED}"),
    "fewer": (lambda c: c["token_ids"].pop(), r"tokens and \d+ log-probabilities"),
    "nan": (lambda c: c["logprobs"]["token_logprobs"].__setitem__(0, math.nan), NOT_ASKED),
    "huge": (lambda c: c["logprobs"]["token_logprobs"].__setitem__(0, 10**400), "does not answer with token ids"),
    "nothing": (lambda c: c.update(logprobs=None), "does not answer with token ids and their log-probabilities"),
}


@pytest.mark.parametrize("what", WRONG)
def test_an_answer_that_is_not_what_was_asked_for_is_refused_in_a_line(vllm, tmp_path, what):
    vllm.spoil, words = WRONG[what]
    with pytest.raises(ConfigError, match=rf"^sampler={vllm.url} .*{words}") as raised:
        asyncio.run(connect(make_config({}, given(vllm.url, tmp_path)), tmp_path / "checkpoints"))
    assert len(str(raised.value)) < 250


def test_an_answer_that_is_not_what_was_asked_for_ends_the_run_before_it_is_used(vllm, tmp_path):
    vllm.spoil = lambda choice: len(vllm.bodies) > 3 and WRONG["far"][0](choice)
    with pytest.raises(BackendError, match=rf"^{vllm.url} answers with .* {NOT_ASKED}"):
        train_command(given(vllm.url, tmp_path / "run"))
    assert not read_metrics(tmp_path / "run")


def forgotten(_: dict[str, Any]) -> web.Response:
    return error(404, "NotFoundError", "The model `x` does not exist.")


def overloaded(_: dict[str, Any]) -> web.Response:
    return error(429, "TooManyRequests", "slow down")


def given_up(reason: str | None) -> Any:
    choice = {"finish_reason": reason, "token_ids": [], "logprobs": {"token_logprobs": []}}
    return lambda _: web.json_response({"choices": [choice]})


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (forgotten, "status 404, The model `x` does not exist."),
        (overloaded, "status 429, slow down"),
        (given_up("abort"), '"finish_reason": "abort"'),
        (given_up(None), '"finish_reason": null'),
    ],
)
def test_a_completion_that_never_comes_ends_the_run_when_patience_does(vllm, tmp_path, answer, words):
    asked = []

    async def complete(body):
        asked.append(body)
        return answer(body)

    vllm._complete = complete
    with pytest.raises(
        ConfigError,
        match=rf"answers, but not one request of .*\(more than 12 times patience=0\.1\); it said: .*{re.escape(words)}",
    ):
        train_command(given(vllm.url, tmp_path / "run", patience="0.1"))
    assert 1 < len(asked) < 6  # with pauses between


@pytest.mark.slow
def test_an_outage_does_not_count_towards_the_patience_with_a_request(vllm, tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "REQUEST_TIMES", 0.1)
    load = vllm._load

    def stumbling(**body):
        if len(vllm.names) == 1:
            vllm.sick_until = time.monotonic() + 5
        return load(**body)

    vllm._load = stumbling
    assert train_command(given(vllm.url, tmp_path / "run", max_steps="1")) == 0
    waited = re.findall(r"answers again after (\d+) s", (tmp_path / "run" / "logs.log").read_text())
    assert int(waited[-1]) > 2


@pytest.mark.slow
def test_an_outage_that_is_over_does_not_count_towards_the_next(vllm, tmp_path):
    log = tmp_path / "run" / "logs.log"
    with FaultyProxy(vllm.url, {}) as proxy:
        load = vllm._load

        def stumbling(**body):
            if len(vllm.names) >= 2:  # a moment of silence at every step
                proxy.plan |= {"/health": [503], "/v1/completions": [503]}
            return load(**body)

        vllm._load = stumbling
        assert train_command(given(proxy.url, tmp_path / "run")) == 0
    assert log.read_text().count("does not answer") == log.read_text().count("answers again") >= 1
