"""LoRA adapters outside the engine: read from checkpoints, written as peft reads them, merged into a Hugging Face model."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from code_rl.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

PREFIX = "base_model.model."
# Names under which services save the unembedding.
_HEADS = ("model.unembed_tokens", "unembed_tokens", "model.lm_head")
HEAD = "lm_head"


@dataclass(frozen=True)
class Adapter:
    """Per adapted projection (named as in the Hugging Face model): A [rank, in] and B [out, rank]; effect `alpha / rank · B A`."""

    base_model: str
    rank: int
    alpha: float
    pairs: Mapping[str, tuple[Tensor, Tensor]]

    @property
    def target_modules(self) -> list[str]:
        """The last parts of the adapted projections' names, each once."""
        return sorted({name.rsplit(".", 1)[-1] for name in self.pairs})


def read_embedded(path: Path) -> Adapter:
    """The adapter in a checkpoint of the embedded engine. Raises CheckpointError when it is missing or damaged."""
    from code_rl.backends.embedded.lora import ALPHA
    from code_rl.backends.embedded.state import read_state

    saved = read_state(path)
    try:
        return Adapter(str(saved.meta["base_model"]), int(saved.meta["rank"]), ALPHA, _pairs(saved.tensors, str(path)))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"checkpoint {path} lacks its settings: {error!r}") from error


def read_folder(folder: Path, base_model: str) -> Adapter:
    """The adapter in a folder as peft (or Tinker's export) writes it. Raises CheckpointError when it is not one."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        settings = json.loads((folder / "adapter_config.json").read_text())
        tensors = load_file(folder / "adapter_model.safetensors")
        return Adapter(base_model, int(settings["r"]), float(settings["lora_alpha"]), _pairs(tensors, str(folder)))
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise CheckpointError(f"{folder} holds no LoRA adapter that can be read: {error}") from error


def write_peft(adapter: Adapter, base_reference: str, out: Path) -> None:
    """Write `adapter_model.safetensors` and `adapter_config.json`.

    `target_modules` is explicit: without it peft falls back to a default list for the architecture and drops the rest silently.
    """
    from safetensors.torch import save_file

    tensors = {}
    for name, (a, b) in adapter.pairs.items():
        tensors[f"{PREFIX}{name}.lora_A.weight"] = a.contiguous()
        tensors[f"{PREFIX}{name}.lora_B.weight"] = b.contiguous()
    save_file(tensors, out / "adapter_model.safetensors", metadata={"format": "pt"})
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_reference,
        "r": adapter.rank,
        "lora_alpha": int(adapter.alpha) if adapter.alpha == int(adapter.alpha) else adapter.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "target_modules": adapter.target_modules,
    }
    (out / "adapter_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def open_to_others(folder: Path) -> None:
    """Files are handed over with the mode that any new file gets: the library that writes weights makes them private."""
    umask = os.umask(0o077)
    os.umask(umask)
    for path in folder.rglob("*"):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~umask)


def merge_into(model: Any, adapter: Adapter) -> None:
    """Add the adapter to a transformers model in place, each product in fp32.

    An adapted unembedding that was tied to the embedding gets weights of its own: only its use as unembedding was trained.

    Raises CheckpointError when the model lacks a projection or has another shape.
    """
    import torch

    with torch.no_grad():
        for name, (a, b) in adapter.pairs.items():
            try:
                module = model.get_submodule(name)
            except AttributeError as error:
                raise CheckpointError(f"base model {adapter.base_model!r} has no projection {name}") from error
            weight = module.weight
            if weight.shape != (b.shape[0], a.shape[1]):
                raise CheckpointError(
                    f"{name} has shape {tuple(weight.shape)} in base model {adapter.base_model!r} and "
                    f"{(b.shape[0], a.shape[1])} in the adapter"
                )
            change = (adapter.alpha / adapter.rank) * (b.float() @ a.float())
            merged = (weight.float() + change.to(weight.device)).to(weight.dtype)
            module.weight = torch.nn.Parameter(merged, requires_grad=False)
            if name == HEAD:
                model.config.tie_word_embeddings = False


def _pairs(tensors: Mapping[str, Tensor], where: str) -> dict[str, tuple[Tensor, Tensor]]:
    """A and B by module name. Raises CheckpointError for an adapter without any, or with half of one."""
    found: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        for part in ("lora_A", "lora_B"):
            name, mark, _ = key.partition(f".{part}.weight")
            if mark and key.startswith(PREFIX) and tensor.dim() == 2:
                name = name.removeprefix(PREFIX)
                found.setdefault(HEAD if name in _HEADS else name, {})[part] = tensor
    experts = [key for key in tensors if ".experts." in key or (key.startswith(PREFIX) and tensors[key].dim() > 2)]
    if experts:
        raise CheckpointError(
            f"{where} adapts mixture-of-experts layers ({experts[0]}), which this export cannot write"
        )
    halves = [name for name, parts in found.items() if len(parts) != 2]
    if not found or halves:
        raise CheckpointError(f"{where} holds no complete LoRA adapter" + (f": {halves[0]}" if halves else ""))
    return {name: (parts["lora_A"], parts["lora_B"]) for name, parts in found.items()}
