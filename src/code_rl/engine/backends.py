"""One factory for all back ends: nothing else in the loop decides where the model lives."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from code_rl.engine.losses import POLICY_LOSSES
from code_rl.engine.places import BackendKind, Capabilities, TrainingOptions, place_of
from code_rl.engine.remote import ready
from code_rl.util.concurrency import interruptible
from code_rl.util.errors import BackendError, CheckpointError, ConfigError, require
from code_rl.util.options import SamplingOptions

if TYPE_CHECKING:
    import tinker

    from code_rl.engine.local.memory import MemoryPlan
    from code_rl.engine.probes import Survey
    from code_rl.engine.remote import RemoteService, RemoteTrainingClient
    from code_rl.engine.vllm import Vllm


@dataclass(frozen=True, slots=True)
class Backend:
    """A training client with the facts that the loop needs about its model and service. `context`
    is in tokens.

    `base_sampler` makes a sampling client of the base model without an adapter; `close` releases
    the service's resources. `vllm`, if set, samples instead of the trainer.
    """

    description: str
    trainer: tinker.TrainingClient
    tokenizer: Any
    context: int
    capabilities: Capabilities
    base_sampler: Callable[[], Awaitable[tinker.SamplingClient]]
    close: Callable[[], object]
    vllm: Vllm | None = None

    async def sync_weights(self) -> tinker.SamplingClient:
        """Return a sampling client with the current weights, which later training does not change.
        With vLLM, the weights are loaded into its server under a new name. Raises BackendError."""
        if self.vllm is not None:
            return cast(
                "tinker.SamplingClient", await self.vllm.snapshot(cast("Any", self.trainer))
            )
        sampler: tinker.SamplingClient = await ready(
            self.trainer.save_weights_and_get_sampling_client()
        )
        return sampler


async def preflight(
    options: SamplingOptions, training: TrainingOptions | None = None
) -> Survey | None:
    """Ask a remote back end whether this run can begin, and return its answers. The embedded engine
    returns None, after checks of its packages, its model and its vLLM sampler. Nothing is written
    or spent. Without `training`, `sampler=` is not checked.

    Raises ConfigError within seconds: there is no connection, the key is refused, the model is
    unknown, the protocol's generation differs, or a package of the embedded engine is missing or
    too old.
    """
    from code_rl.engine.probes import sdk_is_newer, survey

    if options.backend == BackendKind.EMBEDDED:
        require("engine", "backend=embedded", "torch")
        if not sdk_is_newer():
            raise ConfigError(
                "backend=embedded needs a newer tinker SDK than the one installed; run: pip "
                "install 'tinker>=0.38'"
            )
        if training is not None and training.sampler is not None:
            from code_rl.engine.vllm import check_vllm

            await asyncio.to_thread(check_vllm, training)
        if options.model_name is not None:
            from code_rl.engine.local.models import context_of

            await asyncio.to_thread(context_of, options.model_name)
        return None

    return await asyncio.to_thread(survey, place_of(options.backend), options.model_name)


async def connect(
    options: SamplingOptions,
    training: TrainingOptions,
    state_dir: Path,
    state_path: str | None = None,
    found: Survey | None = None,
) -> Backend:
    """Create the training client, either new (`state_path` None) or from the checkpoint
    `state_path`, with its optimizer. The caller calls the result's `close`.

    `state_dir` is the folder for the embedded engine's checkpoints. `found` is the result of
    `preflight`, which is called if it is None. Raises ConfigError for an unknown model or a setting
    that cannot be honored, CheckpointError for a missing or damaged checkpoint, and BackendError if
    the server failed.
    """
    found = found or await preflight(options, training)
    if found is None:
        if state_path is not None and "://" in state_path:
            raise ConfigError(
                f"backend=embedded cannot load {state_path}, which a server keeps; give that "
                "server as backend="
            )
        return await _connect_embedded(options, training, state_dir, state_path)
    return await _connect_remote(options, training, state_path, found)


async def _connect_embedded(
    options: SamplingOptions, training: TrainingOptions, state_dir: Path, state_path: str | None
) -> Backend:
    """Start the in-process engine, on an accelerator with a plan of its memory. `training.sampler`
    makes vLLM the sampler. Raises ConfigError without a model's name, and as `connect` does."""
    from code_rl.engine.local import EmbeddedService
    from code_rl.engine.local.device import Device
    from code_rl.engine.local.memory import plan_of
    from code_rl.engine.local.passes import loss_settings

    if options.model_name is None:
        raise ConfigError("model_name is not set; give model_name=tiny, a local folder or a hub id")
    name = options.model_name
    service = EmbeddedService(options.device, options.dtype, options.threads, state_dir)
    device, memory = Device(service.device), None
    if device.is_accelerator:  # elsewhere the system's memory gives way
        memory = await asyncio.to_thread(plan_of, options, training, device, service.dtype)
    if memory is not None:
        service.follow(memory)
    if state_path is not None:
        trainer = await ready(service.create_training_client_from_state_with_optimizer(state_path))
    else:
        trainer = await ready(
            service.create_lora_training_client(name, rank=training.lora_rank, seed=options.seed)
        )
    backend = Backend(
        description=f"the embedded engine ({service.device}, "
        f"{str(service.dtype).removeprefix('torch.')}){trainer.notice and '; ' + trainer.notice}"
        + (f"; {memory}" if memory is not None else ""),
        trainer=trainer,
        tokenizer=trainer.get_tokenizer(),
        context=trainer.max_context_length(),
        capabilities=Capabilities(
            BackendKind.EMBEDDED, losses=loss_settings(), scaled_logprobs=True
        ),
        base_sampler=lambda: ready(service.create_sampling_client(base_model=name)),
        close=service.close,
    )
    return (
        backend
        if training.sampler is None
        else await _sampled_by_vllm(backend, options, training, state_dir, service.dtype, memory)
    )


