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


@contextmanager
def refused(name):
    """Whatever kind of error the back end has, it says the name."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        yield
    assert name in str(caught.value)
