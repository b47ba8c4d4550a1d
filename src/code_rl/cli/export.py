"""The verb `export`: a checkpoint of a run as a peft adapter or as a merged Hugging Face folder."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import chz

from code_rl.engine import place_of, resolve_backend
from code_rl.engine.adapters import (
    Adapter,
    download_adapter,
    ignored_by_peft,
    merge_into,
    model_card,
    open_to_others,
    read_embedded,
    read_folder,
    write_peft,
)
from code_rl.engine.checkpoints import checkpoint_record, read_config
from code_rl.engine.names import source_of
from code_rl.training import read_metrics
from code_rl.util.errors import BackendError, ConfigError
from code_rl.util.files import writes
from code_rl.util.options import option
from code_rl.util.settings import make_settings

REMOTE = "tinker://"


@chz.chz
class ExportConfig:
    """Export a trained model: as a LoRA adapter that peft reads, or as a Hugging Face folder with
    the adapter merged in."""

    checkpoint: str = chz.field(
        doc="RUN (its last checkpoint), RUN/CHECKPOINT, a checkpoint file of the embedded engine, "
        "or a tinker:// path."
    )
    out: str = chz.field(doc="Folder to write; it must be new or empty.")
    format: Literal["peft", "merged"] = option(
        "merged", "peft: the adapter alone. merged: a full model folder."
    )
    base_model: str | None = option(
        None, "Base model, a local folder or hub id (None: as the checkpoint says)."
    )
    push_to_hub: str | None = option(
        None,
        "Also upload the folder into this model repository of the Hugging Face hub, NAME or "
        "ORG/NAME, made private if it is new. The token is that of HF_TOKEN or `hf auth login`.",
    )
    backend: str = option(
        "auto",
        "Where a tinker:// path lives: tinker, or a server's http://host:port. auto: as for "
        "training.",
    )


@dataclass(frozen=True, slots=True)
class _Origin:
    """The exported checkpoint's path, and its run (None for a checkpoint without a run)."""

    path: str
    run: Path | None
    backend: str
    base_model: str | None
    steps: int | None


