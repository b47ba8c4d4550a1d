"""The embedded engine beside transformers' `generate` and TRL's GRPOTrainer, in one process.

    python benchmarks/engine.py [part=all|sample|step] [threads=1] [repeats=5] [prompts=8] [group=16]
                                [prompt_tokens=96] [new_tokens=64] [device=cpu|cuda] [shape=tiny|qwen3-0.6b|qwen3-4b]

The comparison. `sample`: the same random-weight model, the same prompts (lengths from two thirds of `prompt_tokens` up to it) and the
same number of tokens for every completion (nothing stops early). `step`: one whole step of reinforcement learning with LoRA
(rank 32 on the seven projections): sampling prompts × group completions, the same reward function, the update, and the weights
back to the sampler. Neither has a KL term, an entropy term, clipping by norm, or gradient checkpointing, and both train in one
update on the whole batch.

How to read it. The two sides alternate, and the figures are medians; on a shared machine trust the ratio and not the
seconds. On the CPU the sampler's column is CPU-seconds of the whole process, all threads together, because that does not
change with neighbours; the step's is wall time, with CPU-seconds beside it. On CUDA both are wall time after a device
synchronisation. With completions of equal length nobody gains from dropping finished rows; with real ones, whose lengths
differ, `generate` goes on computing until the longest ends, so this ratio is the engine's worst case. Use `threads=1` while
something else runs on the machine, `threads=2` on an idle one. The tiny shape is bound by the overhead of many small
operations; large shapes by the memory bandwidth of reading all weights for each token.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from statistics import median
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # as `share_cores` does
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from tinker import types
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from code_rl.engine.local import EmbeddedService
from code_rl.engine.local.models import wrap_model
from code_rl.training.algorithm.advantages import compute_advantages
from code_rl.training.algorithm.datums import make_datum

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"vocab_size": 644, "hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 3}
    | {"num_key_value_heads": 1, "head_dim": 32, "intermediate_size": 256, "max_position_embeddings": 512},
    "qwen3-0.6b": {"vocab_size": 151936, "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16}
    | {"num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, "max_position_embeddings": 8192},
    "qwen3-4b": {"vocab_size": 151936, "hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32}
    | {"num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 9728, "max_position_embeddings": 8192},
}
PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LEARNING_RATE = 1e-3


@dataclass
class Options:
    """Settings of the command line."""

    part: str = "all"
    threads: int = 1
    repeats: int = 5
    prompts: int = 8
    group: int = 16
    prompt_tokens: int = 96
    new_tokens: int = 64
    device: str = "cpu"
    shape: str = "tiny"


def read_options(arguments: list[str]) -> Options:
    known: dict[str, Any] = {f.name: type(f.default) for f in fields(Options)}
    values: dict[str, Any] = {}
    for argument in arguments:
        name, _, value = argument.lstrip("-").partition("=")
        if name not in known:
            sys.exit(f"unknown setting {name!r}; known: {', '.join(known)}")
        values[name] = known[name](value)
    options = Options(**values)
    if options.shape not in SHAPES or options.part not in ("all", "sample", "step"):
        sys.exit(f"shape must be one of {', '.join(SHAPES)}; part one of all, sample, step")
    return options


def make_model(options: Options) -> Any:
    torch.manual_seed(0)
    config = Qwen3Config(**SHAPES[options.shape], tie_word_embeddings=True, eos_token_id=None, pad_token_id=0)
    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    torch.set_default_dtype(dtype)
    with torch.device(options.device):
        model: Any = Qwen3ForCausalLM(config)
        model.eval()
    torch.set_default_dtype(torch.float32)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def make_prompts(options: Options) -> list[list[int]]:
    rng = np.random.default_rng(0)
    lengths = rng.integers(options.prompt_tokens * 2 // 3, options.prompt_tokens + 1, options.prompts)
    return [rng.integers(4, 640, n).tolist() for n in lengths]


def seconds(options: Options, work: Callable[[], Any]) -> tuple[float, float]:
    """Wall and CPU seconds of `work`."""
    if options.device == "cuda":
        torch.cuda.synchronize()
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    if options.device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - wall, time.process_time() - cpu


def sample_part(options: Options) -> dict[str, float]:
    """Print the speeds of sampling; return the ratio."""
    model, prompts = make_model(options), make_prompts(options)
    service = EmbeddedService(device=options.device)
    service.models["m"] = wrap_model("m", "", model, service.device, service.dtype)
    client = service.create_sampling_client(base_model="m").result()
    width = max(map(len, prompts))
    ids = torch.zeros(len(prompts), width, dtype=torch.long, device=options.device)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1

    def ours() -> None:
        params = types.SamplingParams(max_tokens=options.new_tokens, seed=1, stop=[])
        futures = [client.sample(types.ModelInput.from_ints(p), options.group, params) for p in prompts]
        for future in futures:
            assert all(len(s.tokens) == options.new_tokens for s in future.result().sequences)

    def generate() -> None:
        out = model.generate(
            ids,
            attention_mask=mask,
            do_sample=True,
            top_k=0,
            max_new_tokens=options.new_tokens,
            num_return_sequences=options.group,
        )
        assert out.shape[1] == width + options.new_tokens

    column = 0 if options.device == "cuda" else 1
    found = alternate(options, ours, generate, column)
    tokens = options.prompts * options.group * options.new_tokens
    unit = "tokens per second" if options.device == "cuda" else "tokens per CPU-second"
    print(f"\nsampling, {options.prompts} × {options.group} × {options.new_tokens} tokens, {describe(options)}")
    rows = [("embedded engine", tokens / found[0]), ("transformers generate", tokens / found[1])]
    for name, speed in rows:
        print(f"  {name:24} {speed:12,.0f} {unit}")
    print(f"  ratio                    {found[1] / found[0]:12.2f}")
    return {"transformers' generate": found[1] / found[0]}


def alternate(
    options: Options, ours: Callable[[], None], theirs: Callable[[], None], column: int
) -> tuple[float, float]:
    ours()
    theirs()
    pairs = [(seconds(options, ours)[column], seconds(options, theirs)[column]) for _ in range(options.repeats)]
    return median(a for a, _ in pairs), median(b for _, b in pairs)


def reward_of(tokens: list[int]) -> float:
    return sum(token % 2 for token in tokens) / max(1, len(tokens))


def our_step(options: Options, prompts: list[list[int]]) -> list[tuple[float, float]]:
    service = EmbeddedService(device=options.device)
    service.models["m"] = wrap_model("m", "", make_model(options), service.device, service.dtype)
    trainer = service.create_lora_training_client("m", rank=32, seed=0, train_unembed=False).result()
    adam = types.AdamParams(learning_rate=LEARNING_RATE)

    def step() -> None:
        client = trainer.save_weights_and_get_sampling_client().result()
        params = types.SamplingParams(max_tokens=options.new_tokens, seed=1, stop=[])
        futures = [client.sample(types.ModelInput.from_ints(p), options.group, params) for p in prompts]
        data = []
        for prompt, future in zip(prompts, futures, strict=True):
            sequences = future.result().sequences
            advantages = compute_advantages([reward_of(s.tokens) for s in sequences])
            for sequence, advantage in zip(sequences, advantages, strict=True):
                data.append(
                    make_datum(prompt + sequence.tokens, sequence.logprobs or [], len(prompt), advantage or 0.0)
                )
        first, second = trainer.forward_backward(data, "importance_sampling"), trainer.optim_step(adam)
        first.result()
        second.result()

    step()
    return [seconds(options, step) for _ in range(options.repeats)]


def word_tokenizer(vocab: int) -> Any:
    """One word per id, so that TRL's text prompts have exactly our ids."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    inner = Tokenizer(models.WordLevel({f"t{i}": i for i in range(vocab)}, unk_token="t1"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made: Any = PreTrainedTokenizerFast
    return made(tokenizer_object=inner, pad_token="t0", eos_token="t2")


