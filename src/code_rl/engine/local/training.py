"""The training client: requests queue in its lane and run in the order of submission."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import torch
from tinker import types
from tinker.lib.public_interfaces.api_future import AwaitableConcurrentFuture

from code_rl.engine.adapters import PREFIX
from code_rl.util.errors import BackendError, CheckpointError, ConfigError

from .hf import HfArchitecture, new_learner
from .learner import AdamState, check_adam
from .lora import Lora, LoraSettings
from .models import Model, model_info
from .passes import (
    TEMPERATURE,
    CustomLoss,
    EngineExample,
    Pass,
    differentiated,
    read_datums,
    read_pass,
    reweighted,
)
from .sampling import EmbeddedSamplingClient, Sampler, Snapshot
from .state import Saved, check_name, write_state
from .weights import Weights
from .worker import Lanes

T = TypeVar("T")


class EmbeddedTrainingClient:
    """One model in training, with the methods and results of `tinker.TrainingClient`.

    Every request is queued at once and runs after earlier ones. If a forward_backward fails, the
    next optim_step fails too and drops the accumulated gradient: a step is never taken with only
    part of its gradient.
    """

    def __init__(
        self,
        model: Model,
        settings: LoraSettings,
        sampler: Sampler,
        model_id: str,
        state_dir: Path | None,
        lanes: Lanes,
        tokens: int | None = None,
    ) -> None:
        """Begin with a new adapter from the seed. `state_dir` None refuses saving by name. `lanes`
        is the thread of all the service's models; `tokens` is the most of a micro-batch (None: the
        device's)."""
        self.model_id, self.settings = model_id, settings
        self.model = model
        self._learner = new_learner(
            model.weights, settings, tokens, lambda: cast(Weights, model.for_sampling)
        )
        self._lora = self._learner.lora
        self._lora.initialise()
        self._sampler = sampler
        self._state_dir = state_dir
        self._failure: BaseException | None = None
        self._lanes = lanes

    @property
    def checkpoint_bytes(self) -> int:
        """The size of a checkpoint on disk, in bytes: the adapter and Adam's two means. A gradient
        that waits for its step comes on top."""
        return 3 * self._lora.flat.numel() * self._lora.flat.element_size()

    def forward(
        self,
        data: Sequence[types.Datum],
        loss_fn: str,
        loss_fn_config: Mapping[str, float | str] | None = None,
    ) -> AwaitableConcurrentFuture[types.ForwardBackwardOutput]:
        """Return losses and log-probabilities of every position, without gradients.

        Raises ConfigError at once for an unknown loss or setting; the future raises DataError for
        malformed data.
        """
        how, given = read_pass(loss_fn, loss_fn_config), list(data)
        return self.submit(lambda: self._learner.forward(self._read(given, how), how))

    def forward_backward(
        self,
        data: Sequence[types.Datum],
        loss_fn: str,
        loss_fn_config: Mapping[str, float | str] | None = None,
    ) -> AwaitableConcurrentFuture[types.ForwardBackwardOutput]:
        """Do the same as `forward`, and add the gradient of the summed loss to the gradient
        accumulated since the last optim_step.

        The future raises ConfigError for an unknown loss or setting and DataError for malformed
        data; the next optim_step then fails too.
        """
        given = list(data)

        def run() -> types.ForwardBackwardOutput:
            """Check the request and compute its gradient, in its turn."""
            how = read_pass(loss_fn, loss_fn_config)
            return self._learner.forward_backward(self._read(given, how), how)

        return self._submit_backward(run)

    def forward_backward_custom(
        self,
        data: Sequence[types.Datum],
        loss_fn: CustomLoss,
        *,
        temperature: float = 1.0,
    ) -> AwaitableConcurrentFuture[types.ForwardBackwardOutput]:
        """Do a `forward_backward` with a custom loss, `loss_fn(data, logprobs) -> (loss, metrics)`,
        which runs on the engine's thread and must not wait for a training client.

        As in the SDK, `loss:sum` is the custom loss, and `surrogate_loss:sum` is the cross-entropy
        that has its gradient. `temperature`, which the SDK does not have, applies to the
        log-probabilities. The future raises ConfigError, DataError and any exception of `loss_fn`;
        the next optim_step then fails too.
        """
        given = list(data)

        def run() -> types.ForwardBackwardOutput:
            """Compute the log-probabilities, the caller's loss and its slopes, then the gradient
            from these."""
            how = read_pass("cross_entropy", {TEMPERATURE: temperature})
            forward = self._learner.forward(self._read(reweighted(given), how), how)
            weights, value, metrics = differentiated(given, loss_fn, forward)
            output = self._learner.forward_backward(
                self._read(reweighted(given, weights), how), how
            )
            surrogate = output.metrics.pop("loss:sum")
            output.metrics.update(metrics, **{"loss:sum": value, "surrogate_loss:sum": surrogate})
            return output

        return self._submit_backward(run)

    def optim_step(
        self, optim_params: object | None = None, *, adam_params: types.AdamParams | None = None
    ) -> AwaitableConcurrentFuture[types.OptimStepResponse]:
        """Take one AdamW step with the accumulated gradient, and reset it. Give the parameters by
        one of the two names.

        Raises ConfigError at once for another optimizer's parameters. The future raises
        BackendError if there is no gradient, if it is not finite, or if a forward_backward since
        the last step failed.
        """
        if (optim_params is None) == (adam_params is None):
            raise ConfigError("optim_step needs optim_params or adam_params, and not both")
        params = check_adam(optim_params if optim_params is not None else adam_params)

        def run() -> types.OptimStepResponse:
            """Take the step, or refuse it if a pass before it failed; the next step is free
            again."""
            failure, self._failure = self._failure, None
            if failure is not None:
                self._learner.gradient = None
                raise BackendError(
                    f"no step was taken: a forward_backward before it failed ({failure})"
                ) from failure
            return types.OptimStepResponse(metrics=self._learner.optim_step(params))

        return self.submit(run)

    def save_state(
        self, name: str, overwrite: bool = False
    ) -> AwaitableConcurrentFuture[types.SaveWeightsResponse]:
        """Save adapter, optimizer state and any accumulated gradient. The path in the response
        restores them bit for bit.

        Raises ConfigError at once for a bad name. The future raises ConfigError if the name is
        taken and `overwrite` is False, CheckpointError if the disk refuses.
        """
        return self._save(types.SaveWeightsResponse, name, "state", overwrite)

    def save_weights_for_sampler(
        self, name: str
    ) -> AwaitableConcurrentFuture[types.SaveWeightsForSamplerResponse]:
        """Save only the adapter, for `create_sampling_client(model_path=...)`. An earlier one of
        the same name is replaced. Raises ConfigError at once for a bad name or without a
        `state_dir`; the future raises CheckpointError if the disk refuses."""
        return self._save(types.SaveWeightsForSamplerResponse, name, "sampler", True)

    def save_weights_and_get_sampling_client(
        self, name: str | None = None
    ) -> AwaitableConcurrentFuture[EmbeddedSamplingClient]:
        """Return a future of a sampling client with the weights at this request's turn in the
        queue. `name` has no effect, as in the SDK."""
        del name
        return self.submit(self.sampling_client)

    def submit(self, operation: Callable[[], T]) -> AwaitableConcurrentFuture[T]:
        """Queue any operation on this model behind the earlier requests, and return the future of
        its result. It runs on the engine's thread. Raises BackendError after the service's
        `close`."""
        return self._lanes.submit(operation, self)

    def write(self, path: Path, training: bool, overwrite: bool) -> None:
        """Write the current model at once, bypassing the queue, so call it within `submit`: with
        optimizer and gradient, or for sampling only (`training` False). Raises ConfigError if the
        file exists and `overwrite` is false, CheckpointError if the disk refuses."""
        write_state(path, self._tensors(training), self._meta(training), overwrite)

    def refuse(self, error: Exception, backward: bool) -> AwaitableConcurrentFuture[None]:
        """Queue the failure of a refused pass: the future raises `error`. If the pass was backward,
        the next step fails too."""

        def run() -> NoReturn:
            """Raise the error in turn; after a backward pass, also make the next step fail."""
            if backward:
                self._failure = error
            raise error

        return self.submit(run)

    def sampling_client(self) -> EmbeddedSamplingClient:
        """Return a sampling client with the current weights, which later training does not change.
        It bypasses the queue, so call it within `submit`."""
        snapshot = Snapshot(self.model, self._learner.snapshot())
        return EmbeddedSamplingClient(self._sampler, snapshot)

    def get_tokenizer(self) -> Any:
        """Return the model's tokenizer, loaded on first use. Raises ConfigError if it has none."""
        return self.model.tokenizer

    def get_info(self) -> types.GetInfoResponse:
        """Return the model's name and id, its tokenizer's name, and the LoRA rank, at once."""
        model = self.model
        return model_info(
            self.model_id, model.weights.arch.family, model.name, model.source, self.settings.rank
        )

    def max_context_length(self) -> int:
        """Return the most tokens of prompt and completion together."""
        return self.model.weights.arch.max_context

    @property
    def notice(self) -> str:
        """A notice for users about how this model is computed; empty for the fast families."""
        arch = self.model.weights.arch
        if not isinstance(arch, HfArchitecture):
            return ""
        return (
            f"{arch.family} is trained through transformers: slower; sampler= with vLLM takes "
            "sampling off it"
        )

    def restore(self, saved: Saved, optimizer: bool) -> None:
        """Put a checkpoint's adapter into this model, all or none, and drop its gradient. With
        `optimizer` the checkpoint's optimizer state and gradient follow, else the optimizer is new.
        It bypasses the queue.

        Raises CheckpointError if the checkpoint does not fit this model, or has no optimizer state.
        """
        meta, lora, path = saved.meta, self._lora, saved.path
        if meta.get("base_fingerprint") != self.model.fingerprint:
            raise CheckpointError(
                f"checkpoint {path} belongs to another base model than {self.model.name!r}"
            )
        if (
            meta.get("modules") != [m.name for m in lora.modules]
            or meta.get("rank") != self.settings.rank
        ):
            raise CheckpointError(
                f"checkpoint {path} has another LoRA rank or other adapted modules than this client"
            )
        if optimizer and meta.get("kind") != "state":
            raise CheckpointError(
                f"checkpoint {path} holds sampler weights, without optimizer state"
            )

        def read(part: str) -> torch.Tensor:
            """Return the tensors of one part as a flat tensor on the model's device."""
            return _gather(lora, saved, part).to(lora.flat.device)

        flat, adam = read(""), AdamState.fresh(lora.flat)
        gradient: torch.Tensor | None = None
        if optimizer:
            adam = AdamState(read("adam.mean."), read("adam.square."), int(meta["adam_steps"]))
            gradient = read("gradient.") if meta["has_gradient"] else None
        lora.flat.copy_(flat)
        self._learner.adam, self._learner.gradient, self._failure = adam, gradient, None
        self._learner.weights_changed()

    def _read(self, data: Sequence[types.Datum], how: Pass) -> list[EngineExample]:
        """Return the datums as examples, checked. Raises DataError."""
        return read_datums(data, how.loss, self.model.weights.arch)

    def _submit_backward(
        self, operation: Callable[[], types.ForwardBackwardOutput]
    ) -> AwaitableConcurrentFuture[types.ForwardBackwardOutput]:
        """Queue an operation that adds a gradient; its failure also makes the next step fail."""

        def run() -> types.ForwardBackwardOutput:
            """Run the pass; a failure also fails the next step."""
            try:
                return operation()
            except BaseException as error:
                self._failure = error
                raise

        return self.submit(run)

    def _save(
        self,
        answer: Callable[..., T],
        name: str,
        kind: str,
        overwrite: bool,
    ) -> AwaitableConcurrentFuture[T]:
        """Queue a save behind the passes queued so far; `answer` makes the SDK's response with the
        file's `path`. `kind` is `state` or `sampler`. Raises ConfigError at once for a bad name or
        without a `state_dir`."""
        if self._state_dir is None:
            raise ConfigError(
                "this embedded service has no state_dir: pass one to EmbeddedService to save "
                "checkpoints"
            )
        check_name(name)
        path = self._state_dir / f"{name}.{kind}.safetensors"

        def run() -> T:
            """Write the file in its turn, and return the response."""
            self.write(path, kind == "state", overwrite)
            return answer(path=str(path))

        return self.submit(run)

    def _tensors(self, training: bool) -> dict[str, torch.Tensor]:
        """Return the adapter's tensors by name, which are views; for `training` also Adam's state
        and the accumulated gradient."""
        found = _named(self._lora, self._lora.flat, "")
        if training:
            found |= _named(self._lora, self._learner.adam.mean, "adam.mean.")
            found |= _named(self._lora, self._learner.adam.square, "adam.square.")
            if self._learner.gradient is not None:
                found |= _named(self._lora, self._learner.gradient, "gradient.")
        return found

    def _meta(self, training: bool) -> dict[str, Any]:
        """Return the facts that a saved file carries beside its tensors, all JSON-able. `restore`
        and later versions read them."""
        return {
            "kind": "state" if training else "sampler",
            "base_model": self.model.name,
            "base_fingerprint": self.model.fingerprint,
            **asdict(self.settings),
            "modules": [m.name for m in self._lora.modules],
            "adam_steps": self._learner.adam.steps,
            "has_gradient": self._learner.gradient is not None,
        }


def _named(lora: Lora, flat: torch.Tensor, prefix: str) -> dict[str, torch.Tensor]:
    """Return views of a flat tensor by peft's names, below `prefix`. The names are those in
    checkpoints."""
    a, b = lora.views(flat)
    named = {f"{prefix}{PREFIX}{name}.lora_A.weight": tensor for name, tensor in a.items()}
    return named | {f"{prefix}{PREFIX}{name}.lora_B.weight": tensor for name, tensor in b.items()}


def _gather(lora: Lora, saved: Saved, prefix: str) -> torch.Tensor:
    """Return copies of the saved tensors below `prefix` as one flat tensor, fp32, on the host.
    Raises KeyError if one is missing."""
    flat = torch.zeros(lora.flat.shape, dtype=torch.float32)
    for name, view in _named(lora, flat, prefix).items():
        view.copy_(saved.tensors[name])
    return flat
