"""Ten minutes on any card: the engine against the CPU, its speed beside transformers' `generate`, its memory plan against the driver.

    python benchmarks/gpu.py [device=auto] [shapes=qwen3-0.6b,qwen3-1.7b,qwen3-4b] [prompts=8] [group=8] [prompt=256]
                             [new_tokens=256] [rank=32]

The weights are random, so nothing is fetched. `equal`: a small model in float32 samples, trains and steps on the device and on
the CPU; the figures are the largest differences of log-probabilities, and of the adapter after the step. Then each shape in the
device's number type: tokens sampled per second by the engine and by `generate` (no completion stops early), tokens trained per
second, and the bytes that the plan foresees for training beside the peak that the device's torch module counted (null on a CPU,
which counts none). A shape that does not fit has the plan's refusal. The result is one line of JSON. Never run on a GPU so far:
tried on the CPU with shapes=small.
"""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # as `share_cores` does
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import chz
import numpy as np
import torch
from tinker import types
from transformers import Qwen3ForCausalLM

from benchmarks.memory import SHAPES, configuration
from code_rl.cli.main import run_script
from code_rl.engine.local import EmbeddedService
from code_rl.engine.local.device import Device
from code_rl.engine.local.memory import Load, plan_memory
from code_rl.engine.local.models import wrap_model
from code_rl.engine.local.sampling import EmbeddedSamplingClient
from code_rl.engine.local.training import EmbeddedTrainingClient
from code_rl.training.algorithm.datums import make_datum
from code_rl.util.errors import ConfigError

ADAM = types.AdamParams(learning_rate=1e-3)


@chz.chz
class Options:
    """The device, the shapes, and the work."""

    device: str = chz.field(default="auto", doc="auto, cpu, cuda or another torch device.")
    shapes: str = chz.field(default="qwen3-0.6b,qwen3-1.7b,qwen3-4b", doc="Which shapes.")
    prompts: int = chz.field(default=8, doc="Prompts of a batch.")
    group: int = chz.field(default=8, doc="Completions of a prompt.")
    prompt: int = chz.field(default=256, doc="Tokens of a prompt.")
    new_tokens: int = chz.field(default=256, doc="Tokens of a completion.")
    rank: int = chz.field(default=32, doc="Rank of LoRA.")

    @chz.validate
    def _known(self) -> None:
        for shape in self.shapes.split(","):
            if shape not in SHAPES:
                raise ConfigError(f"shapes={self.shapes}: {shape!r} is none of {', '.join(SHAPES)}")

    @property
    def completions(self) -> int:
        """Completions of a batch."""
        return self.prompts * self.group


def prompts_of(options: Options, vocab: int) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(4, vocab, options.prompt).tolist() for _ in range(options.prompts)]


def sample(client: EmbeddedSamplingClient, options: Options, prompts: list[list[int]]) -> list[types.Datum]:
    """Sample the batch and return its datums, with advantages of both signs."""
    params = types.SamplingParams(max_tokens=options.new_tokens, seed=1, stop=[])
    futures = [client.sample(types.ModelInput.from_ints(prompt), options.group, params) for prompt in prompts]
    return [
        make_datum(prompt + sequence.tokens, sequence.logprobs or [], len(prompt), 1.0 if i % 2 else -1.0)
        for prompt, future in zip(prompts, futures, strict=True)
        for i, sequence in enumerate(future.result().sequences)
    ]


def train(client: EmbeddedTrainingClient, data: list[types.Datum]) -> types.ForwardBackwardOutput:
    output = client.forward_backward(data, "importance_sampling").result()
    client.optim_step(ADAM).result()
    return output