def export_command(given: Mapping[str, Any]) -> int:
    """Run `code-rl export` with the given settings and return the exit code, 0. The folder is
    written under a temporary name beside `out` and then moved there, so `out` is whole or missing;
    with `push_to_hub` it is uploaded afterwards.

    Raises ConfigError if a setting is wrong, `out` is not empty, or the base model cannot be
    loaded; CheckpointError if the checkpoint is missing, damaged, or cannot be exported;
    BackendError if its server failed.
    """
    config = make_settings(ExportConfig, given)
    out = Path(config.out).expanduser()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"out={config.out} exists and is not an empty folder; choose another")
    hub = None if config.push_to_hub is None else _hub(config.push_to_hub)
    origin = _origin(config)
    adapter = _adapter(origin)
    import transformers

    base = source_of(config.base_model or adapter.base_model)
    with writes(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        made = tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.")
    with made as scratch:
        folder = Path(scratch) / "export"
        folder.mkdir()
        unloaded = f"base model {base!r} could not be loaded"
        if config.format == "peft":
            write_peft(adapter, base, folder)
            shape = _pretrained(transformers.AutoConfig, base, unloaded)
            if ignored := ignored_by_peft(shape, folder):
                raise ConfigError(
                    f"peft would ignore {ignored} of the adapter's {2 * len(adapter.pairs)} "
                    f"tensors on {base}; export format=merged"
                )
        else:
            model = _pretrained(transformers.AutoModelForCausalLM, base, unloaded, dtype="auto")
            merge_into(model, adapter)
            model.save_pretrained(folder)
        unusable = f"{base!r} has no usable tokenizer"
        _pretrained(transformers.AutoTokenizer, base, unusable).save_pretrained(folder)
        (folder / "README.md").write_text(_card(config, origin, adapter))
        open_to_others(folder)
        if out.exists():
            out.rmdir()
        shutil.move(folder, out)
    print(
        f"{config.format} export of {origin.path} on {adapter.base_model}: {out}", file=sys.stderr
    )
    if hub is not None:
        print(f"uploaded: {_push(hub, str(config.push_to_hub), out)}", file=sys.stderr)
    return 0


def _hub(name: str) -> Any:
    """Return a client of the hub. Raises ConfigError for an impossible name, or without a token.
    Nothing is sent."""
    from huggingface_hub import HfApi, get_token, hf_hub_url

    try:
        hf_hub_url(name, "README.md")
    except ValueError as error:
        raise ConfigError(f"push_to_hub={name}: {' '.join(str(error).split())}") from error
    if get_token() is None:
        raise ConfigError(f"push_to_hub={name} needs a token: set HF_TOKEN, or run `hf auth login`")
    return HfApi()


def _push(hub: Any, name: str, folder: Path) -> str:
    """Upload the folder in one commit, into a repository that is made private if it is new, and
    return its address. Raises BackendError if the hub does not take it; the folder stays."""
    import httpx

    try:
        url = hub.create_repo(name, private=True, exist_ok=True)
        hub.upload_folder(
            repo_id=url.repo_id, folder_path=folder, commit_message="Export of code-rl"
        )
    except (OSError, ValueError, httpx.HTTPError) as error:
        said = " ".join(str(error).split())[:300]
        raise BackendError(
            f"push_to_hub={name}: the hub did not take it: {said}; the export is in {folder}"
        ) from error
    return str(url)


def _origin(config: ExportConfig) -> _Origin:
    """Return where the checkpoint is, its back end and its base model, from the settings or else
    the run's own record. Raises ConfigError for a name that is no checkpoint, CheckpointError for a
    damaged file."""
    if config.checkpoint.startswith(REMOTE):
        return _Origin(
            config.checkpoint, None, resolve_backend(config.backend), config.base_model, None
        )
    path = Path(config.checkpoint).expanduser()
    if path.is_file():
        return _Origin(str(path), None, "embedded", config.base_model, None)
    run, record = checkpoint_record(config.checkpoint)
    settings = read_config(run)
    backend = (
        config.backend if config.backend != "auto" else str(settings.get("backend", "embedded"))
    )
    named = config.base_model or settings.get("model_name")
    return _Origin(record["state_path"], run, resolve_backend(backend), named, int(record["step"]))


def _adapter(origin: _Origin) -> Adapter:
    """Read the adapter from this machine, or download it from its server first. Raises ConfigError
    for a `tinker://` path on the embedded engine, CheckpointError or BackendError if it cannot be
    read."""
    if not origin.path.startswith(REMOTE):
        return read_embedded(Path(origin.path))
    if origin.backend == "embedded":
        raise ConfigError(
            f"{origin.path} lives on a server; give backend=tinker or backend=http://host:port"
        )
    with tempfile.TemporaryDirectory() as folder:
        base_model = download_adapter(place_of(origin.backend), origin.path, Path(folder))
        return read_folder(Path(folder), origin.base_model or base_model)


def _pretrained(kind: Any, base: str, refusal: str, **how: Any) -> Any:
    """Load `base`, a folder or hub id, with a class of transformers; `how` are further arguments of
    its `from_pretrained`. Raises ConfigError that begins with `refusal` for any OSError or
    ValueError."""
    try:
        return kind.from_pretrained(base, **how)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{refusal}: {' '.join(str(error).split())[:300]}") from error


def _card(config: ExportConfig, origin: _Origin, adapter: Adapter) -> str:
    """Return the model card, with the run's settings and metrics if the adapter is a run's."""
    settings = read_config(origin.run) if origin.run is not None else None
    metrics = read_metrics(origin.run) if origin.run is not None else []
    base = config.base_model or adapter.base_model
    return model_card(
        adapter, base, config.format, Path(origin.path).name, settings, metrics, origin.steps
    )
