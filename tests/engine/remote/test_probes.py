"""The questions and trials that a remote back end gets before a run."""

from __future__ import annotations

import asyncio
import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import tinker
from tinker import types

from code_rl.engine import TrainingOptions, connect, logprobs_of, place_of
from code_rl.engine.local import EmbeddedService
from code_rl.engine.names import BUILT_IN_FOLDER
from code_rl.engine.probes import context_of, load_tokenizer, probe_narrowing, probe_scaling
from code_rl.engine.remote import Link, RemoteClient
from code_rl.evaluation import make_eval_config
from code_rl.util.errors import BackendError
from tests.engine.remote.remote_support import FaultyProxy, settings
from tests.refusals import refused
from tests.verbs import train_command


@pytest.fixture(scope="module")
def sampler():
    service = EmbeddedService(device="cpu", dtype="float32")
    return service.create_sampling_client(base_model="tiny").result()


class WithoutFirst:
    """A sampler whose log-probabilities of a prompt begin with its second token, as SkyRL 0.4's do."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def sample(self, prompt: Any, num_samples: int, sampling_params: Any, **options: Any) -> Any:
        response = self._inner.sample(prompt, num_samples, sampling_params, **options).result()
        scored = response.prompt_logprobs
        return SimpleNamespace(sequences=response.sequences, prompt_logprobs=scored and scored[1:])

    def compute_logprobs(self, prompt: Any) -> Any:
        return self._inner.compute_logprobs(prompt).result()[1:]


class Untempered:
    """A sampler as some services are: the log-probabilities that it samples with are those at temperature 1."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def sample(self, prompt: Any, num_samples: int, sampling_params: Any) -> Any:
        response = self._inner.sample(prompt, num_samples, sampling_params).result()
        (drawn,) = response.sequences
        plain = self.compute_logprobs(prompt.append(types.EncodedTextChunk(tokens=drawn.tokens))).result()
        return SimpleNamespace(sequences=[SimpleNamespace(tokens=drawn.tokens, logprobs=plain[prompt.length :])])

    def compute_logprobs(self, prompt: Any) -> Any:
        return self._inner.compute_logprobs(prompt)


def remote(client: Any) -> Any:
    return RemoteClient(client, Link(place_of("http://127.0.0.1:9"), 60.0))


def test_sampled_logprobs_of_the_policy_itself_are_told_from_scaled_ones(sampler):
    assert asyncio.run(probe_scaling(remote(sampler), 40)) is True
    assert asyncio.run(probe_scaling(remote(Untempered(sampler)), 40)) is False


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_a_prompt_scored_without_its_first_token_is_read_as_one_with_it(sampler, temperature):
    assert asyncio.run(probe_scaling(remote(WithoutFirst(sampler)), 40)) is True
    tokens = [40, 41, 42, 43]
    found = asyncio.run(logprobs_of(remote(WithoutFirst(sampler)), tokens, temperature))
    assert found == asyncio.run(logprobs_of(remote(sampler), tokens, temperature))


def test_loss_that_the_server_refuses_ends_the_run_by_name(server, tmp_path):
    with (
        FaultyProxy(server.url, {"api/v1/forward_backward": [422] * 8}) as proxy,
        refused("loss="),
    ):
        train_command(settings(proxy.url, tmp_path, max_steps="1"))


def test_an_evaluation_at_any_temperature_asks_a_server_for_no_pass(server, tmp_path):
    with FaultyProxy(server.url, {"api/v1/forward_backward": [422] * 8}) as proxy:
        config = make_eval_config(
            {"benchmark": "builtin", "model_name": "tiny", "backend": proxy.url, "temperature": 0.7}
        )
        backend = asyncio.run(connect(config, TrainingOptions(), tmp_path))
        backend.close()
    assert backend.capabilities.scaled_logprobs is None


def test_error_lines_never_hold_the_key():
    place = place_of("tinker", {"TINKER_BASE_URL": "http://127.0.0.1:9", "TINKER_API_KEY": "tml-5ecret"})
    link = Link(place, 60.0)

    def fail() -> None:
        raise RuntimeError("denied for tml-5ecret\non line two")

    with pytest.raises(BackendError) as caught:
        link.submit(fail, lambda value: value).result()
    assert str(caught.value) == "http://127.0.0.1:9: denied for *** on line two"
    assert "tml-5ecret" not in repr(dataclasses.replace(place))


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_reference_is_scored_at_the_temperature_of_passes(server, temperature):
    tokens = [40 + i % 500 for i in range(512)]  # as long as the model's context
    local = EmbeddedService(device="cpu", dtype="float32")
    over_http = tinker.ServiceClient(base_url=server.url, api_key="tml-dummy")
    trainer = local.create_lora_training_client("tiny", rank=2, seed=0).result()
    inputs: dict[str, Any] = {"target_tokens": tokens[1:], "weights": [1.0] * 511}
    datum = types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)
    scored = trainer.forward([datum], "cross_entropy", {"temperature": temperature}).result()
    expected = scored.loss_fn_outputs[0]["logprobs"].to_numpy()
    services: tuple[Any, ...] = (local, over_http)
    for service in services:
        sampler = service.create_sampling_client(base_model="tiny").result()
        found = asyncio.run(logprobs_of(sampler, tokens, temperature))
        assert found[0] is None
        assert found[1:] == pytest.approx(expected.tolist(), abs=1e-4)


@pytest.mark.parametrize(("top_p", "top_k", "named"), [(0.9, -1, "top_p=0.9"), (1.0, 20, "top_k=20")])
def test_a_back_end_that_draws_from_all_tokens_is_refused_by_name(sampler, top_p, top_k, named):
    def wide(prompt: Any, num_samples: int, sampling_params: Any) -> Any:
        return sampler.sample(prompt, num_samples, sampling_params.model_copy(update={"top_p": 1.0, "top_k": -1}))

    asyncio.run(probe_narrowing(remote(sampler), 40, top_p, top_k))
    with refused(named) as caught:
        asyncio.run(probe_narrowing(remote(SimpleNamespace(sample=wide)), 40, top_p, top_k))
    assert caught.value.__cause__ is None  # it answered


def test_context_and_tokenizer_come_from_the_server_or_from_here():
    assert context_of("whatever", 4096) == 4096
    assert context_of(str(BUILT_IN_FOLDER), None) == 512
    assert load_tokenizer("no such model", str(BUILT_IN_FOLDER)).chat_template
    with refused("no such model"):
        context_of("no such model", None)
    with refused("no such model"):
        load_tokenizer("no such model", "nor this one")
