"""`stable_reinforce`: every token of an example names the sequence that the service recorded. The service here keeps what it sampled, and looks
up the tokens that it is to train; it computes no loss, for the formula is unpublished."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tinker import types

from code_rl.cli.train import train_command
from code_rl.engine.losses import get_loss
from code_rl.engine.places import KEYLESS, BackendKind, Place
from code_rl.engine.recorded import RecordedSequences
from code_rl.engine.remote import Link, RemoteTrainingClient
from code_rl.policy.completion_log import InFlight
from code_rl.policy.environments import Repair, Single
from code_rl.policy.sample import Sampling
from code_rl.training.algorithm.datums import make_datum, segments, train_step
from code_rl.util.errors import BackendError
from tests.engine.serve.serve_support import ServerThread
from tests.policy.conversation_support import Scripted, policy, problem, program
from tests.refusals import refused

ANSWERS = [program("1"), program("7")]


class Recording:
    """A training client whose samplers give ids, and whose loss looks up every token by them."""

    def __init__(self) -> None:
        self.model_id = "recording"
        self.recorded: dict[str, tuple[list[int], list[int]]] = {}
        self.trained: list[types.Datum] = []

    def save_weights_and_get_sampling_client(self, record_stability_info: bool = False) -> Any:
        assert record_stability_info
        return SimpleNamespace(sample=self._sample)

    def _sample(self, prompt: Any, num_samples: int, sampling_params: Any) -> Any:
        answer = Scripted(ANSWERS).sample(prompt, num_samples, sampling_params)
        for each in answer.sequences:
            each.sequence_id = str(len(self.recorded))
            self.recorded[each.sequence_id] = (prompt.to_ints(), each.tokens)
        return answer

    def forward_backward(self, data: Any, loss_fn: str, config: Any) -> Any:
        assert loss_fn == "stable_reinforce"
        self.trained += data

    def optim_step(self, adam_params: Any) -> Any:
        """Nothing is optimized."""

    def tokens(self, spans: Any) -> list[int]:
        """The tokens that the spans name."""
        found = []
        for span in spans:
            part = self.recorded[span.sequence_id][isinstance(span, types.SampledProvenanceSpan)]
            found += part[span.offset : span.offset + span.length]
        return found


def remote(service: Any) -> RemoteTrainingClient:
    link = Link(Place(BackendKind.SERVER, "http://127.0.0.1:9", KEYLESS), 60.0)
    return RemoteTrainingClient(service, link, None, ThreadPoolExecutor(1), RecordedSequences())


@pytest.mark.parametrize(
    ("environment", "keeps", "datums"),
    [(Single(), True, 1), (Repair(), True, 1), (Repair(), False, 2)],
    ids=["one turn", "turns joined", "a prompt that forgets"],
)
def test_every_token_of_an_example_names_the_sequence_that_it_was_in(environment, keeps, datums):
    service = Recording()
    client: Any = remote(service)
    sampler = client.save_weights_and_get_sampling_client().result()
    made = policy(sampler, environment=environment, keeps=keeps)
    group = asyncio.run(made.roll_out(problem(), 2, Sampling(1000), 5))
    examples = [
        make_datum(each.tokens, each.logprobs, each.prompt_length, 1.0)
        for trajectory in group.trajectories
        for each in segments(trajectory.turns)
    ]
    train_step(client, examples, types.AdamParams(learning_rate=1e-3), get_loss("stable_reinforce"))
    assert len(service.trained) == 2 * datums
    for datum in service.trained:
        assert service.tokens(datum.model_input_spans) == datum.model_input.to_ints()
        assert service.tokens(datum.loss_fn_input_spans) == datum.loss_fn_inputs["target_tokens"].tolist()


def test_equal_answers_of_other_weights_are_told_apart_by_their_logprobs():
    recorded = RecordedSequences()
    for name, logprob in (("old", -0.5), ("new", -0.25)):
        recorded.note(
            [1, 2], [types.SampledSequence("stop", name, np.array([3], np.int32), np.array([logprob], np.float32))]
        )
    for name, logprob in (("old", -0.5), ("new", -0.25)):
        datum = recorded.attached(make_datum([1, 2, 3], [logprob], 2, 1.0))
        assert {span.sequence_id for span in datum.model_input_spans or ()} == {name}


def test_an_example_of_another_session_is_refused():
    with pytest.raises(BackendError):
        RecordedSequences().attached(make_datum([1, 2, 3], [-0.5], 2, 1.0))


def test_a_resumed_run_draws_again_what_was_sampled_in_another_session(tmp_path):
    prompts = []
    for session in ("a", "a", "b"):
        sampler, inflight = Scripted(ANSWERS), InFlight(tmp_path / "inflight", session)
        asyncio.run(
            policy(sampler, environment=Single()).roll_out(
                problem(), 2, Sampling(1000), 5, inflight.group_log(0, "0.0")
            )
        )
        inflight.close()
        prompts.append(len(sampler.prompts))
    assert prompts == [1, 0, 1]


def test_a_back_end_that_does_not_list_the_loss_is_refused_before_anything_is_written(tmp_path):
    with ServerThread(tmp_path / "server") as server:
        for backend in ("embedded", server.url):
            given = {
                "backend": backend,
                "loss": "stable_reinforce",
                "log_path": str(tmp_path / "run"),
                "model_name": "tiny",
            }
            with refused("stable_reinforce", "dppo_tv"):
                train_command(given)
            assert not (tmp_path / "run").exists()
