"""Work that is done once on the CPU and once on the simulated card, in a process of its own: see `conftest`.

Every function returns plain numbers.
"""

from __future__ import annotations

import json
import os
from collections import deque
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from tinker import types

from code_rl.engine.local import EmbeddedService, decode, picking
from code_rl.engine.local.decode import SequenceRequest
from code_rl.engine.local.device import Device
from code_rl.engine.local.forward import Prompt
from code_rl.engine.local.memory import Load, load_of, plan_memory
from code_rl.engine.local.models import wrap_model
from code_rl.engine.local.picking import Choice
from code_rl.engine.losses import LOSSES
from code_rl.training.config import make_config
from code_rl.util.errors import ConfigError
from tests.engine.accelerator.simulated import GIB, NAME, PLACE, card, install, sized
from tests.engine.local.embedded_models import datum, reference, text, tokens

Numbers = dict[str, Any]
PROMPT = 20


def _model(kind: str) -> Any:
    if kind == "transformers":
        from tests.engine.local.test_any_model import made

        return made("gpt2")
    return reference(kind)


def _client(kind: str, device: str, dtype: str, folder: str | None = None) -> tuple[EmbeddedService, Any]:
    """A service on this device and a client whose adapter has random weights."""
    install()
    service = EmbeddedService(device=device, dtype=dtype, state_dir=folder)
    service.models["m"] = wrap_model("m", "/nonexistent", _model(kind), service.device, service.dtype)
    client = service.create_lora_training_client("m", rank=4, seed=0).result()
    generator = torch.Generator().manual_seed(0)
    client._lora.flat.copy_(torch.randn(client._lora.flat.shape, generator=generator) * 0.05)
    client._learner.weights_changed()
    return service, client


def _sample(client: Any, count: int = 4, length: int = 8, **params: Any) -> list[types.SampledSequence]:
    sampler = client.save_weights_and_get_sampling_client().result()
    settings = types.SamplingParams(max_tokens=length, seed=3, **{"temperature": 1.0, **params})
    found = [sampler.sample(text(tokens(seed, PROMPT + seed)), count, settings) for seed in (1, 2)]
    return [sequence for each in found for sequence in each.result().sequences]


