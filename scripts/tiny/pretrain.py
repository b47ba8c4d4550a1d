"""Pretrain the tiny model from scratch.

    python -m scripts.tiny.pretrain tokenizer=DIR out=DIR [seed=2] [tokens=7000000] [edge=0.5] ...

A Qwen3-architecture causal language model of about 0.37 million parameters, cosine schedule, loss on the answers only. First
textbooks, then forums: the answers of the first `careful_share` of the tokens are all right, the later ones are by careless
authors (see `corpus`). The defaults are the settings of the shipped file.

One thread, fixed seeds: the same command on the same machine and versions gives the same bytes. Every `save_every` tokens the
model is saved under `out/<tokens>`; `out/log.jsonl` has the loss curve.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoTokenizer, GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from scripts.tiny.corpus import CorpusRecipe, documents
from scripts.tiny.tokenizer import END, PAD, render

LOG_EVERY = 100
CARELESS_SEED_OFFSET = 500_000
SORT_WINDOW = 32
"""Batches whose documents are sorted by length together, so that little is padding."""


@dataclass(frozen=True, slots=True)
class PretrainConfig:
    """Settings of one pretraining run; tokens count prompts and answers, not padding."""

    tokenizer: str
    out: str
    seed: int = 2
    tokens: int = 7_000_000
    careful_share: float = 0.8
    edge: float = 0.5
    near: float = 0.3
    wrong: float = 0.05
    batch: int = 16
    learning_rate: float = 4e-3
    warmup_steps: int = 100
    weight_decay: float = 0.05
    muon: float = 0.0
    """Learning rate of Muon for the layers' matrices; 0 means AdamW for all."""
    unseen_rate: float = 0.03
    copy_rate: float = 0.15
    save_every: int = 250_000


@dataclass(frozen=True, slots=True)
class Batch:
    """Right-padded token ids `[B, T]`, and which positions predict an answer token."""

    ids_BT: Tensor
    predicts_BT: Tensor
    tokens: int


