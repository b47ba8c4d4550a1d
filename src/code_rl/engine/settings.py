"""The settings of a training run that the engine reads beside those that it shares with an
evaluation (`SamplingOptions`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """The settings that only training has, by the names of the run's; the defaults suit an
    evaluation. `loss` is None if nothing is trained."""

    loss: str | None = None
    loss_config: Mapping[str, float] = field(default_factory=dict)
    lora_rank: int = 32
    longest_completion: int = 0
    checkpoint_ttl_days: float | None = None
    sampler: str | None = None
    sampler_dir: str | None = None
    vllm_command: str | None = None

    @property
    def starts_vllm(self) -> bool:
        """True if the run starts a vLLM server itself."""
        return self.sampler == "vllm"
