"""What stands behind the server need not be the embedded engine: these ten methods suffice."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("prometheus_client")
import tinker
from tinker import types

from code_rl.engine.serve.seam import Load, ModelFacts
from code_rl.util.errors import ConfigError, DataError
from tests.serve.serve_support import ServerThread


def finished(value=None, error=None):
    future: Future[Any] = Future()
    future.set_exception(error) if error is not None else future.set_result(value)
    return future


class Counting:
    """A model that has a number for a weight: a pass adds to its gradient, a sample says what it is."""

    def __init__(self):
        self.loaded = finished(ModelFacts("none", "none", 64))
        self.weights, self.gradients, self.files, self.spoilt = {}, {}, {}, set()

    def create(self, run, lora, file=None, optimizer=False):
        self.weights[run], self.gradients[run] = self.files.get(file, 0), 0
        return finished(lora)

    def check_pass(self, data, loss_fn, config):
        if loss_fn != "cross_entropy":
            raise DataError(f"no {loss_fn} here")

    def run_pass(self, run, data, loss_fn, config, backward):
        self.gradients[run] += backward
        values = types.TensorData(data=[0.0], dtype="float32", shape=[1])
        return finished(
            types.ForwardBackwardOutput(
                loss_fn_output_type="x", loss_fn_outputs=[{"logprobs": values} for _ in data], metrics={}
            )
        )

    def refuse(self, run, error, backward):
        self.spoilt.add(run)
        return finished(error=error)

    def optim_step(self, run, params):
        if run in self.spoilt:
            return finished(error=ConfigError("no step was taken"))
        self.weights[run] += self.gradients[run]
        return finished(types.OptimStepResponse(metrics={}))

    def save(self, run, file, training, overwrite, keep=False):
        self.files[file] = self.weights[run]
        file.write_text("")
        return finished()

    def load(self, run, file, optimizer):
        self.weights[run] = self.files[file]
        return finished()

    def drop(self, run):
        return finished(self.weights.pop(run))

    def sample(self, weights, request, order):
        token = np.array([self.files.get(weights, 0)], dtype=np.int32)
        sequence = types.SampledSequence(
            stop_reason="length", sequence_id="x", tokens_np=token, logprobs_np=np.zeros(1, dtype=np.float32)
        )
        return finished(types.SampleResponse(sequences=[sequence], prompt_logprobs_np=None))

    def load_now(self):
        return Load(models=len(self.weights))

    def close(self):
        self.closed = time.monotonic()


class Host:
    def __init__(self):
        self.losses: dict[str, frozenset[str]] = {"cross_entropy": frozenset()}

    def start(self, name):
        return Counting()

    def context_of(self, name):
        return 64


def test_a_program_trains_saves_and_samples_on_another_engine(tmp_path):
    targets = types.TensorData(data=[2, 3], dtype="int64", shape=[2])
    data = [types.Datum(model_input=types.ModelInput.from_ints([1, 2]), loss_fn_inputs={"target_tokens": targets})]
    prompt, params = types.ModelInput.from_ints([1]), types.SamplingParams(max_tokens=1)
    with ServerThread(tmp_path, host=Host()) as server:
        with tinker.ServiceClient(base_url=server.url, api_key="tml-dummy") as service:
            trainer = service.create_lora_training_client(base_model="tiny").result()
            before = trainer.save_weights_and_get_sampling_client().result()
            for _ in range(3):
                trainer.forward_backward(data, "cross_entropy").result()
            trainer.optim_step(types.AdamParams()).result()
            after = trainer.save_weights_and_get_sampling_client().result()
            drawn = [s.sample(prompt, 1, params).result().sequences[0].tokens for s in (before, after)]
            assert drawn == [[0], [3]]
            with pytest.raises(Exception, match="no ppo here"):
                trainer.forward_backward(data, "ppo").result()
            with pytest.raises(Exception, match="no step was taken"):
                trainer.optim_step(types.AdamParams()).result()
        engine: Any = server.core.engines["tiny"]
        assert engine.weights == {}
