"""The sampler against transformers, and its promises: seeds, stops, independence from the batch."""

from typing import Any

import numpy as np
import pytest
from tinker import types

from code_rl.engine.local import picking
from code_rl.engine.local.picking import Choice, Picker
from code_rl.util.errors import BackendError, ConfigError, DataError
from tests.engine.local.embedded_models import (
    FAMILIES,
    reference,
    reference_logprobs,
    service,
    supervised_datum,
    text,
    tokens,
    torch,
    trained,
)


def sampler(family="qwen3", **kwargs):
    return service(reference(family), **kwargs).create_sampling_client(base_model="m").result()


def params(**kwargs):
    given: dict[str, Any] = {"max_tokens": 30, "seed": 1, "stop": []}
    return types.SamplingParams(**(given | kwargs))


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_text_equals_transformers(family):
    model = reference(family)
    client = service(model).create_sampling_client(base_model="m").result()
    for seed, length in ((0, 3), (1, 17), (2, 40)):
        prompt = tokens(seed, length)
        got = client.sample(text(prompt), 2, params(temperature=0.0)).result()
        ids = torch.tensor([prompt])
        expected = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=30,
            eos_token_id=None,
            pad_token_id=0,
        )[0, length:].tolist()
        assert got.sequences[0].tokens == got.sequences[1].tokens == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_sampled_logprobs_equal_transformers_and_trainer(family):
    model = reference(family)
    made = service(model)
    trainer = made.create_lora_training_client("m", rank=2, seed=0).result()
    client = trainer.save_weights_and_get_sampling_client().result()
    prompt = tokens(3, 21)
    for sequence in client.sample(text(prompt), 5, params()).result().sequences:
        full = prompt + sequence.tokens
        np.testing.assert_allclose(sequence.logprobs, reference_logprobs(model, full)[20:].numpy(), atol=3e-5)
        datum = supervised_datum(full, [0.0] * 20 + [1.0] * len(sequence.tokens))
        trained_lp = trainer.forward([datum], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].to_numpy()
        np.testing.assert_allclose(sequence.logprobs, trained_lp[20:], atol=1e-4)


def test_frequencies_follow_the_distribution():
    model = reference("qwen3")
    client = service(model).create_sampling_client(base_model="m").result()
    prompt = tokens(4, 10)
    with torch.no_grad():
        expected = model(torch.tensor([prompt])).logits[0, -1].softmax(-1).numpy()
    drawn = [s.tokens[0] for s in client.sample(text(prompt), 4000, params(max_tokens=1)).result().sequences]
    found = np.bincount(drawn, minlength=97) / 4000
    assert np.abs(found - expected).sum() < 0.15
    assert np.all(np.abs(found - expected) <= 5 * np.sqrt(expected * (1 - expected) / 4000) + 1e-3)


@pytest.fixture(scope="module")
def tiny():
    return sampler("tiny-shape")


def results(client, requests):
    """Submit all at once; return (tokens, logprobs) of every sequence of every request."""
    futures = [client.sample(text(prompt), n, p) for prompt, n, p in requests]
    return [[(s.tokens, s.logprobs) for s in f.result().sequences] for f in futures]


@pytest.mark.long
def test_a_completion_does_not_depend_on_its_batch(tiny):
    """Token for token and bit for bit in the log-probabilities, for the built-in model's shape."""
    prompts = [tokens(s, 20 + 7 * s, 644) for s in range(6)]
    stops, temperatures = [5, 6, 7, 8, 9], (1.0, 0.6, 0.0)
    requests = [
        (prompt, 6, params(seed=i, max_tokens=20 + 9 * i, stop=stops, temperature=temperatures[i % 3]))
        for i, prompt in enumerate(prompts)
    ]
    mixed = results(tiny, requests)
    assert len({len(t) for group in mixed for t, _ in group}) > 3
    for i, request in enumerate(requests):
        assert results(tiny, [request])[0] == mixed[i]
    more = results(tiny, [(prompts[3], 40, requests[3][2])])[0]
    assert more[:6] == mixed[3]


@pytest.mark.parametrize(("limit", "value"), [("decode.MAX_ROWS", 7), ("forward.PREFILL_TOKENS", 60)])
def test_cutting_a_batch_leaves_no_trace(tiny, monkeypatch, limit, value):
    requests = [(tokens(s, 20 + 7 * s, 644), 4, params(max_tokens=20)) for s in range(5)]
    whole = results(tiny, requests)
    monkeypatch.setattr(f"code_rl.engine.local.{limit}", value)
    assert results(tiny, requests) == whole


