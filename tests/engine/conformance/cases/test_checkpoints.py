"""Saving and loading."""

import uuid

import numpy as np
import pytest
from tinker import types

from .shapes import forward, logprobs, ready, refused, supervised, text, tokens, train

A, B = [supervised(tokens(1, 24))], [supervised(tokens(2, 17))]


def state_of(trainer, name=None, **kwargs):
    return trainer.save_state(name or f"s-{uuid.uuid4().hex[:8]}", **kwargs).result().path


def scores(trainer):
    return logprobs(forward(trainer, A))[0]


def test_a_restored_client_goes_on_where_the_saved_one_stood(backend):
    trainer = backend.trainer()
    for _ in range(2):
        train(trainer, A)
    path = state_of(trainer)
    restored = ready(backend.service.create_training_client_from_state_with_optimizer(path))
    assert np.allclose(scores(restored), scores(trainer), atol=1e-6)
    for client in (trainer, restored):
        train(client, B)
    assert np.allclose(scores(restored), scores(trainer), atol=1e-5)


def test_without_the_optimizer_the_next_step_is_another(backend):
    trainer = backend.trainer()
    for _ in range(2):
        train(trainer, A)
    restored = ready(backend.service.create_training_client_from_state(state_of(trainer)))
    assert np.allclose(scores(restored), scores(trainer), atol=1e-6)
    for client in (trainer, restored):
        train(client, B)
    assert not np.allclose(scores(restored), scores(trainer), atol=1e-4)


def test_a_restored_client_has_the_settings_of_the_saved_one(backend):
    trainer = backend.trainer(rank=3, train_unembed=False)
    restored = ready(backend.service.create_training_client_from_state_with_optimizer(state_of(trainer)))
    assert restored.get_info().lora_rank == 3


def test_saved_sampler_weights_sample_as_the_snapshot_did(backend):
    trainer = backend.trainer()
    train(trainer, A)
    snapshot = ready(trainer.save_weights_and_get_sampling_client())
    path = trainer.save_weights_for_sampler("w").result().path
    saved = ready(backend.service.create_sampling_client(model_path=path))
    params = types.SamplingParams(max_tokens=10, seed=3)
    first, second = (ready(s.sample(text(tokens(9, 10)), 3, params)).sequences for s in (snapshot, saved))
    assert [list(s.tokens) for s in first] == [list(s.tokens) for s in second]


def test_a_name_is_taken_until_overwriting_is_allowed(backend):
    trainer = backend.trainer()
    path = state_of(trainer, "once")
    with refused("exists"):
        state_of(trainer, "once")
    train(trainer, A)
    assert state_of(trainer, "once", overwrite=True) == path
    restored = ready(backend.service.create_training_client_from_state(path))
    assert np.allclose(scores(restored), scores(trainer), atol=1e-6)


@pytest.mark.parametrize("name", ["../escape", "", ".hidden", "a/b", "x" * 200])
def test_a_name_that_is_no_file_name_is_refused(backend, name):
    with refused("name"):
        state_of(backend.trainer(), name) if name else backend.trainer().save_state(name).result()


def test_a_checkpoint_that_is_not_there_is_an_error(backend):
    path = state_of(backend.trainer(), "there")
    with refused("not"):
        ready(backend.service.create_training_client_from_state(path.replace("there", "gone")))
