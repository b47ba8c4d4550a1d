"""State on disk: one safetensors file per checkpoint, written atomically and verified when it is
read.

The file holds the adapter (names as peft writes them), and for training state Adam's moments and
any gradient that waits for its step. Its metadata carries a format version, the settings that the
state belongs to, and a SHA-256 over settings and tensors.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from code_rl.util.errors import CheckpointError, ConfigError
from code_rl.util.files import write_lines_atomically

FORMAT = "code-rl-embedded"
VERSION = 1
SPARE_BYTES = 1 << 18
"""What must be left beside a checkpoint, for the lines that name it."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True)
class Saved:
    """A checkpoint read back: its settings and its tensors (on the CPU)."""

    path: Path
    meta: dict[str, Any]
    tensors: dict[str, Tensor]


def check_name(name: str) -> None:
    """Raise ConfigError for a checkpoint name that is not a plain file name: at most 128 letters,
    digits, `.`, `_` and `-`, of which the first is a letter or digit."""
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"checkpoint name {name!r} must be 1 to 128 letters, digits, '.', '_' or '-', not "
            "starting with '.'"
        )


def write_state(
    path: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], overwrite: bool
) -> None:
    """Write a checkpoint at once or not at all: temporary name, fsync, rename, fsync of the
    directory. Tensors may be on any device; `meta` must be JSON-able.

    Raises ConfigError when it exists and `overwrite` is false, CheckpointError when the disk is
    full or refuses.
    """
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    settings = json.dumps(dict(meta), sort_keys=True)
    header = {
        "format": FORMAT,
        "version": str(VERSION),
        "settings": settings,
        "sha256": _digest(settings, plain),
    }
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.exists() and not overwrite:
            raise ConfigError(f"checkpoint {path} exists; pass overwrite=True or another name")
        data = save(plain, metadata=header)
        free = shutil.disk_usage(path.parent).free
        if free < len(data) + SPARE_BYTES:  # nothing is begun then
            raise CheckpointError(
                f"the disk of {path.parent} has {free / 1e6:.1f} MB left and a checkpoint takes "
                f"{len(data) / 1e6:.1f} MB; make room and go on"
            )
        write_lines_atomically(path, (data,))
    except OSError as error:
        raise CheckpointError(f"checkpoint {path} could not be written: {error}") from error


def read_state(path: Path) -> Saved:
    """Read and verify a checkpoint; raises CheckpointError when it is missing, damaged, or of an
    unknown version."""
    if not path.is_file():
        raise CheckpointError(f"checkpoint {path} does not exist")
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            # Not a mapping
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"checkpoint {path} is damaged: {error}") from error
    if (header.get("format"), header.get("version")) != (FORMAT, str(VERSION)):
        raise CheckpointError(f"checkpoint {path} is none of {FORMAT} in version {VERSION}")
    settings = header.get("settings", "")
    if header.get("sha256") != _digest(settings, tensors):
        raise CheckpointError(
            f"checkpoint {path} is damaged: its contents do not match their SHA-256"
        )
    return Saved(path, json.loads(settings), tensors)


def _digest(settings: str, tensors: Mapping[str, Tensor]) -> str:
    """Return a hash of the settings, and of each tensor's name, type, shape and bytes. Files
    contain it, so it must not change."""
    digest = hashlib.sha256(settings.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        if tensor.numel():
            digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
