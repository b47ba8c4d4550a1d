"""The settings that the engine reads of a run or an evaluation."""

from __future__ import annotations

from typing import Protocol


class EngineSettings(Protocol):
    """Where the model lives, which model, and how it is sampled and trained. `training.Config` is
    one."""

    @property
    def backend(self) -> str: ...  # noqa: D102
    @property
    def model_name(self) -> str | None: ...  # noqa: D102
    @property
    def device(self) -> str: ...  # noqa: D102
    @property
    def dtype(self) -> str: ...  # noqa: D102
    @property
    def threads(self) -> int | None: ...  # noqa: D102
    @property
    def renderer(self) -> str: ...  # noqa: D102
    @property
    def sampler(self) -> str | None: ...  # noqa: D102
    @property
    def sampler_dir(self) -> str | None: ...  # noqa: D102
    @property
    def lora_rank(self) -> int: ...  # noqa: D102
    @property
    def loss(self) -> str: ...  # noqa: D102
    @property
    def loss_config(self) -> dict[str, float]: ...  # noqa: D102
    @property
    def temperature(self) -> float: ...  # noqa: D102
    @property
    def top_p(self) -> float: ...  # noqa: D102
    @property
    def top_k(self) -> int: ...  # noqa: D102
    @property
    def longest_completion(self) -> int: ...  # noqa: D102
    @property
    def checkpoint_ttl_days(self) -> float | None: ...  # noqa: D102
    @property
    def patience(self) -> float: ...  # noqa: D102
    @property
    def seed(self) -> int: ...  # noqa: D102
