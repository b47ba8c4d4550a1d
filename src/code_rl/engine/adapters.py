"""LoRA adapters outside the engine. They are read from checkpoints or fetched from a service,
written in peft's form with a model card, or merged into a Hugging Face model."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from code_rl.engine.places import Place
from code_rl.engine.remote import Link, RemoteClient
from code_rl.util.errors import BackendError, CheckpointError, ConfigError
from code_rl.util.version import __version__

if TYPE_CHECKING:
    from torch import Tensor

PREFIX = "base_model.model."
# Names under which services save the unembedding's adapter.
_HEADS = ("model.unembed_tokens", "unembed_tokens", "model.lm_head")
HEAD = "lm_head"
logger = logging.getLogger("code_rl.engine")
_PATIENCE_S, _KEPT_S = 300.0, 3600
_SHOWN = (
    "recipe",
    "dataset",
    "test_dataset",
    "learning_rate",
    "lora_rank",
    "batch_size",
    "group_size",
    "groups_per_batch",
    "max_tokens",
    "temperature",
    "format_coef",
    "seed",
    "renderer",
    "backend",
)
_MERGED = """## Serving

In this folder:

```
vllm serve .
python -m sglang.launch_server --model-path .
transformers serve .
```"""
_PEFT = """## Serving

```
vllm serve {base} --enable-lora --max-lora-rank {rank} --lora-modules code-rl=.
```

`format=merged` writes a folder that every server loads."""
_SCORES = ("eval/mean_correct", "eval/pass@1", "eval/pass@k", "eval/format_rate")


@dataclass(frozen=True)
class Adapter:
    """A [rank, in] and B [out, rank] of each adapted projection, named as in the Hugging Face
    model. The effect of a pair is `alpha / rank · B A`."""

    base_model: str
    rank: int
    alpha: float
    pairs: Mapping[str, tuple[Tensor, Tensor]]

    @property
    def target_modules(self) -> list[str]:
        """The last parts of the adapted projections' names, each once, sorted, as peft lists
        them."""
        return sorted({name.rsplit(".", 1)[-1] for name in self.pairs})


def read_embedded(path: Path) -> Adapter:
    """Return the adapter in a checkpoint file of the embedded engine, without its optimizer state.
    Raises CheckpointError if the file is missing or damaged, or holds no complete adapter."""
    from code_rl.engine.local.lora import ALPHA
    from code_rl.engine.local.state import read_state

    saved = read_state(path)
    meta, pairs = saved.meta, _pairs(saved.tensors, str(path))
    return Adapter(meta["base_model"], meta["rank"], ALPHA, pairs)


def read_folder(folder: Path, base_model: str) -> Adapter:
    """Return the adapter in a folder written by peft or by Tinker's export; rank and alpha are
    those of its `adapter_config.json`. Raises CheckpointError if the folder holds none that can be
    read."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        settings = json.loads((folder / "adapter_config.json").read_text())
        tensors = load_file(folder / "adapter_model.safetensors")
        return Adapter(
            base_model,
            int(settings["r"]),
            float(settings["lora_alpha"]),
            _pairs(tensors, str(folder)),
        )
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise CheckpointError(
            f"{folder} holds no LoRA adapter that can be read: {error}"
        ) from error


def write_peft(adapter: Adapter, base_reference: str, out: Path) -> None:
    """Write `adapter_model.safetensors` and `adapter_config.json` into the existing folder `out`,
    over files of these names. `base_reference` is the base model's name in the configuration.
    Raises OSError.

    `target_modules` is explicit: without it peft falls back to a default list for the architecture
    and drops the rest silently.
    """
    from safetensors.torch import save

    tensors = {}
    for name, (a, b) in adapter.pairs.items():
        tensors[f"{PREFIX}{name}.lora_A.weight"] = a.contiguous()
        tensors[f"{PREFIX}{name}.lora_B.weight"] = b.contiguous()
    # `save_file` reports a full disk as an error of its own kind.
    (out / "adapter_model.safetensors").write_bytes(save(tensors, metadata={"format": "pt"}))
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


def ignored_by_peft(config: Any, folder: Path) -> int:
    """Count the tensors of a written adapter that peft ignores on a skeleton of the base model with
    this transformers configuration; no weights are loaded. Return 0 if peft is not installed."""
    if importlib.util.find_spec("peft") is None:
        return 0
    import peft
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        auto: Any = AutoModelForCausalLM
        model = peft.PeftModel(
            auto.from_config(config), peft.PeftConfig.from_pretrained(str(folder))
        )
        found = model.load_adapter(str(folder), "default", low_cpu_mem_usage=True)
    return len(found.unexpected_keys)


