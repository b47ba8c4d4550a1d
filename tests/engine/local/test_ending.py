"""A process that ends while the engine computes ends with the exit code that it meant, not with an abort (134)."""

import signal
import subprocess
import sys

import pytest

pytest.importorskip("torch")

BUSY = """
import os, signal, sys, time
from tinker import types
from code_rl.engine.local import EmbeddedService

what, end = sys.argv[1:]
service = EmbeddedService(device="cpu", threads=1)
trainer = service.create_lora_training_client("tiny", rank=8, seed=0).result()
if what == "sampling":
    sampler = trainer.save_weights_and_get_sampling_client().result()
    long = types.SamplingParams(max_tokens=450, seed=0, stop=[])
    pending = [sampler.sample(types.ModelInput.from_ints(list(range(10, 40))), 128, long) for _ in range(4)]
else:
    tokens = [10 + i % 500 for i in range(400)]
    inputs = {"target_tokens": tokens, "weights": [1.0] * 400}
    data = [types.Datum(model_input=types.ModelInput.from_ints(tokens), loss_fn_inputs=inputs)] * 64
    pending = [trainer.forward_backward(data, "cross_entropy") for _ in range(9)]
time.sleep(0.3)
assert not pending[-1].future().done()
if end == "closed":
    service.close()
    sys.exit(143)
if end == "raised":
    raise ValueError("meant")
os.kill(os.getpid(), signal.SIGINT)
pending[-1].result()
"""


@pytest.mark.parametrize("what", ["sampling", "training"])
@pytest.mark.parametrize(("end", "code"), [("closed", 143), ("raised", 1), ("interrupted", -signal.SIGINT)])
@pytest.mark.slow
def test_a_busy_engine_does_not_abort_the_process(what, end, code):
    done = subprocess.run([sys.executable, "-c", BUSY, what, end], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    assert "terminate called" not in done.stderr