def test_every_seed_of_64_bits_has_draws_of_its_own():
    seeds = (-1, -2, 2**63 + 5, 2**63 + 6, 2**63, 0, 5)
    drawn = [float(picking.Uniforms([Choice(seed, 0), Choice(5, 1)], torch.device("cpu")).take()[0]) for seed in seeds]
    assert len(set(drawn)) == len(seeds)


def test_logits_that_are_not_finite_end_the_request_in_one_line():
    model = reference("qwen3")
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.mul_(float("nan"))
    client = service(model).create_sampling_client(base_model="m").result()
    with pytest.raises(BackendError):
        client.sample(text(tokens(1, 5)), 2, params()).result()


def test_end_of_sequence_stops_by_default_and_not_with_an_empty_list():
    client = sampler()
    prompt = text(tokens(1, 10))
    free = client.sample(prompt, 64, params(max_tokens=60)).result().sequences
    default = client.sample(prompt, 64, params(max_tokens=60, stop=None)).result().sequences
    assert any(3 in s.tokens for s in free)
    for long, short in zip(free, default, strict=True):
        cut = long.tokens.index(3) + 1 if 3 in long.tokens else 60
        assert short.tokens == long.tokens[:cut]


def test_string_stop_ends_at_the_token_that_completes_it(tmp_path):
    from tokenizers import Tokenizer
    from tokenizers.decoders import Fuse
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(WordLevel({f"{'ab'[i % 2]}{i} ": i for i in range(97)}, unk_token="b1 "))
    inner.decoder = Fuse()
    PreTrainedTokenizerFast(tokenizer_object=inner).save_pretrained(tmp_path)
    client = sampler(source=str(tmp_path))
    stops, decode = ["1 b", "a4"], client.get_tokenizer().decode
    free = client.sample(text(tokens(1, 10)), 16, params(max_tokens=80)).result().sequences
    stopped = client.sample(text(tokens(1, 10)), 16, params(max_tokens=80, stop=stops)).result().sequences
    cuts = []
    for long, short in zip(free, stopped, strict=True):
        heads = [long.tokens[:n] for n in range(1, 81)]
        ends = [len(head) for head in heads if 3 in head or any(stop in decode(head) for stop in stops)]
        cuts.append(min([*ends, 80]))
        assert short.tokens == long.tokens[: cuts[-1]]
    assert sum(cut < 80 for cut in cuts) > 3


def test_unlimited_max_tokens_fills_the_context():
    client = sampler()
    (sequence,) = client.sample(text(tokens(1, 100)), 1, params(max_tokens=None)).result().sequences
    assert len(sequence.tokens) == 28
    assert sequence.stop_reason == "length"


@pytest.mark.parametrize(
    "asked",
    [{"temperature": 0.0}, {"temperature": 0.6}, {"temperature": 2.0}, {"temperature": 0.6, "top_k": 5, "top_p": 0.7}],
)
def test_logprobs_are_those_of_the_temperature_before_any_filter_and_greedy_ones_at_one(asked):
    model = reference("qwen3")
    client = service(model).create_sampling_client(base_model="m").result()
    prompt = tokens(1, 12)
    response = client.sample(text(prompt), 1, params(**asked), include_prompt_logprobs=True).result()
    (sequence,) = response.sequences
    expected = reference_logprobs(model, prompt + sequence.tokens, asked["temperature"] or 1.0).numpy()
    np.testing.assert_allclose(sequence.logprobs, expected[11:], atol=3e-5)
    np.testing.assert_allclose(response.prompt_logprobs[1:], expected[:11], atol=3e-5)


def picker_tokens(logits, count=2000, **settings):
    picker = Picker([Choice(seed=1, index=i, **settings) for i in range(count)], torch.device("cpu"))
    return picker.sample_tokens(torch.tensor([logits]).expand(count, -1).contiguous())[0].tolist()


def test_top_k_and_top_p_keep_what_they_should():
    logits = [float(np.log(p)) for p in (0.4, 0.05, 0.3, 0.15, 0.1)]
    assert set(picker_tokens(logits)) == {0, 1, 2, 3, 4}
    assert set(picker_tokens(logits, top_k=2)) == {0, 2}
    assert set(picker_tokens(logits, top_p=0.65)) == {0, 2}
    assert set(picker_tokens(logits, top_p=0.75)) == {0, 2, 3}
    assert set(picker_tokens(logits, top_p=1e-9)) == {0}
    assert set(picker_tokens(logits, top_k=2, top_p=0.5)) == {0}
    for temperature, share in ((1.0, 4 / 7), (0.5, 0.16 / 0.25)):
        kept = picker_tokens(logits, top_k=2, count=4000, temperature=temperature)
        assert abs(kept.count(0) / 4000 - share) < 0.03