async def _sampled_by_vllm(
    backend: Backend,
    options: SamplingOptions,
    training: TrainingOptions,
    state_dir: Path,
    dtype: object,
    memory: MemoryPlan | None,
) -> Backend:
    """Return the same trainer with vLLM, started or found, as its sampler. The context, in tokens,
    is the shorter of the two. `dtype` is the trainer's, and `memory` its plan, if it has one.

    Raises ConfigError if the server cannot be used. On any error, `backend` and an own server are
    closed.
    """
    from code_rl.engine.checkpoints import VLLM_LOG
    from code_rl.engine.local.memory import load_of
    from code_rl.engine.vllm import Vllm, find_vllm, vllm_at
    from code_rl.engine.vllm_server import OwnVllm

    closing, own = ExitStack(), None
    closing.callback(backend.close)
    try:
        if training.starts_vllm:
            rows, share = (1, None) if memory is None else (memory.rows, memory.share)
            # A prompt that is longer than planned may take half of the caches.
            longest = load_of(options, training, backend.context).longest * max(1, rows // 2)
            context, number = min(longest, backend.context), str(dtype).removeprefix("torch.")
            log = state_dir.parent / VLLM_LOG
            own = OwnVllm(options, training, number, context, share, log)
            closing.callback(own.close)
            await own.ready()
            place = own.place
        else:
            place = vllm_at(str(training.sampler))
        model, context, held = await asyncio.to_thread(find_vllm, place)
        wanted = min(max(options.max_tokens, training.longest_completion) + 1, backend.context)
        if context < wanted:
            raise ConfigError(
                f"max_tokens={wanted - 1} does not fit into the {context} tokens of "
                f"sampler={place.url}; start it with --max-model-len {backend.context}"
            )
        check = (lambda: None) if own is None else own.check
        vllm = Vllm(options, training.sampler_dir, place, state_dir, check)
        closing.callback(vllm.close)
        await vllm.begin(cast("Any", backend.trainer), held)
    except BaseException:
        closing.close()
        raise
    description = f"{backend.description}, sampled by {model} at {place.url}"
    return replace(
        backend,
        description=description,
        context=min(context, backend.context),
        close=closing.close,
        vllm=vllm,
    )


async def _connect_remote(
    options: SamplingOptions, training: TrainingOptions, state_path: str | None, found: Survey
) -> Backend:
    """Open a session and probe, with requests of a few tokens, each feature that the run depends
    on. `found` is the result of `preflight`. Raises as `connect` does, and closes the session on
    any error."""
    from code_rl.engine import probes
    from code_rl.engine.remote import RemoteService

    place, name = place_of(options.backend), options.model_name or ""
    ttl = training.checkpoint_ttl_days
    context = probes.context_of(name, found.models[name])
    ttl_s = None if ttl is None else round(ttl * 86400)
    service = await asyncio.to_thread(RemoteService, place, options.outage_timeout, ttl_s)
    try:
        if state_path is not None:
            trainer = await _restored(service, state_path)
        else:
            trainer = await service.training_client(
                "create_lora_training_client", name, rank=training.lora_rank, seed=options.seed
            )
        info = await trainer.get_info()
        with interruptible():
            tokenizer = probes.load_tokenizer(name, info.model_data.tokenizer_id)
        token = int(tokenizer.encode("a", add_special_tokens=False)[0])
        scaled = None
        if training.loss is not None and options.temperature not in (0.0, 1.0):
            sampler = await trainer.save_weights_and_get_sampling_client()
            scaled = await probes.probe_scaling(sampler, token)
        if options.top_p < 1 or options.top_k > 0:
            sampler = await trainer.save_weights_and_get_sampling_client()
            await probes.probe_narrowing(sampler, token, options.top_p, options.top_k)
        capabilities = Capabilities(place.kind, found.losses, scaled, found.numbered_requests)
        capabilities.require_temperature(options.temperature)
        loss = training.loss or ""
        settings = {**training.loss_config, **capabilities.pass_settings(options.temperature)}
        probed = loss in POLICY_LOSSES and capabilities.has_loss(loss, settings)
        if probed and not await probes.probe_loss(trainer, loss, settings, token):
            capabilities = replace(capabilities, refused_losses=frozenset({loss}))
    except BaseException:
        service.close()
        raise
    return Backend(
        description=f"{place.url} (session {service.session_id})",
        trainer=cast("tinker.TrainingClient", trainer),
        tokenizer=tokenizer,
        context=context,
        capabilities=capabilities,
        base_sampler=lambda: cast(
            "Awaitable[tinker.SamplingClient]", service.create_sampling_client(base_model=name)
        ),
        close=service.close,
    )


async def _restored(service: RemoteService, state_path: str) -> RemoteTrainingClient:
    """Return a client restored from a checkpoint with its optimizer. Raises CheckpointError if the
    server answers that the checkpoint is missing or unreadable, and BackendError for any other
    failure."""
    try:
        return await service.training_client(
            "create_training_client_from_state_with_optimizer", state_path
        )
    except BackendError as error:
        if getattr(error.__cause__, "status_code", None) in (404, 410) or "is damaged" in str(
            error
        ):
            raise CheckpointError(f"{state_path} cannot be loaded: {error}") from error
        raise
