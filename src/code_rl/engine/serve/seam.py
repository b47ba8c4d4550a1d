"""The seam of the server: whatever has these methods can train and sample behind `code-rl
serve`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tinker import types

from code_rl.engine.local.lora import LoraSettings

LossConfig = Mapping[str, float | str] | None


@dataclass(frozen=True)
class ModelFacts:
    """What is known of a loaded base model; `context` is in tokens."""

    family: str
    tokenizer: str
    context: int


@dataclass
class Load:
    """What an engine has done and holds; `idle_s` counts the seconds since there was something to
    do."""

    batches: int = 0
    batched_requests: int = 0
    operations_waiting: int = 0
    samples_waiting: int = 0
    models: int = 0
    snapshots: int = 0
    idle_s: float = 0.0


class Engine(Protocol):
    """One base model, the adapters in training on it, and the weights that are sampled from.

    Calls return at once; what concerns one adapter (`run`, its id) is done in the order of the
    calls. Futures raise CodeRLError.
    """

    loaded: Future[ModelFacts]

    def create(
        self, run: str, lora: LoraSettings | None, file: Path | None = None, optimizer: bool = False
    ) -> Future[LoraSettings]:
        """A fresh adapter, or (`lora` None) the one that `save` wrote to `file`, with its optimizer
        where wanted."""

    def check_pass(self, data: Sequence[types.Datum], loss_fn: str, config: LossConfig) -> None:
        """Raise InputError for a pass that could not be computed; the model is loaded."""

    def run_pass(
        self,
        run: str,
        data: Sequence[types.Datum],
        loss_fn: str,
        config: LossConfig,
        backward: bool,
    ) -> Future[types.ForwardBackwardOutput]:
        """Losses and log-probabilities; `backward` adds the gradient to what has accumulated."""

    def refuse(self, run: str, error: Exception, backward: bool) -> Future[None]:
        """Take the turn of a pass that was refused: the future raises `error`; after a backward one
        the next step fails too."""

    def optim_step(self, run: str, params: types.AdamParams) -> Future[types.OptimStepResponse]:
        """One step with the accumulated gradient, never with part of it."""

    def save(
        self, run: str, file: Path, training: bool, overwrite: bool, keep: bool = False
    ) -> Future[None]:
        """Write the adapter, with optimizer and gradient where `training`; `keep`: it will be
        sampled from at once."""

    def load(self, run: str, file: Path, optimizer: bool) -> Future[None]:
        """Replace an adapter by a saved one."""

    def drop(self, run: str) -> Future[None]:
        """Forget an adapter."""

    def sample(
        self, weights: Path | None, request: types.SampleRequest, order: int
    ) -> Future[types.SampleResponse]:
        """Draw from saved weights, or from the base model. `order` is the client's own number.

        Raises InputError, or FileNotFoundError where the weights are gone, at once.

        Requests for the same weights may be drawn as one batch, in the order of these numbers. The
        model is loaded.
        """

    def load_now(self) -> Load:
        """What waits, is held and was done."""

    def close(self) -> None:
        """Accept nothing more; what is queued still runs."""


class Host(Protocol):
    """Where engines come from. `losses` maps each loss to the settings that it takes."""

    losses: Mapping[str, frozenset[str]]

    def start(self, name: str) -> Engine:
        """Begin to load a base model."""

    def context_of(self, name: str) -> int:
        """Tokens of context of a model that could be loaded, from its configuration alone; raises
        ConfigError for any other."""