def equal(options: Options) -> dict[str, float]:
    """Return the largest differences of a small model between the device and the CPU, in float32."""
    small = chz.replace(options, prompts=4, group=4, prompt=48, new_tokens=32, rank=4)
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(configuration("small", 512))
    data: list[types.Datum] = []
    found, adapters = [], []
    for place in ("cpu", options.device):
        service = EmbeddedService(place, "float32")
        service.models["m"] = wrap_model("m", "", model, service.device, service.dtype)
        client = service.create_lora_training_client("m", rank=small.rank, seed=0).result()
        data = data or sample(client.sampling_client(), small, prompts_of(small, 512))
        outputs = train(client, data).loss_fn_outputs
        found.append(np.concatenate([output["logprobs"].to_numpy() for output in outputs]))
        adapters.append(client._lora.flat.cpu().numpy())
    drawn = np.concatenate([datum.loss_fn_inputs["logprobs"].to_numpy() for datum in data])
    return {
        "logprobs": float(np.abs(found[0] - found[1]).max()),
        "adapter": float(np.abs(adapters[0] - adapters[1]).max()),
        "sampled_to_trained": float(np.abs(found[1] - drawn)[drawn != 0].max()),
    }


def speed(device: Device, tokens: int, work: Callable[[], object]) -> float:
    """Return the tokens per second of the second of two runs."""
    seconds = 0.0
    for _ in range(2):
        device.synchronize()
        began = time.perf_counter()
        work()
        device.synchronize()
        seconds = time.perf_counter() - began
    return tokens / seconds


def generated(model: Any, options: Options, prompts: list[list[int]]) -> None:
    ids = torch.tensor(prompts, device=model.device)
    length = {"min_new_tokens": options.new_tokens, "max_new_tokens": options.new_tokens}
    model.generate(ids, do_sample=True, top_k=0, num_return_sequences=options.group, **length)


def measured(shape: str, options: Options) -> dict[str, Any]:
    """Return the figures of one shape, or the plan's refusal."""
    context = max(1024, options.prompt + options.new_tokens)
    service, config = EmbeddedService(options.device), configuration(shape, context)
    device = Device(service.device)
    load = Load(options.prompt, options.new_tokens, options.group, options.rank)
    try:
        plan = plan_memory(config, service.dtype, device, load)
    except ConfigError as refusal:
        return {"refused": str(refusal)}
    with torch.device(service.device):
        model: Any = Qwen3ForCausalLM(config)
    model = model.to(service.dtype).eval()
    prompts = prompts_of(options, config.vocab_size)
    sampled, trained = options.completions * options.new_tokens, options.completions * load.longest
    theirs = speed(device, sampled, partial(generated, model, options, prompts))
    service.models["m"] = wrap_model("m", "", model, service.device, service.dtype)
    del model
    gc.collect()
    service.follow(plan)
    client = service.create_lora_training_client("m", rank=options.rank, seed=0).result()
    sampler = client.sampling_client()
    data = sample(sampler, options, prompts)
    ours = speed(device, sampled, lambda: sample(sampler, options, prompts))
    counts = torch.get_device_module(service.device) if device.is_accelerator else None
    if counts is not None:
        counts.empty_cache()
        counts.reset_peak_memory_stats()
    training = speed(device, trained, lambda: train(client, data))
    return {
        "sampled_per_s": round(ours),
        "generate_per_s": round(theirs),
        "trained_per_s": round(training),
        "planned_bytes": plan.parts.total,
        "peak_bytes": None if counts is None else counts.max_memory_allocated(),
    }


def main(options: Options) -> int:
    service = EmbeddedService(options.device)
    device = Device(service.device)
    record: dict[str, Any] = {
        "device": device.name,
        "memory_bytes": device.total,
        "dtype": str(service.dtype).removeprefix("torch."),
        "torch": torch.__version__,
        "equal": equal(options),
    }
    for shape in options.shapes.split(","):
        record[shape] = measured(shape, options)
        gc.collect()
        if device.is_accelerator:
            torch.get_device_module(service.device).empty_cache()
    print(json.dumps(record))
    return 0


if __name__ == "__main__":
    run_script(Options, main, __doc__ or "")