def trl_step(options: Options, prompts: list[list[int]]) -> list[tuple[float, float]]:
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    times: list[tuple[float, float]] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            if options.device == "cuda":
                torch.cuda.synchronize()
            times.append((time.perf_counter(), time.process_time()))

    def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
        return [reward_of(ids) for ids in completion_ids]

    texts = [" ".join(f"t{i}" for i in prompt) for prompt in prompts]
    total = options.prompts * options.group
    with tempfile.TemporaryDirectory() as folder:
        arguments = GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=total,
            num_generations=options.group,
            max_completion_length=options.new_tokens,
            max_steps=options.repeats + 2,
            learning_rate=LEARNING_RATE,
            beta=0.0,
            loss_type="grpo",
            scale_rewards="none",
            temperature=1.0,
            top_k=0,
            max_grad_norm=0.0,
            gradient_checkpointing=False,
            bf16=options.device == "cuda",
            use_cpu=options.device == "cpu",
            report_to=[],
            logging_strategy="no",
            save_strategy="no",
            disable_tqdm=True,
            dataloader_pin_memory=False,
            generation_kwargs={"eos_token_id": None, "min_new_tokens": options.new_tokens},
        )
        model = make_model(options)
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=reward,
            args=arguments,
            train_dataset=Dataset.from_dict({"prompt": texts * (options.repeats + 2)}),
            processing_class=word_tokenizer(model.config.vocab_size),
            peft_config=LoraConfig(r=32, lora_alpha=32, target_modules=PROJECTIONS, task_type="CAUSAL_LM"),
            callbacks=[Clock()],
        )
        trainer.train()
    return [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(times[1:])]


def step_part(options: Options) -> dict[str, float]:
    """Print the seconds of a step; return the ratio of wall time, if TRL is installed."""
    prompts = make_prompts(options)
    try:
        import peft  # noqa: F401
        import trl
    except ImportError as error:
        print(f"\nstep: skipped, {error.name} is not installed (pip install trl peft datasets accelerate)")
        return {}
    ours = our_step(options, prompts)
    theirs = trl_step(options, prompts)
    ours += our_step(options, prompts)
    print(f"\none step of RL, {options.prompts} × {options.group} × {options.new_tokens} tokens, {describe(options)}")
    for name, found in (("embedded engine", ours), (f"TRL {trl.__version__} GRPOTrainer", theirs)):
        print(f"  {name:24} {median(w for w, _ in found):8.3f} s wall {median(c for _, c in found):8.3f} CPU-s")
    wall, cpu = (median(t[i] for t in theirs) / median(t[i] for t in ours) for i in (0, 1))
    print(f"  ratio                    {wall:8.2f}        {cpu:8.2f}")
    return {f"TRL {trl.__version__}": wall}


def describe(options: Options) -> str:
    import transformers

    device = torch.cuda.get_device_name() if options.device == "cuda" else f"CPU, {options.threads} threads"
    return f"shape {options.shape}, {device}, torch {torch.__version__}, transformers {transformers.__version__}"


def main() -> None:
    options = read_options(sys.argv[1:])
    torch.set_num_threads(options.threads)
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("device=cuda: this machine has no CUDA device")
    ratios: dict[str, dict[str, float]] = {}
    if options.part in ("all", "sample"):
        ratios["sampling"] = sample_part(options)
    if options.part in ("all", "step"):
        ratios["a step of RL"] = step_part(options)
    print("ratios", json.dumps(ratios))


if __name__ == "__main__":
    main()
