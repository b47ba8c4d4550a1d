"""Model names: the built-in one, `smollm2`, local folders, .gguf files and hub ids, without loading anything into memory."""

from __future__ import annotations

import json
from pathlib import Path

from code_rl.backends.gguf import folder_of, smollm2_source
from code_rl.errors import ConfigError

BUILT_IN = "tiny"
SMOLLM2 = "smollm2"
BUILT_IN_FOLDER = Path(__file__).parent / "embedded" / BUILT_IN


def source_of(name: str) -> str:
    """Return the folder or hub id behind a model name; raises ConfigError when it can be neither."""
    if name == BUILT_IN:
        if built_in_context() is None:
            raise ConfigError(f"model {name!r}: this installation lacks the built-in model's files ({BUILT_IN_FOLDER})")
        return str(BUILT_IN_FOLDER)
    if name == SMOLLM2:
        return smollm2_source()
    folder = Path(name).expanduser()
    if folder.suffix == ".gguf" and folder.is_file():
        return str(folder_of(folder))
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ConfigError(f"model {name!r} is a folder without config.json")
        return str(folder)
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise ConfigError(
            f"model {name!r} is unknown: neither {BUILT_IN!r} nor {SMOLLM2!r}, a local folder, a .gguf file, or a hub id like org/name"
        )
    return name


def built_in_context() -> int | None:
    """The built-in model's context length in tokens; None when this installation lacks its files."""
    config = BUILT_IN_FOLDER / "config.json"
    return int(json.loads(config.read_text())["max_position_embeddings"]) if config.is_file() else None
