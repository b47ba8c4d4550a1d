"""A causal language model of transformers with its own forward pass: LoRA on its linear
projections, training, and sampling.

It serves architectures for which the engine has no forward pass. Hooks on the projections of the
frozen model add the calling thread's adapter, so sampler and trainer share the model. Routers,
image or audio towers, and experts that transformers stores as one tensor are not adapted.

Micro-batches are padded at the end, where causal attention keeps padding from affecting earlier
tokens. The completions of one prompt at a time use the model's own cache, so nothing is padded.
"""

from __future__ import annotations

import inspect
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from code_rl.util.errors import ConfigError

from .decode import MAX_ROWS, Completion, Rows, SequenceRequest
from .forward import UNSCORED, Prompt, Scored
from .learner import Leaf, Learner, Trainable
from .lora import Lora, LoraSettings, Module
from .packing import Packed, Suffix, Unit
from .passes import EngineExample, read_pass
from .weights import Architecture, Weights, check_unquantized, read_architecture
from .worker import safe_point

UNKNOWN_CONTEXT = 8192  # if the configuration has no longest position
TOKENS = 1024
"""The most tokens of a micro-batch, padding included, unless it is a single example."""
_ATTENTION = ("attn", "attention", "mixer", "mamba", "conv", "recurrent")
_LEFT_OUT = ("router", "vision", "visual", "audio", "multi_modal")
Adapter = Mapping[str, tuple[Tensor, Tensor]]  # A [rank, in] and scaled B [out, rank] by projection
_active = threading.local()  # `adapter`: the adapter of this thread's pass


@dataclass(frozen=True)
class HfArchitecture(Architecture):
    """The shape of a model that transformers runs. Its heads and widths are left at 0."""


def architecture_of(config: Any) -> Architecture:
    """Return the shape of a model from its configuration; its class says which forward pass runs it
    (HfArchitecture: transformers'). Raises ConfigError for quantized weights, for anything but a
    causal language model of transformers, and for one without a key-value cache."""
    try:
        return read_architecture(config)
    except ConfigError as refusal:
        check_unquantized(config)
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

        family = str(getattr(config, "model_type", None))
        if family not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
            raise ConfigError(
                f"{refusal}; transformers loads no {family!r} as a causal language model either"
            ) from refusal
        _check_cache(config)
    text = config.get_text_config()
    return HfArchitecture(
        family=family,
        hidden=text.hidden_size,
        layers=text.num_hidden_layers,
        **dict.fromkeys(("heads", "kv_heads", "head_dim", "ffn"), 0),
        vocab=text.vocab_size,
        max_context=getattr(text, "max_position_embeddings", None) or UNKNOWN_CONTEXT,
        norm_eps=0.0,
        tied_unembedding=bool(getattr(text, "tie_word_embeddings", False)),
        qk_norm=False,
    )


def _check_cache(config: Any) -> None:
    """Raise ConfigError for an architecture without the cache that sampling reads (Mamba, RWKV)."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if "past_key_values" not in inspect.signature(kind.forward).parameters:
        raise ConfigError(
            f"{kind.__name__} has no key-value cache, which the embedded engine samples with; take "
            "a model with attention, or a server that trains this one (backend=http://host:port)"
        )


@dataclass(frozen=True)
class HfWeights:
    """A frozen transformers model with hooks for an adapter, and that adapter (empty: the base
    model)."""

    arch: Architecture
    module: Any
    adapter: Adapter = field(default_factory=dict)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the activations."""
        return cast(torch.dtype, self.module.dtype)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return cast(torch.device, self.module.device)

    def __call__(self, tokens: Tensor, **options: Any) -> Any:
        """Return the transformers model's output, with the adapter, for tokens [rows, length];
        `options` are its own. The adapter is active in this thread for this call only."""
        _active.adapter = self.adapter
        try:
            return self.module(input_ids=tokens, **options)
        finally:
            _active.adapter = {}


def hf_weights(loaded: Any) -> HfWeights:
    """Freeze a transformers model in place and attach its hooks; call it once for a model. Raises
    ConfigError if it is not supported or has no linear projection to adapt."""
    module = loaded.eval().requires_grad_(False)
    weights = HfWeights(architecture_of(loaded.config), module)
    linears = _linears(module)
    if len(linears) < 2:  # only the unembedding
        raise ConfigError(
            f"model family {weights.arch.family!r} has no linear projections that LoRA could adapt"
        )
    for name, linear in linears.items():
        linear.register_forward_hook(_adapter_hook(name))
    return weights