def open_to_others(folder: Path) -> None:
    """Give the files and folders below `folder` the mode of any new file; safetensors makes them
    private. The process's umask is changed for a moment, to read it."""
    umask = os.umask(0o077)
    os.umask(umask)
    for path in folder.rglob("*"):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~umask)


def merge_into(model: Any, adapter: Adapter) -> None:
    """Add the adapter to a transformers model in place, with products in fp32; weights keep their
    type and no longer require a gradient.

    An adapted unembedding that was tied to the embedding gets weights of its own, since only its
    use as unembedding was trained.

    Raises CheckpointError if the model lacks a projection or has another shape; projections merged
    before it stay merged.
    """
    import torch
    from transformers.pytorch_utils import Conv1D

    with torch.no_grad():
        for name, (a, b) in adapter.pairs.items():
            try:
                module = model.get_submodule(name)
            except AttributeError as error:
                raise CheckpointError(
                    f"base model {adapter.base_model!r} has no projection {name}"
                ) from error
            transposed = isinstance(module, Conv1D)
            weight = module.weight.T if transposed else module.weight
            if weight.shape != (b.shape[0], a.shape[1]):
                raise CheckpointError(
                    f"{name} has shape {tuple(weight.shape)} in base model {adapter.base_model!r} "
                    f"and {(b.shape[0], a.shape[1])} in the adapter"
                )
            change = (adapter.alpha / adapter.rank) * (b.float() @ a.float())
            merged = (weight.float() + change.to(weight.device)).to(weight.dtype)
            merged = merged.T.contiguous() if transposed else merged
            module.weight = torch.nn.Parameter(merged, requires_grad=False)
            if name == HEAD:
                model.config.tie_word_embeddings = False


def _pairs(tensors: Mapping[str, Tensor], where: str) -> dict[str, tuple[Tensor, Tensor]]:
    """Return A and B by module name; keys that are not an adapter's are left out, and every name of
    an unembedding becomes `lm_head`. `where` is named in errors. Raises CheckpointError if there is
    no pair or an incomplete one, and for tensors of experts or not of two dimensions."""
    found: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        name, mark, part = key.removeprefix(PREFIX).partition(".lora_")
        if mark and key.startswith(PREFIX):  # others are the optimizer's
            if tensor.dim() != 2 or ".experts." in key:
                raise CheckpointError(f"{where} holds {key}, which this export cannot write")
            found.setdefault(HEAD if name in _HEADS else name, {})[part] = tensor
    halves = [name for name, parts in found.items() if parts.keys() != {"A.weight", "B.weight"}]
    if not found or halves:
        raise CheckpointError(
            f"{where} holds no complete LoRA adapter" + (f": {halves[0]}" if halves else "")
        )
    return {name: (parts["A.weight"], parts["B.weight"]) for name, parts in found.items()}


def download_adapter(place: Place, path: str, folder: Path) -> str:
    """Fetch the adapter of a training checkpoint (`tinker://RUN/weights/NAME`) into `folder`, and
    return its base model's name.

    The service exports a restored copy of the checkpoint, which is deleted afterwards. Sampler
    weights cannot be fetched.

    Raises ConfigError if the path names sampler weights, or if the server or the SDK is too old,
    and BackendError if the service failed or refused.
    """
    if "/weights/" not in path:
        raise ConfigError(
            f"checkpoint={path} cannot be fetched; give the state_path of a checkpoint "
            "(tinker://RUN/weights/NAME)"
        )
    import tinker

    from code_rl.engine.probes import require_downloads

    require_downloads(place)
    link = Link(place, _PATIENCE_S)
    rest_client: Any = getattr(tinker, "RestClient", None)
    if rest_client is None:
        raise ConfigError(
            "fetching a checkpoint needs a newer SDK; run: pip install 'tinker>=0.38'"
        )
    with tinker.ServiceClient(base_url=place.url, api_key=place.key) as opened:
        service = RemoteClient(opened, link)
        client = service.create_training_client_from_state(path).result()
        base_model = str(client.get_info().model_data.model_name)
        saving = RemoteClient(client, link).save_weights_external(
            "code-rl-export", ttl_seconds=_KEPT_S
        )
        saved = saving.result().path
        rest = RemoteClient(rest_client(base_url=place.url, api_key=place.key), link)
        try:
            for name, url in rest.get_external_weights_urls(saved).result().urls.items():
                _fetch(name, url, folder)
        finally:
            try:
                rest.delete_checkpoint_from_tinker_path(saved).result()
            except BackendError as error:
                logger.warning("%s was not deleted: %s", saved, error)
    return base_model


