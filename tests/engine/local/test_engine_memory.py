"""Memory of the engine: attention linear in tokens, caches within their budget, and the same numbers either way."""

import threading
from collections import deque

import numpy as np
import pytest
from tinker import types

from benchmarks.memory import SHAPES, architecture, make_weights, measure_sampling, trace
from code_rl.engine.local import decode, forward, packing
from code_rl.engine.local.decode import SequenceRequest
from code_rl.engine.local.device import Device
from code_rl.engine.local.forward import Prompt
from code_rl.engine.local.memory import Allocations
from code_rl.engine.local.passes import read_datums, read_pass
from code_rl.engine.local.picking import Choice
from tests.engine.local.embedded_models import policy_datum, reference, service, text, tokens, torch, trained

MIDDLE = {"vocab_size": 1000, "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16}
MIDDLE |= {"num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072}


@pytest.mark.long
@pytest.mark.parametrize("size", [1, 2, 16])
def test_peak_memory_of_training_is_linear_in_tokens(monkeypatch, size):
    monkeypatch.setattr("code_rl.engine.local.learner.ACTIVATIONS_LIMIT", 0)  # recomputed, as where they do not fit
    monkeypatch.setitem(SHAPES, "middle", MIDDLE)
    found = [trace("middle", size, n, n // 16, 2048) for n in (4096, 8192)]
    assert found[1].peak <= 2.1 * found[0].peak
    assert all(each.peak <= 1.7 * each.must_keep for each in found)
    assert all(each.tokens <= 9 / 8 * n for each, n in zip(found, (4096, 8192), strict=True))


def long_group(prompt, lengths, seed=0):
    """Datums of one prompt."""
    first = tokens(seed, prompt)
    rng = np.random.default_rng(seed)
    return [
        policy_datum(first, tokens(100 + i, n), rng.uniform(-5, -3, n).astype(np.float32), 0.5 - 0.4 * i)
        for i, n in enumerate(lengths)
    ]


@pytest.mark.parametrize(("prompt", "lengths"), [(60, (5, 9, 9, 20, 31)), (10, (5, 40, 60))])
@pytest.mark.parametrize("budget", [2048, 100])
def test_long_groups_have_the_numbers_of_the_plain_products(monkeypatch, prompt, lengths, budget):
    """Log-probabilities and gradients, whether prefixes are kept and met a few queries at a time, or dropped."""
    data = [*long_group(prompt, lengths), *long_group(prompt + 3, lengths[:2], seed=1)]
    found = []
    for width in (1024, 16):
        monkeypatch.setattr(packing, "PLAIN_ATTENTION_WIDTH", width)
        monkeypatch.setattr("code_rl.engine.local.forward.SCORE_CHUNK", 2000)
        client = trained(service(reference("qwen3")).create_lora_training_client("m", rank=4, seed=0).result())
        client._learner.recompute, client._learner.budget = width == 16, budget
        output = client.forward_backward(data, "importance_sampling").result()
        logprobs = np.concatenate([o["logprobs"].to_numpy() for o in output.loss_fn_outputs])
        found.append((logprobs, client._learner.gradient))
    (plain, exact), (fused, gradient) = found
    np.testing.assert_allclose(plain, fused, atol=3e-5)
    assert float((exact - gradient).norm()) <= 2e-5 * float(exact.norm())


def test_long_examples_keep_a_prefix_where_it_saves_and_never_pad_beyond_the_room(monkeypatch):
    monkeypatch.setattr(packing, "PLAIN_ATTENTION_WIDTH", 16)
    arch = service(reference("qwen3")).models["m"].weights.arch
    loss = read_pass("importance_sampling", None).loss
    short, long = long_group(60, (5, 6, 7, 8, 40)), long_group(20, (60, 70, 70))
    batches = list(packing.plan(read_datums([*short, *long], loss, arch), 64))
    prefixes = {b.index: unit.prefix for units in batches for unit in units for b in unit.suffixes}
    assert sorted(prefixes) == list(range(8))
    assert [prefixes[i] for i in range(3)] == [59] * 3
    assert [prefixes[i] for i in range(5, 8)] == [0] * 3
    for units in batches:
        packed = packing.pack(units, torch.device("cpu"))
        cells = packed.suffixes.rows * packed.suffixes.width
        cells += packed.prefixes.rows * packed.prefixes.width if packed.prefixes else 0
        assert cells <= 100 * 9 / 8


def test_one_long_prompt_among_short_ones_does_not_pad_them_all(monkeypatch):
    """Memory of the prompts' caches and of reading them, beside that of the same prompts at two lengths apart."""
    for module in (decode, forward):
        monkeypatch.setattr(module, "PREFILL_TOKENS", 1100)
    torch.manual_seed(0)
    weights = make_weights(architecture("small", 1200), torch.float32)
    long, short = Prompt((5,) * 1000), [Prompt((6, i)) for i in range(60)]

    def peak(prompts):
        draws = deque(SequenceRequest((0, i), prompt, 2, Choice(0, i), frozenset()) for i, prompt in enumerate(prompts))
        with Allocations() as memory:
            assert len(list(decode.decode(weights, draws, 1 << 40))) == len(prompts)
        return memory.peak

    assert peak([long, *short]) <= 1.2 * (peak([long]) + peak(short))


@pytest.mark.slow
def test_sampling_stays_within_its_budget():
    """All tensors of the run counted, the copies while caches grow too; caches that outweigh the rest."""
    peak, budget, _ = measure_sampling(16, 400, 64, 0.4)
    assert peak <= budget


@pytest.fixture(scope="module")
def tiny():
    return service(reference("tiny-shape")).create_sampling_client(base_model="m").result()


def sampled(client, requests):
    futures = [
        client.sample(text(prompt), n, types.SamplingParams(max_tokens=most, seed=3, stop=[]))
        for prompt, n, most in requests
    ]
    return [[(s.tokens, s.logprobs) for s in f.result().sequences] for f in futures]


def counted_steps(monkeypatch):
    """For each step to come: the rows of each batch, and the cells of all."""
    seen = []
    step = decode._step

    def counted(weights, batches):
        seen.append(([len(batch.ids) for batch in batches], sum(batch.caches.cells for batch in batches)))
        step(weights, batches)

    monkeypatch.setattr(decode, "_step", counted)
    return seen


@pytest.mark.long
def test_waiting_rows_take_the_room_of_finished_ones(tiny, monkeypatch):
    """A batch does not wait for its longest row, and completions equal those without a limit, bit for bit."""
    requests = [(tokens(0, 30, 644), 1, 200), *((tokens(s, 20 + 5 * s, 644), 3, 20) for s in range(1, 7))]
    free = sampled(tiny, requests)
    cells = 48 + 5 * 200
    weights = tiny._snapshot.weights
    monkeypatch.setattr(Device, "cache_bytes", cells * decode.bytes_per_token(weights.arch, weights.dtype))
    steps = counted_steps(monkeypatch)
    assert sampled(tiny, requests) == free
    assert len(steps) == 199
    assert sum(steps[0][0]) == 4
    assert max(len(rows) for rows, _ in steps) > 1
    assert max(held for _, held in steps) <= cells


@pytest.mark.long
@pytest.mark.parametrize(("another", "order"), [(False, ["short", "long"]), (True, ["long", "another", "short"])])
def test_requests_join_the_batch_of_their_weights_while_no_other_waits(monkeypatch, another, order):
    made = service(reference("tiny-shape"))
    one, two = (made.create_sampling_client(base_model="m").result() for _ in range(2))
    alone = sampled(one, [(tokens(1, 20, 644), 2, 10)])
    under_way, go_on = threading.Event(), threading.Event()
    step, ended = decode._step, []

    def slow(weights, batches):
        step(weights, batches)
        under_way.set()
        assert go_on.wait(20)

    def asked(name, client, seed, count, length):
        params = types.SamplingParams(max_tokens=length, seed=3, stop=[])
        answer = client.sample(text(tokens(seed, 20, 644)), count, params)
        answer.future().add_done_callback(lambda _: ended.append(name))
        return answer

    monkeypatch.setattr(decode, "_step", slow)
    answers = [asked("long", one, 0, 1, 100)]
    assert under_way.wait(20)
    answers += [asked("another", two, 2, 1, 4)] if another else []
    answers.append(asked("short", one, 1, 2, 10))
    go_on.set()
    found = [answer.result() for answer in answers]
    assert ended == order
    assert [[(s.tokens, s.logprobs) for s in found[-1].sequences]] == alone


def test_a_row_larger_than_the_budget_is_sampled_alone(tiny, monkeypatch):
    requests = [(tokens(0, 30, 644), 3, 20)]
    free = sampled(tiny, requests)
    monkeypatch.setattr(Device, "cache_bytes", 1)
    steps = counted_steps(monkeypatch)
    assert sampled(tiny, requests) == free
    assert all(rows == [1] for rows, _ in steps)
