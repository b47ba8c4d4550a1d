"""Sampling: seeds, stops, log-probabilities, snapshots."""

import numpy as np
import pytest
from tinker import types

from .shapes import forward, logprobs, ready, refused, seeded_step, soft, supervised, text, tokens, train

PROMPT = tokens(0, 12)


def params(**kwargs):
    return types.SamplingParams(**{"max_tokens": 8, "seed": 1, **kwargs})


def draw(sampler, prompt=PROMPT, samples=1, **kwargs):
    return ready(sampler.sample(text(prompt), samples, params(**kwargs))).sequences


def drawn(sampler, **kwargs):
    return [list(s.tokens) for s in draw(sampler, **kwargs)]


@pytest.fixture(scope="module")
def sampler(backend):
    return backend.base_sampler()


def test_a_seed_fixes_the_samples(sampler):
    assert drawn(sampler, samples=4, seed=5) == drawn(sampler, samples=4, seed=5)
    assert len({tuple(tokens) for tokens in drawn(sampler, samples=4, seed=5)}) > 1
    assert drawn(sampler, samples=4, seed=5) != drawn(sampler, samples=4, seed=6)


def test_a_completion_has_at_most_the_tokens_asked_for(sampler):
    sequences = draw(sampler, samples=4, max_tokens=5, stop=[])
    assert [(len(s.tokens), s.stop_reason) for s in sequences] == [(5, "length")] * 4


def test_a_stop_token_ends_a_completion_and_is_its_last(sampler):
    free = drawn(sampler, temperature=0.0, stop=[], max_tokens=12)[0]
    stop = free[4]
    (sequence,) = draw(sampler, temperature=0.0, stop=[stop], max_tokens=12)
    assert list(sequence.tokens) == free[: free.index(stop) + 1]
    assert sequence.stop_reason == "stop"


def test_logprobs_are_those_that_training_computes(backend):
    trainer = backend.trainer()
    train(trainer, [supervised(tokens(5, 20))])
    sampler = ready(trainer.save_weights_and_get_sampling_client())
    for sequence in draw(sampler, samples=3):
        whole = PROMPT + list(sequence.tokens)
        again = logprobs(forward(trainer, [supervised(whole)]))[0]
        assert np.allclose(again[len(PROMPT) - 1 :], sequence.logprobs, atol=2e-4)


def test_logprobs_at_a_temperature_are_those_of_a_pass_at_it(backend):
    if backend.name == "url":
        pytest.skip("that passes take a temperature is this engine's own")
    trainer = backend.trainer()
    sampler = ready(trainer.save_weights_and_get_sampling_client())
    for sequence in draw(sampler, samples=3, temperature=0.6):
        whole = PROMPT + list(sequence.tokens)
        again = trainer.forward([supervised(whole)], "cross_entropy", {"temperature": 0.6}).result()
        assert np.allclose(logprobs(again)[0][len(PROMPT) - 1 :], sequence.logprobs, atol=2e-4)


def test_prompt_logprobs_come_with_a_sample_on_request(sampler):
    response = ready(sampler.sample(text(PROMPT), 2, params(), include_prompt_logprobs=True))
    assert response.prompt_logprobs[0] is None
    assert np.allclose(response.prompt_logprobs[1:], ready(sampler.compute_logprobs(text(PROMPT)))[1:], atol=1e-4)
    assert not ready(sampler.sample(text(PROMPT), 1, params())).prompt_logprobs


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_the_likeliest_tokens_of_a_prompt_come_on_request(backend, temperature):
    """Their log-probabilities are those that a pass at that temperature gives the same tokens, and no token has a greater one."""
    drawn = ready(
        backend.base_sampler().sample(
            text(PROMPT), 1, params(max_tokens=1, temperature=temperature), True, topk_prompt_logprobs=5
        )
    )
    rows = drawn.topk_prompt_logprobs
    assert rows[0] is None
    assert [len(row) for row in rows[1:]] == [5] * (len(PROMPT) - 1)
    ids, found = (
        np.array([[t for t, _ in row] for row in rows[1:]]),
        np.array([[p for _, p in row] for row in rows[1:]]),
    )
    data, config = [soft(PROMPT, ids, np.ones(ids.shape))], {"temperature": temperature}
    scored = logprobs(forward(backend.trainer(), data, config=config))[0].reshape(ids.shape)
    assert np.allclose(found, scored, atol=2e-4)
    assert (np.diff(found, axis=1) <= 0).all()
    own = np.array(drawn.prompt_logprobs[1:])
    listed = ids == np.array(PROMPT[1:])[:, None]
    assert np.allclose(own[listed.any(axis=1)], found[listed], atol=1e-4)
    assert (own[~listed.any(axis=1)] <= found[~listed.any(axis=1), -1] + 1e-4).all()


def test_the_likeliest_tokens_of_the_end_of_a_prompt_are_those_of_the_whole(backend):
    sampler = backend.base_sampler()
    ask = {"include_prompt_logprobs": True, "topk_prompt_logprobs": 3}
    whole = ready(sampler.sample(text(PROMPT), 1, params(max_tokens=1), **ask))
    end = ready(sampler.sample(text(PROMPT), 1, params(max_tokens=1), prompt_logprobs_last_n=2, **ask))
    assert end.topk_prompt_logprobs[:-2] == [None] * (len(PROMPT) - 2)
    for mine, other in zip(end.topk_prompt_logprobs[-2:], whole.topk_prompt_logprobs[-2:], strict=True):
        assert [t for t, _ in mine] == [t for t, _ in other]
        assert np.allclose([p for _, p in mine], [p for _, p in other], atol=1e-5)
    assert ready(sampler.sample(text(PROMPT), 1, params(max_tokens=1))).topk_prompt_logprobs is None


def test_a_snapshot_does_not_change_when_training_goes_on(backend):
    trainer = backend.trainer()
    old = ready(trainer.save_weights_and_get_sampling_client())
    before = ready(old.compute_logprobs(text(PROMPT)))
    train(trainer, [supervised(PROMPT)])
    new = ready(trainer.save_weights_and_get_sampling_client())
    assert np.allclose(ready(old.compute_logprobs(text(PROMPT)))[1:], before[1:], atol=1e-5)
    assert not np.allclose(ready(new.compute_logprobs(text(PROMPT)))[1:], before[1:], atol=1e-3)


@pytest.mark.parametrize(
    ("prompt", "change", "named"),
    [
        ([5, 10**6], {}, "vocabulary"),
        ([], {}, "no tokens"),
        (PROMPT, {"max_tokens": 10**9}, "context"),
        (PROMPT, {"temperature": -1.0}, "temperature"),
        (PROMPT, {"top_p": 0.0}, "top_p"),
    ],
)
def test_what_cannot_be_sampled_is_refused_by_name(sampler, prompt, change, named):
    with refused(named):
        draw(sampler, prompt, **change)
    assert draw(sampler)


def test_what_is_sampled_is_scored_and_stepped_upon(backend):
    step = seeded_step(backend.trainer(rank=8, seed=11))
    assert step["after"] != step["before"]
