"""The facts about a device that the engine asks for: memory, number type, budgets, waiting.

No other module asks for a device by its kind. An accelerator is any device whose torch module
counts memory (`torch.cuda`, `torch.xpu`, a plugin); its settings follow from that alone.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Any

import torch

_PREFERRED = ("cuda", "mps")
_UNKNOWN_MEMORY = 8 << 30
# Tokens of a micro-batch: enough rows to fill the device's matrix units.
_HOST_TOKENS, _ACCELERATOR_TOKENS = 2048, 8192
# Decoding steps between two looks at stops. A look waits for the device; up to LOOK_EVERY - 1
# tokens of a completion that has stopped are dropped.
_LOOK_EVERY = 8

# While a plan of memory is traced in this thread: `fuses` says whether for a device that fuses, and
# `norm` stands in for its kernel.
tracing = threading.local()


@dataclass(frozen=True)
class Device:
    """A torch device as the engine sees it. Byte counts are read anew at each call."""

    place: torch.device

    @property
    def is_accelerator(self) -> bool:
        """True if the device has memory of its own, which its torch module counts."""
        return self._counts is not None

    @property
    def name(self) -> str:
        """The card's name, or the kind of device if it has none."""
        if self._counts is None:
            return self.place.type
        named = getattr(self._counts, "get_device_name", None)
        return str(named(self.place)) if named is not None else str(self.place)

    @property
    def dtype(self) -> torch.dtype:
        """The number type of weights and activations for dtype=auto: bfloat16 on an accelerator,
        else float32."""
        return torch.bfloat16 if self.is_accelerator else torch.float32

    @property
    def total(self) -> int:
        """Bytes of memory: the card's, or the machine's."""
        if self._counts is not None:
            return int(self._counts.mem_get_info(self.place)[1])
        if not hasattr(os, "sysconf"):  # Windows
            return _UNKNOWN_MEMORY
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    @property
    def used(self) -> int:
        """Bytes that this process's tensors take on an accelerator; 0 elsewhere."""
        return int(self._counts.memory_allocated(self.place)) if self._counts is not None else 0

    @property
    def free(self) -> int:
        """Bytes that further tensors may take; half of the machine's memory without an
        accelerator."""
        if self._counts is None:
            return self.total // 2
        # Memory cached by the allocator is free for use, but the driver counts it as used.
        kept = int(self._counts.memory_reserved(self.place)) - self.used
        return int(self._counts.mem_get_info(self.place)[0]) + kept

    @property
    def cache_bytes(self) -> int:
        """Bytes that the sampler's caches may take without a plan of memory: half of the free
        ones."""
        return self.free // 2

    @property
    def tokens(self) -> int:
        """The most tokens of a micro-batch: 8,192 on an accelerator, else 2,048."""
        return _ACCELERATOR_TOKENS if self.is_accelerator else _HOST_TOKENS

    @property
    def look_every(self) -> int:
        """Decoding steps between two looks at the sampled tokens; 1 where a look costs nothing."""
        return _LOOK_EVERY if self.is_accelerator else 1

    def synchronize(self) -> None:
        """Wait until the device has done all that it was given. Does nothing without an
        accelerator."""
        if self._counts is not None:
            self._counts.synchronize(self.place)

    @property
    def _counts(self) -> Any:
        """The torch module that counts the device's memory, or None."""
        module = getattr(torch, self.place.type, None)
        return module if hasattr(module, "mem_get_info") else None


def fuses(place: torch.device) -> bool:
    """Return True where operations are joined to launch fewer: on any device but the processor,
    whose results are pinned bit for bit and which launches nothing. While memory is planned, the
    answer is the planned device's."""
    return getattr(tracing, "fuses", place.type != "cpu")


def preferred() -> torch.device:
    """Return the first kind of device that this machine has: cuda, mps, cpu."""
    for kind in _PREFERRED:
        if torch.get_device_module(kind).is_available():
            return torch.device(kind)
    return torch.device("cpu")