def test_impossible_tokens_are_never_drawn(monkeypatch):
    """Not even at the ends of the unit interval."""
    logits = [-float("inf"), 0.0, -float("inf"), 1.0, -200.0, -float("inf")]
    for end in (0.0, float(np.nextafter(np.float32(1), np.float32(0)))):
        monkeypatch.setattr(picking.Uniforms, "take", lambda self, end=end: torch.full((len(self._streams),), end))
        assert set(picker_tokens(logits, count=4)) <= {1, 3}


@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512") or not torch.backends.mkldnn.is_available(),
    reason="weights are packed on x86 processors, by oneDNN",
)
@pytest.mark.parametrize("family", FAMILIES)
def test_weights_packed_for_sampling_give_the_trainers_logprobs_and_the_greedy_text_of_plain_ones(family, monkeypatch):
    monkeypatch.setattr("code_rl.engine.local.learner.MERGE_LIMIT", 10)
    trainer = trained(service(reference(family)).create_lora_training_client("m", rank=4, seed=0).result())
    prompt, greedy = tokens(1, 20), types.SamplingParams(max_tokens=12, temperature=0.0, stop=[])
    plain = trainer.save_weights_and_get_sampling_client().result()
    monkeypatch.setattr("code_rl.engine.local.weights.SMALL_HIDDEN", 0)
    trainer._learner.weights_changed()
    client = trainer.save_weights_and_get_sampling_client().result()
    kinds = [
        [linear.weight.is_mkldnn for layer in made._snapshot.weights.layers for linear in (layer.qkv, layer.down)]
        for made in (plain, client)
    ]
    assert [set(each) for each in kinds] == [{False}, {True}]
    found = [made.sample(text(prompt), 1, greedy).result().sequences[0].tokens for made in (plain, client)]
    assert found[0] == found[1]
    for sequence in client.sample(text(prompt), 5, params()).result().sequences:
        full = prompt + sequence.tokens
        datum = supervised_datum(full, [1.0] * (len(full) - 1))
        scored = trainer.forward([datum], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].to_numpy()[19:]
        np.testing.assert_allclose(sequence.logprobs, scored, atol=2e-5)


@pytest.mark.parametrize("packed", [False, True])
def test_bf16_sampler_agrees_with_its_trainer(packed, monkeypatch):
    monkeypatch.setattr("code_rl.engine.local.service.multiplies_bfloat16", lambda _: True)
    if packed:
        monkeypatch.setattr("code_rl.engine.local.weights.SMALL_HIDDEN", 0)
    made = service(reference("qwen3"), dtype="bfloat16")
    trainer = trained(made.create_lora_training_client("m", rank=4, seed=0).result())
    client = trainer.save_weights_and_get_sampling_client().result()
    prompt = tokens(1, 20)
    gaps = []
    for sequence in client.sample(text(prompt), 8, params()).result().sequences:
        full = prompt + sequence.tokens
        datum = supervised_datum(full, [1.0] * (len(full) - 1))
        scored = trainer.forward([datum], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].to_numpy()[19:]
        gaps.append(np.abs(scored - np.array(sequence.logprobs)).mean())
    assert np.mean(gaps) < 0.1


@pytest.mark.parametrize(
    ("named", "prompt", "count", "changes", "asked"),
    [
        *((name, tokens(1, 10), 1, {name: value}, {}) for name, value in (
            ("max_tokens", -1), ("temperature", -0.1), ("temperature", float("nan")), ("top_p", 0.0), ("top_p", 1.1), ("top_k", 0), ("stop", ["", "x"]),
        )),
        ("num_samples", tokens(1, 10), 0, {}, {}),
        ("last_n", tokens(1, 10), 1, {}, {"prompt_logprobs_last_n": 3}),
        ("topk_sample_logprobs", tokens(1, 10), 1, {}, {"topk_sample_logprobs": 2}),
        ("prompt_alt_tokens_k", tokens(1, 10), 1, {}, {"prompt_alt_tokens_k": 2}),
        ("vocabulary", [5, -1], 1, {}, {}),
    ],
)  # fmt: skip
def test_requests_that_cannot_be_honoured_are_refused_by_name(named, prompt, count, changes, asked):
    with pytest.raises((ConfigError, DataError, TypeError)) as caught:
        sampler().sample(text(prompt), count, params(**changes), **asked)
    assert named in str(caught.value)