def new_model(vocabulary: int, end: int, pad: int, seed: int) -> Qwen3ForCausalLM:
    """The untrained model; projections into the residual stream start smaller, as in GPT-2."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=96,
        num_hidden_layers=3,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=32,
        intermediate_size=256,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        rope_theta=10000.0,  # type: ignore[call-arg]  # taken, and not among the documented
        eos_token_id=end,
        pad_token_id=pad,
        bos_token_id=None,
    )
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                weight.div_(math.sqrt(2 * config.num_hidden_layers))
    return model


def batches(config: PretrainConfig, tokenizer: Any) -> Iterator[Batch]:
    """An endless stream of batches of similar length; no document is used twice."""
    careful = documents(CorpusRecipe(unseen_rate=config.unseen_rate, copy_rate=config.copy_rate), config.seed)
    recipe = CorpusRecipe(config.edge, config.near, config.wrong, config.unseen_rate, config.copy_rate)
    careless = documents(recipe, config.seed + CARELESS_SEED_OFFSET)
    seen = 0
    rng = random.Random(config.seed)
    end = tokenizer.convert_tokens_to_ids(END)
    while True:
        stream = careful if seen < config.careful_share * config.tokens else careless
        window = list(itertools.islice(stream, config.batch * SORT_WINDOW))
        prompts = tokenizer([render(document.prompt) for document in window])["input_ids"]
        answers = tokenizer([document.answer for document in window])["input_ids"]
        pairs = sorted(zip(prompts, answers, strict=True), key=lambda pair: len(pair[0]) + len(pair[1]))
        chunks = [pairs[i : i + config.batch] for i in range(0, len(pairs), config.batch)]
        rng.shuffle(chunks)
        for chunk in chunks:
            batch = _pad([(prompt, [*answer, end]) for prompt, answer in chunk])
            seen += batch.tokens
            yield batch


def _pad(rows: list[tuple[list[int], list[int]]]) -> Batch:
    width = max(len(prompt) + len(answer) for prompt, answer in rows)
    ids_BT = torch.zeros(len(rows), width, dtype=torch.long)
    predicts_BT = torch.zeros(len(rows), width, dtype=torch.bool)
    for row, (prompt, answer) in enumerate(rows):
        length = len(prompt) + len(answer)
        ids_BT[row, :length] = torch.tensor(prompt + answer)
        predicts_BT[row, len(prompt) - 1 : length - 1] = True
    return Batch(ids_BT, predicts_BT, sum(len(prompt) + len(answer) for prompt, answer in rows))


def answer_loss(model: Qwen3ForCausalLM, batch: Batch) -> Tensor:
    """Mean cross entropy over answer tokens. Padding is on the right, so causality alone keeps it out."""
    hidden_BTH = model.model(batch.ids_BT, use_cache=False).last_hidden_state
    logits_NV = model.lm_head(hidden_BTH[batch.predicts_BT])
    targets_N = torch.roll(batch.ids_BT, -1, 1)[batch.predicts_BT]
    return F.cross_entropy(logits_NV, targets_N)


def build_optimizers(model: Qwen3ForCausalLM, config: PretrainConfig) -> list[torch.optim.Optimizer]:
    """AdamW, and Muon for the layers' matrices where asked; each group keeps its peak rate under `peak`."""
    embedding = model.get_input_embeddings().weight
    matrices = [weight for weight in model.parameters() if weight.dim() > 1 and weight is not embedding]
    vectors = [weight for weight in model.parameters() if weight.dim() == 1]
    decayed = [embedding] if config.muon else [embedding, *matrices]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(
            [{"params": decayed, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
            lr=config.learning_rate,
            betas=(0.9, 0.95),
            fused=True,
        )
    ]
    if config.muon:
        optimizers.append(torch.optim.Muon(matrices, lr=config.muon, momentum=0.95, weight_decay=0.01))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
    return optimizers


def pretrain(config: PretrainConfig) -> None:
    """Train, log and save as the module says."""
    torch.set_num_threads(1)
    out = Path(config.out)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer: Any = AutoTokenizer.from_pretrained(config.tokenizer)
    end, pad = tokenizer.convert_tokens_to_ids([END, PAD])
    model = new_model(len(tokenizer), end, pad, config.seed)
    optimizers = build_optimizers(model, config)
    (out / "config.json").write_text(json.dumps(asdict(config), indent=2) + "\n")
    seen, losses, started = 0, [], time.monotonic()
    with open(out / "log.jsonl", "w") as log:
        for step, batch in enumerate(batches(config, tokenizer), start=1):
            scale = min(1.0, step / config.warmup_steps) * (0.525 + 0.475 * math.cos(math.pi * seen / config.tokens))
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = group["peak"] * scale
            loss = answer_loss(model, batch)
            model.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in optimizers:
                optimizer.step()
            losses.append(loss.item())
            before, seen = seen, min(seen + batch.tokens, config.tokens)
            if step % LOG_EVERY == 0 or seen == config.tokens:
                minutes = (time.monotonic() - started) / 60
                record = {"step": step, "tokens": seen, "loss": sum(losses) / len(losses), "minutes": round(minutes, 2)}
                log.write(json.dumps(record) + "\n")
                log.flush()
                losses.clear()
            if seen // config.save_every > before // config.save_every or seen == config.tokens:
                save(model, tokenizer, config, out / f"{seen // config.save_every * config.save_every:08d}")
            if seen == config.tokens:
                return


def save(model: Qwen3ForCausalLM, tokenizer: Any, config: PretrainConfig, out: Path) -> None:
    """Write a folder that transformers loads: weights, config, tokenizer files as they were built, generation defaults."""
    model.save_pretrained(out)
    end, pad = tokenizer.convert_tokens_to_ids([END, PAD])
    defaults: Any = GenerationConfig
    defaults(eos_token_id=end, pad_token_id=pad, do_sample=True, temperature=1.0).save_pretrained(out)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (out / name).write_bytes((Path(config.tokenizer) / name).read_bytes())


def parse(arguments: list[str]) -> PretrainConfig:
    """Settings from key=value words."""
    words = dict(argument.split("=", 1) for argument in arguments)
    config = PretrainConfig(tokenizer=words.pop("tokenizer"), out=words.pop("out"))
    kinds = {field.name: type(getattr(config, field.name)) for field in fields(config)}
    return replace(config, **{name: kinds[name](value) for name, value in words.items()})


if __name__ == "__main__":
    pretrain(parse(sys.argv[1:]))