def _datums(sequences: list[types.SampledSequence], loss: str) -> list[types.Datum]:
    """One datum a completion, with every field that the loss reads; half of the advantages are negative."""
    made = []
    for i, sequence in enumerate(sequences):
        prompt = tokens(1 + i // 4, PROMPT + 1 + i // 4)
        off = [0.0] * (len(prompt) - 1)
        n = len(sequence.tokens)
        fields = {
            "logprobs": [lp - 0.1 for lp in sequence.logprobs or ()],
            "advantages": [1.0 if i % 2 else -1.0] * n,
            "weights": [1.0] * n,
            "sequence_ratio_mask": [1.0] * n,
        }
        inputs = {name: np.array(off + fields[name], dtype=np.float32) for name in LOSSES[loss].inputs}
        made.append(datum([*prompt, *sequence.tokens], **inputs))
    return made


def rl_step(kind: str, device: str, dtype: str, losses: tuple[str, ...]) -> Numbers:
    """Sample two groups, then for each loss take one step from the same weights."""
    _, client = _client(kind, device, dtype)
    sequences = _sample(client)
    start = client._lora.flat.cpu().clone()
    found: Numbers = {
        "tokens": [list(sequence.tokens) for sequence in sequences],
        "logprobs": [list(sequence.logprobs or ()) for sequence in sequences],
    }
    settings = {"dro": {"beta": 0.05}}
    for loss in losses:
        client._lora.flat.copy_(start)
        client._learner.weights_changed()
        output = client.forward_backward(_datums(sequences, loss), loss, settings.get(loss)).result()
        found[loss] = [
            output.metrics["loss:sum"],
            client.optim_step(types.AdamParams(learning_rate=1e-3)).result().metrics["grad_norm:mean"],
            client._lora.flat.cpu().double().norm().item(),
        ]
    return found


def rounding(kind: str, device: str) -> float:
    """The mean distance of bfloat16's log-probabilities, as sampled, from those of float32 on the CPU."""
    _, exact = _client(kind, "cpu", "float32")
    sequences = _sample(_client(kind, device, "bfloat16")[1])
    scorer = exact.save_weights_and_get_sampling_client().result()
    gaps: list[float] = []
    for i, sequence in enumerate(sequences):
        prompt = tokens(1 + i // 4, PROMPT + 1 + i // 4)
        scored = scorer.compute_logprobs(text([*prompt, *sequence.tokens])).result()[len(prompt) :]
        gaps += [abs(ours - theirs) for ours, theirs in zip(sequence.logprobs or (), scored, strict=True)]
    return sum(gaps) / len(gaps)


def narrowed(device: str) -> Numbers:
    """Sampling with stops, filters, greedy rows and prompt scores."""
    _, client = _client("qwen3", device, "float32")
    sampler = client.save_weights_and_get_sampling_client().result()
    asked = types.SamplingParams(max_tokens=30, temperature=0.7, top_p=0.9, top_k=20, seed=1, stop=[5, 6, 7, 8, 9, 10])
    filtered = sampler.sample(text(tokens(4, 30)), 20, asked, include_prompt_logprobs=True, topk_prompt_logprobs=3)
    greedy = sampler.sample(text(tokens(5, 9)), 1, types.SamplingParams(max_tokens=9, temperature=0.0))
    answers = filtered.result(), greedy.result()
    return {
        "tokens": [list(sequence.tokens) for answer in answers for sequence in answer.sequences],
        "ends": [sequence.stop_reason for answer in answers for sequence in answer.sequences],
        "scores": [each for each in answers[0].prompt_logprobs or () if each is not None][1:],
    }


def resumed(device: str, folder: str) -> Numbers:
    """A step, a checkpoint, and a second step: of the client, and of one restored from the checkpoint."""
    service, client = _client("qwen3", device, "float32", folder)
    data = _datums(_sample(client), "ppo")

    def step(trained: Any) -> list[float]:
        output = trained.forward_backward(data, "ppo").result()
        norm = trained.optim_step(types.AdamParams(learning_rate=1e-2)).result().metrics["grad_norm:mean"]
        return [output.metrics["loss:sum"], norm]

    first = step(client)
    path = client.save_state("state").result().path
    second = step(client)
    back = service.create_training_client_from_state_with_optimizer(path).result()
    return {"first": first, "second": second, "resumed": step(back)}


def exported(device: str, folder: str) -> Numbers:
    """A checkpoint of the card, exported for peft: the sum of each tensor."""
    from safetensors.torch import load_file

    from tests.verbs import export_command

    install()
    service = EmbeddedService(device=device, dtype="float32", state_dir=folder)
    client = service.create_lora_training_client("tiny", rank=4, seed=1).result()
    client._lora.flat.add_(0.01)
    path = client.save_state("trained").result().path
    out = Path(folder) / "peft"
    assert export_command({"checkpoint": path, "format": "peft", "out": str(out)}) == 0
    state = load_file(out / "adapter_model.safetensors")
    return {name: float(tensor.double().sum()) for name, tensor in state.items()}


def whole_run(device: str, folder: str, stops: tuple[int, ...]) -> Numbers:
    """`code_rl.train` with a KL penalty, stopped and resumed after these steps: the figures of each step."""
    import code_rl

    install()
    small: Numbers = {"backend": "embedded", "executor": "embedded", "isolation": "none"}
    small |= {"batch_size": 8, "group_size": 4, "max_tokens": 40, "eval_every": -1, "threads": 1, "dtype": "float32"}
    log_path = f"{folder}/{device}"
    first, *later = stops
    code_rl.train(log_path=log_path, device=device, max_steps=first, kl_coef=0.05, **small)
    for steps in later:
        code_rl.train(log_path=log_path, max_steps=steps)
    lines = map(json.loads, (Path(log_path) / "metrics.jsonl").read_text().splitlines())
    return {str(i): {k: v for k, v in line.items() if _is_figure(k, v)} for i, line in enumerate(lines)}


def _is_figure(name: str, value: object) -> bool:
    return not name.startswith("time/") and isinstance(value, int | float)


def served(device: str, folder: str) -> Numbers:
    """A step through `code-rl serve` with this device."""
    import tinker

    os.environ["TINKER_TELEMETRY"] = "0"
    from tests.engine.serve import serve_support

    install()
    plain = serve_support.EmbeddedService
    serve_support.EmbeddedService = lambda _, dtype, **options: plain(device, dtype, **options)  # type: ignore[assignment, misc]
    with serve_support.ServerThread(Path(folder) / device) as server:
        service = tinker.ServiceClient(base_url=server.url, api_key="tml-dummy")
        client = service.create_lora_training_client("tiny", rank=4, seed=0)
        sampler = client.save_weights_and_get_sampling_client()
        asked = types.SamplingParams(max_tokens=10, temperature=1.0, seed=1)
        sequences = sampler.sample(text(tokens(1, PROMPT + 1)), 4, asked).result().sequences
        output = client.forward_backward(_datums(list(sequences), "ppo"), "ppo").result()
        return {"tokens": [list(each.tokens) for each in sequences], "loss": output.metrics["loss:sum"]}


def counted_sampling(fault: str = "") -> Numbers:
    """Waits and bytes of sampling 16 completions of 40 tokens, without a fault or with one planted in the engine."""
    _, client = _client("qwen3", NAME, "float32")
    weights = client._learner.snapshot()

    def sample(length: int) -> int:
        card.reset()
        before = card.live
        prompts = [Prompt(tuple(tokens(seed, PROMPT))) for seed in (1, 2)]
        asked = deque(SequenceRequest((i, 0), prompts[i // 8], length, Choice(0, i), frozenset()) for i in range(16))
        assert len(list(decode.decode(weights, asked, GIB))) == 16
        return card.peak - before

    with sized(GIB), _FAULTS[fault]() if fault else nullcontext():
        sample(8)
        waits = card.waits
        peak = sample(40)
        columns = 2 * (32 + 8 * 48)
        mask = 8 * weights.arch.queries_per_kv * columns * weights.dtype.itemsize
        cells = decode.bytes_per_token(weights.arch, weights.dtype) * columns + mask
        return {"waits_per_step": (card.waits - waits) / 32, "peak": peak, "cells": cells}


def _item_per_token() -> Any:
    plain = picking.Picker.sample_tokens

    def sample_tokens(self: picking.Picker, logits: torch.Tensor) -> Any:
        found = plain(self, logits)
        for token in found[0]:
            token.item()
        return found

    return patch.object(picking.Picker, "sample_tokens", sample_tokens)


def _doubled_cache() -> Any:
    plain = torch.cat
    kept: list[torch.Tensor] = []

    def cat(parts: Any, dim: int = 0) -> torch.Tensor:
        found = plain(parts, dim=dim)
        kept.append(found.clone())
        return found

    return patch.object(torch, "cat", cat)


def _wrong_device() -> Any:
    plain = picking.Uniforms.take
    return patch.object(picking.Uniforms, "take", lambda self: plain(self).cpu())


_FAULTS = {"an item per token": _item_per_token, "a doubled cache": _doubled_cache, "a wrong device": _wrong_device}


def too_small() -> str:
    """The error of sampling on a card that has no room, by name."""
    _, client = _client("qwen3", NAME, "float32")
    with sized(card.live + 1000):
        try:
            _sample(client)
        except Exception as error:  # noqa: BLE001 - its kind is the result
            return type(error).__name__
    return ""


def facts() -> Numbers:
    """The card as the engine sees it."""
    install()
    with sized(3 * GIB):
        device = Device(torch.device(NAME))
        before = device.used
        held = torch.zeros(1 << 20, device=NAME)
        facts = {"total": device.total, "used": device.used - before, "free": device.free, "name": device.name}
        del held
        return facts | {"dtype": str(device.dtype), "tokens": device.tokens, "after": device.used - before}


def planned() -> Numbers:
    """The plan of a small model, and the most bytes that its training takes on the card."""
    from benchmarks.accelerator import CONTEXT, simulated
    from benchmarks.memory import configuration

    install()
    load = Load(prompt=64, max_tokens=448, group=4, rank=8)
    with sized(GIB, compute=False):
        plan = plan_memory(configuration("small", CONTEXT), torch.bfloat16, Device(PLACE), load)
        fits = plan.parts.total + plan.cache_bytes <= GIB
    return {"planned": plan.parts.total, "peak": simulated("small", load, plan.tokens), "fits": fits, "rows": plan.rows}


def _group(load: Load) -> list[types.Datum]:
    """Completions of one prompt, each as long as the load allows."""
    off, on = np.zeros(load.prompt - 1, dtype=np.float32), np.ones(load.longest - load.prompt, dtype=np.float32)
    fields = {name: np.concatenate([off, on]) for name in ("logprobs", "advantages")}
    return [datum([0] * load.longest, **fields) for _ in range(load.group)]


def planned_transformers() -> Numbers:
    """The same for a model that transformers runs."""
    from transformers import AutoModelForCausalLM, GPT2Config

    install()
    load = Load(prompt=64, max_tokens=448, group=4, rank=8)
    config = GPT2Config(vocab_size=512, n_positions=1024, n_embd=64, n_layer=2, n_head=2)
    service = EmbeddedService(device=NAME, dtype="float32")
    with sized(GIB):
        plan = plan_memory(config, torch.float32, Device(PLACE), load)
        before = card.live
        model = AutoModelForCausalLM.from_config(config)
        service.models["m"] = wrap_model("m", "/nonexistent", model, service.device, service.dtype)
        del model
        client = service.create_lora_training_client("m", rank=load.rank, seed=0).result()
        sampler = client.save_weights_and_get_sampling_client().result()
        card.reset()
        client.forward_backward(_group(load), "importance_sampling").result()
        del sampler
        return {"planned": plan.parts.total, "peak": card.peak - before, "fits": True, "rows": plan.rows}


def beside(total: int, others: int, vllm: bool) -> Numbers:
    """The plan of a small model on a card of which other processes hold a part: its bytes, and its line."""
    from benchmarks.memory import configuration

    install()
    with sized(total, others=others, compute=False):
        load = Load(64, 1024, 4, 8, vllm)
        plan = plan_memory(configuration("small", 8192), torch.bfloat16, Device(PLACE), load)
        share, caches = plan.share * total, plan.cache_bytes
        return {"trainer": plan.parts.total, "weights": plan.parts.weights, "share": share, "caches": caches} | {
            "rows": plan.rows,
            "line": str(plan),
        }


def cells(shape: str, vllm: bool) -> list[str]:
    """The row of a model in docs/one-gpu.md, by the planner: 16, 24, 48 and 80 GB, each at 8,192 and 24,576 new tokens."""
    from benchmarks.accelerator import CONTEXT
    from benchmarks.memory import configuration

    install()
    given = {"backend": "embedded", "model_name": "Qwen/Qwen3-4B", "dataset": "deepcoder"}
    given |= {"sampler": "vllm"} if vllm else {}

    def cell(gib: int, max_tokens: int) -> str:
        config = make_config({**given, "max_tokens": str(max_tokens)})
        load = load_of(config, config.training, CONTEXT)
        with sized(gib * GIB, compute=False):
            try:
                return str(plan_memory(configuration(shape, CONTEXT), torch.bfloat16, Device(PLACE), load).rows)
            except ConfigError as error:
                remedy = str(error).rsplit("; ")[-1].removeprefix("give ")
        named = {"a smaller model_name": "a smaller model", "leave out sampler=vllm": "without vLLM"}
        return named.get(remedy, f"`{remedy}`")

    pairs = [[cell(gib, max_tokens) for max_tokens in (8192, 24576)] for gib in (16, 24, 48, 80)]
    return ["; ".join(dict.fromkeys(pair) if "a smaller model" in pair else pair) for pair in pairs]


def run_beside_vllm(folder: str, total: int) -> Numbers:
    """A run on the card that starts its own vLLM there: the server's options, the plan's line, and the bytes left when the next is planned."""
    from tests.engine.remote.test_own_vllm import COMMAND, options_of
    from tests.engine.remote.test_vllm import given
    from tests.verbs import train_command

    install()
    run = Path(folder)
    settings = given("vllm", run, vllm_command=COMMAND, device=NAME, dtype="float32", outage_timeout="60")
    with sized(total), redirect_stdout(StringIO()) as printed:
        assert train_command({**settings, "dry_run": "true"}) == 0
        before = card.live
        assert train_command({**settings, "max_steps": "1"}) == 0
        assert train_command({**settings, "dry_run": "true"}) == 0
    line, *_ = (line for line in printed.getvalue().splitlines() if "GiB of" in line)
    return {"options": options_of(run), "line": line, "left": card.live - before}


def refused(total: int, vllm: bool = False, words: str = "") -> str:
    """The refusal of a plan with the settings `words` on a card with so many free bytes; empty if the plan fits."""
    from benchmarks.memory import configuration

    install()
    with sized(total + card.live, compute=False):
        given = dict(word.split("=", 1) for word in ["lora_rank=8", "max_tokens=1024", *words.split()])
        config = make_config({"backend": "embedded", "model_name": "tiny", **given})
        load = replace(load_of(config, config.training, 8192), prompt=64, group=4, vllm=vllm)
        try:
            plan_memory(configuration("small", 8192), torch.bfloat16, Device(PLACE), load)
        except ConfigError as error:
            return str(error)
    return ""
