"""The embedded service: it loads base models and makes clients."""

from __future__ import annotations

import itertools
import secrets
from pathlib import Path

import torch
from tinker import types
from tinker.lib.public_interfaces.api_future import AwaitableConcurrentFuture

from code_rl.engine.names import built_in_context
from code_rl.engine.places import BUILT_IN
from code_rl.util.errors import ConfigError

from .device import Device, preferred
from .lora import LoraSettings
from .memory import MemoryPlan
from .models import Model, load_model, supported
from .sampling import QUIET_S, EmbeddedSamplingClient, Sampler, Snapshot
from .state import read_state
from .training import EmbeddedTrainingClient
from .worker import Lanes

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class EmbeddedService:
    """An in-process service with the methods of `tinker.ServiceClient`.

    `device` is auto (cuda, then mps, then cpu) or a torch device. `dtype` is auto (bfloat16 on a
    device that counts its memory, such as cuda, else float32), float32 or bfloat16, and applies to
    weights and activations; LoRA and optimizer state are always fp32. `threads` sets torch's thread
    count for the process (None: unchanged). Checkpoints are written to `state_dir`; without it,
    saving is refused. Samples are drawn together with those that arrive within `quiet_s` seconds.

    Raises ConfigError for a setting that this machine does not support.
    """

    def __init__(
        self,
        device: str = "auto",
        dtype: str = "auto",
        threads: int | None = None,
        state_dir: str | Path | None = None,
        quiet_s: float = QUIET_S,
    ) -> None:
        """Load no model yet. `threads` changes torch's thread count for the whole process (None:
        unchanged); without `state_dir` saving is refused; `quiet_s` is in seconds. Raises
        ConfigError for a device or dtype that this machine does not support."""
        self.device = resolve_device(device)
        self.dtype = resolve_dtype(dtype, self.device)
        self.state_dir = Path(state_dir).expanduser().absolute() if state_dir is not None else None
        if threads is not None:
            torch.set_num_threads(threads)
        self._sampler = Sampler(quiet_s)
        self._tokens: int | None = None
        self._trainer, self._loader = Lanes("embedded-trainer"), Lanes("embedded-loader")
        self.models: dict[str, Model] = {}
        self._ids = itertools.count()

    def create_lora_training_client(
        self,
        base_model: str,
        rank: int = 32,
        seed: int | None = None,
        train_mlp: bool = True,
        train_attn: bool = True,
        train_unembed: bool = True,
    ) -> AwaitableConcurrentFuture[EmbeddedTrainingClient]:
        """Return a future of a client that trains a new adapter on `base_model`.

        `base_model` is `tiny`, `smollm2`, a local Hugging Face folder, a .gguf file or a hub id.
        `seed` fixes the initial adapter (None: a random one). `train_unembed` also adapts the
        unembedding; if it is tied to the embedding, only its use as unembedding changes. Raises
        ConfigError at once for a bad rank or seed; the future raises it for a model that cannot be
        loaded.
        """
        chosen = seed if seed is not None else secrets.randbits(63)
        settings = LoraSettings(rank, chosen, train_mlp, train_attn, train_unembed)
        return self._loader.submit(lambda: self._client(base_model, settings))

    def create_training_client_from_state(
        self, path: str, base_model: str | None = None
    ) -> AwaitableConcurrentFuture[EmbeddedTrainingClient]:
        """Return a future of a client with a saved adapter and a new optimizer. `base_model`
        replaces the recorded name (None: that name) and must be the same model. The future may
        raise CheckpointError and ConfigError."""
        return self._loader.submit(lambda: self._restored(path, base_model, optimizer=False))

    def create_training_client_from_state_with_optimizer(
        self, path: str, base_model: str | None = None
    ) -> AwaitableConcurrentFuture[EmbeddedTrainingClient]:
        """Return a future of a client that continues bit for bit from `save_state`. `base_model`
        replaces the recorded name (None: that name) and must be the same model. The future may
        raise CheckpointError, also for sampler weights, and ConfigError."""
        return self._loader.submit(lambda: self._restored(path, base_model, optimizer=True))

    def create_sampling_client(
        self, model_path: str | None = None, base_model: str | None = None
    ) -> AwaitableConcurrentFuture[EmbeddedSamplingClient]:
        """Return a future of a client that samples from saved weights (`model_path`, training state
        or sampler weights) or from a base model. Raises ConfigError at once without either; the
        future may raise CheckpointError and ConfigError."""
        if model_path is None and base_model is None:
            raise ConfigError("create_sampling_client needs model_path or base_model")

        def create() -> EmbeddedSamplingClient:
            """Load the weights on the loader's thread, and return a client that samples from
            them."""
            if model_path is not None:
                return self._restored(model_path, base_model, optimizer=False).sampling_client()
            assert base_model is not None
            model = self._model(base_model)
            return EmbeddedSamplingClient(self._sampler, Snapshot(model, model.for_sampling))

        return self._loader.submit(create)

    def get_server_capabilities(self) -> types.GetServerCapabilitiesResponse:
        """Return the models known by name: the built-in model and those already loaded. Local
        folders and hub ids work too."""
        return types.GetServerCapabilitiesResponse(supported_models=supported(self.contexts()))

    def contexts(self) -> dict[str, int]:
        """Return the context in tokens of each model known by name: the built-in one, if it is
        installed, and those in memory."""
        loaded = {name: m.weights.arch.max_context for name, m in list(self.models.items())}
        built_in = built_in_context()
        return {**({BUILT_IN: built_in} if built_in is not None else {}), **loaded}

    def close(self) -> None:
        """Refuse further requests; queued ones are still answered, unless the process ends
        first."""
        for part in (self._loader, self._trainer, self._sampler):
            part.close()

    def load(self, base_model: str) -> AwaitableConcurrentFuture[Model]:
        """Return a future of a base model, which is then in memory (`models`). The future raises
        ConfigError for a model that cannot be loaded."""
        return self._loader.submit(lambda: self._model(base_model))

    def follow(self, plan: MemoryPlan) -> None:
        """Use the plan's micro-batch for models made from now on, and its caches for the
        sampler."""
        self._tokens = plan.tokens
        # Beside a vLLM of the run's own, the engine's sampler only scores single answers.
        self._sampler.cache_bytes = 0 if plan.vllm else plan.cache_bytes

    def _model(self, name: str) -> Model:
        """Return a base model, loaded on first use and kept in `models`. Call it on the loader's
        thread. Raises ConfigError."""
        # Only the loader's thread adds models that are not in memory.
        model = self.models.get(name)
        if model is None:
            model = self.models[name] = load_model(name, self.device, self.dtype)
        return model

    def _client(self, base_model: str, settings: LoraSettings) -> EmbeddedTrainingClient:
        """Return a client with a new adapter. Call it on the loader's thread. Raises
        ConfigError."""
        model_id = f"embedded-{next(self._ids)}"
        return EmbeddedTrainingClient(
            self._model(base_model),
            settings,
            self._sampler,
            model_id,
            self.state_dir,
            self._trainer,
            self._tokens,
        )

    def _restored(
        self, path: str, base_model: str | None, optimizer: bool
    ) -> EmbeddedTrainingClient:
        """Return a client with a saved adapter, and with `optimizer` also its optimizer state and
        gradient. Call it on the loader's thread. Raises CheckpointError, and ConfigError for the
        model."""
        saved = read_state(Path(path))
        client = self._client(
            base_model or str(saved.meta["base_model"]), LoraSettings.read(saved.meta)
        )
        client.restore(saved, optimizer)
        return client


def resolve_device(name: str) -> torch.device:
    """Return the torch device that a setting names; `auto` is cuda, then mps, then cpu. Raises
    ConfigError if this machine does not have it."""
    if name == "auto":
        return preferred()
    try:
        torch.empty(0, device=name)
        return torch.device(name)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"device={name!r} is not available with torch {torch.__version__} "
            f"({str(error).splitlines()[0]}); give device=auto, or install a driver and a torch "
            "for it (pytorch.org/get-started)"
        ) from error


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype of weights and activations; `auto` is the device's own. It is float32 for
    bfloat16 on a CPU that cannot multiply it. Raises ConfigError for an unknown one."""
    if name == "auto":
        return Device(device).dtype
    if name not in _DTYPES:
        raise ConfigError(f"dtype={name!r} must be auto, {' or '.join(_DTYPES)}")
    return _DTYPES[name] if multiplies_bfloat16(device) else torch.float32


def multiplies_bfloat16(device: torch.device) -> bool:
    """Return False for a CPU without instructions for bfloat16, where it is 100 times slower than
    float32."""
    return device.type != "cpu" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