def hf_modules(weights: HfWeights, settings: LoraSettings) -> list[Module]:
    """Return the projections that these settings adapt, in the model's order, which is that of the
    parameters in a checkpoint. Attention is told by the names of layers."""
    head, found = weights.module.get_output_embeddings(), []
    for name, linear in _linears(weights.module).items():
        attention = any(word in name for word in _ATTENTION)
        wanted = settings.train_attn if attention else settings.train_mlp
        if settings.train_unembed if linear is head else wanted:
            rows, columns = linear.weight.shape
            # GPT-2's Conv1D keeps its weight transposed.
            sizes = (rows, columns) if isinstance(linear, Conv1D) else (columns, rows)
            found.append(Module(name, 0, "", 0, *sizes))
    return found


def _linears(module: nn.Module) -> dict[str, Any]:
    """Return the linear layers that LoRA adapts, by name, in the model's order, without routers and
    the towers of other modalities."""
    return {
        name: each
        for name, each in module.named_modules()
        if isinstance(each, nn.Linear | Conv1D)
        and not name.endswith(".gate")  # a mixture's router
        and not any(word in name for word in _LEFT_OUT)
    }


def _adapter_hook(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor | None]:
    """Return a forward hook that adds the calling thread's active adapter to the linear layer
    `name`."""

    def add(linear: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        """Add the active adapter's part to a layer's output; None leaves it unchanged."""
        del linear
        if name not in _active.adapter:
            return None
        (x, *_), (a, b) = inputs, _active.adapter[name]
        return output + F.linear(F.linear(x, a.to(x.dtype)), b.to(x.dtype))

    return add


class HfLearner(Learner):
    """One model in training; it differs from the fast learner only in its passes."""

    def __init__(self, base: HfWeights, lora: Lora, token_budget: int | None = None) -> None:
        """`token_budget` is the most tokens of a micro-batch, padding included (None: 1,024)."""
        super().__init__(cast(Any, base), lora, token_budget or TOKENS)
        self._model = base

    def trace(self, examples: Sequence[EngineExample]) -> None:
        """Run the micro-batch with the most examples forward and backward, so that `memory` can
        count its bytes. Gradients are dropped."""
        units, (weights, _) = max(self._plan(examples), key=len), self._trainable()
        self._micro_batch(units, read_pass("importance_sampling", None), weights, backward=True)

    def snapshot(self) -> HfWeights:
        """Return the shared frozen model with a copy of the adapter, which later training does not
        change."""
        return HfWeights(self._model.arch, self._model.module, self.lora.pairs())

    def _weights(self) -> HfWeights:
        """Return the weights of a pass without gradients: a snapshot."""
        return self.snapshot()

    def _trainable(self) -> Trainable:
        """Return a snapshot whose adapter collects gradients, and the leaves with the functions
        that add these to a gradient of the parameters."""
        weights = self.snapshot()
        for pair in weights.adapter.values():
            for part in pair:
                part.requires_grad_()
        leaves: list[Leaf] = [
            (pair, partial(self.lora.chain_pair, name)) for name, pair in weights.adapter.items()
        ]
        return weights, leaves

    def _plan(self, examples: Sequence[EngineExample]) -> Iterator[list[Unit]]:
        """Yield micro-batches of examples of similar length, shortest first, whose padded tokens
        fit the budget; a single example may exceed it. Nothing is shared between them."""
        part: list[Unit] = []
        for i, example in sorted(enumerate(examples), key=lambda entry: len(entry[1].tokens)):
            if part and (len(part) + 1) * len(example.tokens) > self.budget:
                yield part
                part = []
            part.append(Unit(0, (Suffix(i, 0, example),)))
        if part:
            yield part

    def _logprobs(
        self, batch: Packed, temperature: float, weights: HfWeights, recompute: bool
    ) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of a batch's targets at `temperature`, after an empty tensor
        for its prefixes, of which it has none. `recompute` has no effect."""
        del recompute
        grid, lengths = batch.suffixes, [unit.tokens for unit in batch.units]
        tokens = batch.tokens.index_select(0, grid.gather).view(grid.rows, grid.width)
        logits = weights(tokens, use_cache=False).logits
        found = [
            _of_targets(row[: len(targets)].float() / temperature, targets)
            for row, targets in zip(logits, torch.split(batch.targets, lengths), strict=True)
        ]
        return found[0].detach()[:0], torch.cat(found)


def new_learner(
    weights: Weights | HfWeights,
    settings: LoraSettings,
    tokens: int | None = None,
    for_sampling: Callable[[], Weights] | None = None,
) -> Learner:
    """Return a learner of a new adapter, by the kind of the weights, with micro-batches of `tokens`
    (None: the device's). The adapter is zero until `Lora.initialise` or a restore. `for_sampling`
    gives the base weights for samplers (None: `weights`)."""
    if isinstance(weights, HfWeights):
        adapted = hf_modules(weights, settings)
        return HfLearner(weights, Lora(weights.arch, settings, weights.device, adapted), tokens)
    return Learner(weights, Lora(weights.arch, settings, weights.device), tokens, for_sampling)


def _of_targets(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the log-probabilities of an example's targets [n] or [n, K], of the same shape, from
    logits [n, vocab]."""
    chosen = logits.gather(1, targets.view(len(targets), -1)) - logits.logsumexp(-1, keepdim=True)
    return chosen.view(targets.shape)


class _HfRows(Rows):
    """Rows with a cache of transformers."""

    def __init__(
        self,
        requests: Sequence[SequenceRequest],
        scored: Scored,
        logits: Tensor,
        cache: Any,
        arch: Architecture,
    ) -> None:
        """Begin completions of one prompt, with its logits [1, vocab]. The cache, of that one
        prompt, is repeated for each row in place."""
        count = len(requests)
        super().__init__(requests, [scored] * count, logits.repeat(count, 1), arch)
        self.cache = cache
        cache.reorder_cache(torch.zeros(count, dtype=torch.long, device=self.device))

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all other rows from the cache in place."""
        self.cache.reorder_cache(torch.tensor(rows, device=self.device))


@torch.inference_mode()
def decode_hf(
    weights: HfWeights, waiting: deque[SequenceRequest], budget: int, arrived: Callable[[], None]
) -> Iterator[tuple[SequenceRequest, Completion]]:
    """Sample queued requests prompt by prompt, and yield each with its completion. The caches take
    at most `budget` bytes, unless a single row needs more. `arrived` is called before each prompt
    and may add to `waiting`, which is emptied. Raises BackendError if logits are not finite or the
    process is ending."""
    while waiting:
        arrived()
        prompt = waiting[0].prompt
        mine = [each for each in waiting if each.prompt is prompt]
        rest = [each for each in waiting if each.prompt is not prompt] + mine[MAX_ROWS:]
        waiting.clear()
        waiting.extend(rest)
        yield from _completions(weights, prompt, mine[:MAX_ROWS], waiting, budget)


def cache_bytes(cache: Any) -> int:
    """Return the bytes of the keys and values in a cache of transformers, and of its largest layer
    again, which is stored twice while it grows. States of fixed size do not count: callers multiply
    by tokens."""
    # Layers without attention keep a state of fixed size instead.
    kept = [layer for layer in cache.layers if getattr(layer, "keys", None) is not None]
    sizes: list[int] = [layer.keys.nbytes + layer.values.nbytes for layer in kept]
    return sum(sizes) + max(sizes, default=0)


def _completions(
    weights: HfWeights,
    prompt: Prompt,
    requests: Sequence[SequenceRequest],
    waiting: deque[SequenceRequest],
    budget: int,
) -> Iterator[tuple[SequenceRequest, Completion]]:
    """Sample the requests of a prompt; those that do not fit into `budget` bytes go back to the
    front of `waiting`."""
    tokens = torch.tensor([prompt.tokens], device=weights.device)
    output = weights(tokens, use_cache=True)
    scored = _scored(prompt, output.logits[0])
    for request in requests:
        if not request.max_tokens:
            yield request, Completion.empty(scored)
    sampled = [request for request in requests if request.max_tokens]
    if not sampled:
        return
    cache = output.past_key_values
    longest = len(prompt.tokens) + max(request.max_tokens for request in sampled)
    fitting = max(1, budget * len(prompt.tokens) // max(1, cache_bytes(cache) * longest))
    waiting.extendleft(reversed(sampled[fitting:]))
    rows = _HfRows(sampled[:fitting], scored, output.logits[:, -1].float(), cache, weights.arch)
    while True:
        yield from rows.sample_tokens()
        if not rows.alive.any():
            return
        safe_point()
        output = weights(rows.token[:, None], past_key_values=cache, use_cache=True)
        rows.logits = output.logits[:, -1].float()


def _scored(prompt: Prompt, logits: Tensor) -> Scored:
    """Return the prompt's requested scores, from its logits [n, vocab]."""
    if prompt.scored_at is None:
        return UNSCORED
    table = torch.log_softmax(logits[:-1].float() / prompt.scored_at, dim=-1)
    following = torch.tensor(prompt.tokens[1:], device=table.device)
    known = table.gather(1, following[:, None])[:, 0].cpu().numpy()
    best, ids = (each.cpu().numpy() for each in table.topk(prompt.likeliest, dim=-1))
    return Scored(np.concatenate([np.full(1, np.nan, np.float32), known]), ids, best)
