"""Data that the cases share. Token ids stay below 600: inside every vocabulary."""

from contextlib import contextmanager

import numpy as np
import pytest
from tinker import types

ADAM = types.AdamParams(learning_rate=0.01)


def tokens(seed, length):
    return np.random.default_rng(seed).integers(20, 600, length).tolist()


def text(ids):
    return types.ModelInput.from_ints(list(ids))


def supervised(ids, weights=None):
    targets = ids[1:]
    given = weights if weights is not None else [1.0] * len(targets)
    return types.Datum(
        model_input=text(ids[:-1]),
        loss_fn_inputs={
            "target_tokens": types.TensorData(data=targets, dtype="int64", shape=[len(targets)]),
            "weights": types.TensorData(data=given, dtype="float32", shape=[len(targets)]),
        },
    )


def soft(ids, targets, weights):
    """Several weighted targets a position: [len(ids) - 1, K] each."""
    inputs = {
        "target_tokens": types.TensorData.from_numpy(np.asarray(targets, dtype=np.int64)),
        "weights": types.TensorData.from_numpy(np.asarray(weights, dtype=np.float32)),
    }
    return types.Datum(model_input=text(ids[:-1]), loss_fn_inputs=inputs)


def policy(ids, logprobs, advantages, **more):
    length = len(ids) - 1
    given = {"logprobs": logprobs, "advantages": advantages, **more}
    inputs = {name: types.TensorData(data=list(v), dtype="float32", shape=[length]) for name, v in given.items()}
    inputs["target_tokens"] = types.TensorData(data=ids[1:], dtype="int64", shape=[length])
    return types.Datum(model_input=text(ids[:-1]), loss_fn_inputs=inputs)


def logprobs(output):
    """One array per datum."""
    return [np.asarray(o["logprobs"].data, dtype=np.float64) for o in output.loss_fn_outputs]


def forward(trainer, data, loss="cross_entropy", config=None):
    return trainer.forward(data, loss, config).result()


def train(trainer, data, loss="cross_entropy", config=None):
    """One step: passes and step are submitted before any result is waited for."""
    passed, stepped = trainer.forward_backward(data, loss, config), trainer.optim_step(ADAM)
    return passed.result(), stepped.result()


def ready(value):
    """The client or result itself: newer SDKs return futures of clients."""
    return value.result() if hasattr(value, "result") else value


def seeded_step(trainer, loss="importance_sampling"):
    """Sample, score, step, look again: all numbers of it."""
    sampler = ready(trainer.save_weights_and_get_sampling_client())
    prompt = tokens(0, 12)
    params = types.SamplingParams(max_tokens=24, seed=42, temperature=1.0)
    sequences = ready(sampler.sample(text(prompt), 16, params)).sequences
    data, off = [], [0.0] * (len(prompt) - 1)
    for i, sequence in enumerate(sequences):
        advantage = [1.0 if i % 2 else -1.0] * len(sequence.tokens)
        sampled = [value - 0.3 * (i % 3) for value in sequence.logprobs]  # by weights that have moved since
        mask = {"sequence_ratio_mask": off + [1.0] * len(sampled)} if loss in ("gspo", "mis") else {}
        data.append(policy(prompt + list(sequence.tokens), off + sampled, off + advantage, **mask))
    passed, stepped = train(trainer, data, loss)
    return {
        "tokens": [list(map(int, sequence.tokens)) for sequence in sequences],
        "sampled": [list(map(float, sequence.logprobs)) for sequence in sequences],
        "loss": passed.metrics["loss:sum"],
        "step": stepped.metrics,
        "before": [each.tolist() for each in logprobs(passed)],
        "after": [each.tolist() for each in logprobs(forward(trainer, data, loss))],
    }


@contextmanager
def refused(name):
    """Whatever kind of error the back end has, it says the name."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        yield
    assert name in str(caught.value)