def _fetch(name: str, url: str, folder: Path) -> None:
    """Download one file of a checkpoint from `url` to the relative path `name` in `folder`. Raises
    BackendError if the download fails, or for a path outside the folder, and OSError if it cannot
    be written."""
    import httpx

    relative = PurePosixPath(name)
    if relative.is_absolute() or ".." in relative.parts:
        raise BackendError(f"the service names a file outside the checkpoint: {name!r}")
    target = folder / relative
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with (
            httpx.stream("GET", url, follow_redirects=True, timeout=60.0) as answer,
            target.open("wb") as file,
        ):
            answer.raise_for_status()
            for part in answer.iter_bytes():
                file.write(part)
    except httpx.HTTPError as error:
        # The address alone gives access to the file, so the message leaves it out.
        raise BackendError(f"{name} could not be fetched: {type(error).__name__}") from None


def vllm_rank(rank: int) -> int:
    """Return the smallest rank that vLLM's `--max-lora-rank` may have for adapters of `rank`: a
    power of two from 8 on."""
    return max(8, 1 << (rank - 1).bit_length())


def model_card(
    adapter: Adapter,
    base: str,
    kind: str,
    checkpoint: str,
    settings: Mapping[str, Any] | None,
    metrics: Sequence[Mapping[str, Any]],
    steps: int | None,
) -> str:
    """Return the text of `README.md` for an exported adapter; `kind` is `peft` or `merged`, `base`
    the base model's name. `settings` (None: no table), `metrics` and `steps` (None: not stated) are
    those of the run, if the checkpoint belongs to one. Nothing is written."""
    what = (
        "It is merged into the base weights here."
        if kind == "merged"
        else "The base model is not included."
    )
    after = f", after {steps} steps" if steps is not None else ""
    parts = [
        f"---\nbase_model: {base}\nlibrary_name: {'peft' if kind == 'peft' else 'transformers'}\n"
        "pipeline_tag: text-generation\ntags: [code, reinforcement-learning, grpo, lora]\n---",
        f"# {base.rstrip('/').rsplit('/', 1)[-1]}, trained with code-rl",
        f"A LoRA adapter (rank {adapter.rank}, alpha {adapter.alpha:g}; "
        f"{', '.join(adapter.target_modules)}) on `{base}`, trained with reinforcement learning "
        f"on code problems: GRPO, rewards from test verdicts in a sandbox. {what}",
        f"Checkpoint: `{checkpoint}`{after}. Written by code-rl {__version__}.",
        _evaluation(metrics),
        *([_settings(settings)] if settings is not None else []),
        _MERGED if kind == "merged" else _PEFT.format(base=base, rank=vllm_rank(adapter.rank)),
        "The licence of the base model applies.",
    ]
    return "\n\n".join(parts) + "\n"


def _evaluation(metrics: Sequence[Mapping[str, Any]]) -> str:
    """Return the model card's table of the run's own held-out evaluations, in percent, a row for
    each record with a score. Step −1 is before training. Without a score, return a sentence that
    says so."""
    scored = [record for record in metrics if any(name in record for name in _SCORES)]
    if not scored:
        return "## Evaluation\n\nNo evaluation was recorded."
    lines = ["## Evaluation", "", "Means over the held-out splits of the run.", ""]
    lines += ["| after step | " + " | ".join(name.removeprefix("eval/") for name in _SCORES) + " |"]
    lines += ["|---" * (len(_SCORES) + 1) + "|"]
    for record in scored:
        step = "before training" if record.get("step") == -1 else str(record.get("step"))
        cells = [
            f"{100 * float(record[name]):.1f}%" if record.get(name) is not None else "–"
            for name in _SCORES
        ]
        lines.append(f"| {step} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _settings(settings: Mapping[str, Any]) -> str:
    """Return the model card's table of the settings in `_SHOWN`, in that order. Those that are
    missing or None are left out."""
    rows = [f"| {name} | {settings[name]} |" for name in _SHOWN if settings.get(name) is not None]
    return "\n".join(["## Settings", "", "| setting | value |", "|---|---|", *rows])
