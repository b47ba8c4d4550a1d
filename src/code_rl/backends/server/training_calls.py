"""Calls about models in training: create, passes, optimizer steps, saving and loading."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tinker import types

from code_rl.backends.embedded.adam import check_adam
from code_rl.backends.embedded.datums import read_datums
from code_rl.backends.embedded.models import Model
from code_rl.backends.embedded.passes import read_pass
from code_rl.backends.embedded.sampling import Snapshot
from code_rl.backends.embedded.service import lora_settings
from code_rl.backends.embedded.state import checkpoint_path, read_state
from code_rl.backends.embedded.training import EmbeddedTrainingClient
from code_rl.errors import ConfigError, InputError

from .core import Core, Run
from .promises import Promise
from .refusals import bad, gone
from .requests import PassRequest, checked_seq, validated
from .store import Kind, RunRecord, SamplerRecord, now
from .trainer import Trainer

MAX_RANK = 1024
MIN_TTL_S, MAX_TTL_S = 3600, 10 * 365 * 24 * 3600
SMALL_PASS = 64 << 10


class TrainingCalls:
    """What a TrainingClient calls. Each returns the promise of its result."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def create(self, data: Mapping[str, Any], fingerprint: bytes) -> Promise:
        """A model with a fresh adapter."""
        request = validated(types.CreateModelRequest, data)
        session = self._core.session(request.session_id)
        lora = request.lora_config or types.LoraConfig(rank=32)
        if not 1 <= lora.rank <= MAX_RANK:
            raise bad(f"lora_config.rank={str(lora.rank)[:40]} must be from 1 to {MAX_RANK}")
        if not (lora.train_mlp or lora.train_attn or lora.train_unembed):
            raise bad("lora_config: nothing to train: train_mlp, train_attn and train_unembed are all false")
        if lora.seed is not None and not 0 <= lora.seed < 2**63:
            raise bad(f"lora_config.seed={str(lora.seed)[:40]} must be from 0 to 2^63 - 1")
        _adam_only(request.optimizer_config)
        run_id = f"{session.session_id}:train:{checked_seq(request.model_seq_id, 'model_seq_id')}"
        local = self._core.names.local(request.base_model)

        def make(model: Model) -> tuple[RunRecord, Trainer, object]:
            record = RunRecord(
                run_id,
                request.base_model,
                local,
                model.weights.arch.family,
                model.source,
                lora.rank,
                lora.seed if lora.seed is not None else secrets.randbits(63),
                lora.train_mlp,
                lora.train_attn,
                lora.train_unembed,
                now(),
                _texts(request.user_metadata),
            )
            return record, self._fresh(model, record), types.CreateModelResponse(model_id=run_id)

        return self._begin(run_id, local, "create_model", fingerprint, make)

    def load(self, data: Mapping[str, Any], fingerprint: bytes) -> Promise:
        """A checkpoint into a model: a new one (`session_id`), or one that exists (`model_id`)."""
        request = validated(types.LoadWeightsRequest, data)
        if (request.session_id is None) == (request.model_id is None):
            raise bad("load_weights needs session_id with model_seq_id, or model_id with seq_id")
        if request.weights_access_token is not None:
            raise bad("weights_access_token is not supported: this server has one owner")
        if request.optimizer_config is not None:
            _adam_only(request.optimizer_config)
        checkpoint = self._core.store.find(request.path)
        if request.optimizer and checkpoint.kind != "state":
            raise bad(f"{request.path} holds sampler weights, without optimizer state; load one of save_state")
        file = self._core.store.checkpoint_file(checkpoint.run_id, checkpoint.name, checkpoint.kind)
        if request.model_id is not None:
            run = self._core.run(request.model_id)

            def load(client: EmbeddedTrainingClient) -> types.LoadWeightsResponse:
                (client.load_state_with_optimizer if request.optimizer else client.load_state)(str(file)).result()
                return types.LoadWeightsResponse(path=request.path, model_id=run.run_id, type="load_weights")

            return self._core.accept(run, checked_seq(request.seq_id), "load_weights", fingerprint, load)
        return self._load_new(request, checkpoint.run_id, str(file), fingerprint)

    def _load_new(self, request: types.LoadWeightsRequest, source: str, file: str, fingerprint: bytes) -> Promise:
        if request.session_id is None or request.model_seq_id is None:
            raise bad("load_weights with session_id needs model_seq_id")
        session = self._core.session(request.session_id)
        run_id = f"{session.session_id}:train:{checked_seq(request.model_seq_id, 'model_seq_id')}"
        origin = self._core.store.read_run(source)
        asked = request.base_model or (origin.base_model if origin is not None else None)
        if asked is None:
            raise gone(f"run {source} of {request.path} is no longer known: give base_model")
        local = self._core.names.local(asked)

        def make(model: Model) -> tuple[RunRecord, Trainer, object]:
            saved = read_state(Path(file))
            lora = lora_settings(saved, request.path)
            record = RunRecord(
                run_id,
                asked,
                local,
                model.weights.arch.family,
                model.source,
                lora.rank,
                lora.seed,
                lora.train_mlp,
                lora.train_attn,
                lora.train_unembed,
                now(),
                _texts(request.user_metadata),
            )
            self._core.store.write_run(record)
            trainer = Trainer.restored(self._core.store, model, record, saved, request.path, request.optimizer)
            return record, trainer, types.LoadWeightsResponse(path=request.path, model_id=run_id, type="load_weights")

        return self._begin(run_id, local, "load_weights", fingerprint, make)

    def _fresh(self, model: Model, record: RunRecord) -> Trainer:
        self._core.store.write_run(record)
        return Trainer.fresh(self._core.store, model, record)

    def _begin(self, run_id: str, local: str, kind: str, fingerprint: bytes, make: Any) -> Promise:
        core = self._core
        request_id = f"{run_id}:0"
        seen = core.promises.seen(request_id, kind, fingerprint)
        if seen is not None:
            return seen
        core.refuse_when_draining()
        if run_id in core.runs or core.store.read_run(run_id) is not None:
            raise gone(f"model {run_id} was created before, and the answer is no longer kept")
        core.promises.check_room(0)
        engine = core.engine(local)
        run = Run(run_id, local, 1, queued=1)
        core.runs[run_id] = run

        def work() -> object:
            run.record, run.trainer, answer = make(engine.loaded.result())
            return answer

        session_id = run_id.partition(":")[0]
        promise = core.promises.add(Promise(request_id, kind, session_id, fingerprint, 0, run_id))
        core.follow(run, promise, engine.submit(run_id, work))
        counted = promise.on_end
        assert counted is not None

        def ended() -> None:
            counted()
            if promise.error is not None:
                core.runs.pop(run_id, None)

        promise.on_end = ended
        return promise

    def info(self, data: Mapping[str, Any]) -> types.GetInfoResponse:
        """What is known of a model."""
        request = validated(types.GetInfoRequest, data)
        run = self._core.run(request.model_id)
        record = run.record
        if record is None:
            raise bad(f"model {run.run_id} is still being created: retrieve the answer of create_model first")
        return types.GetInfoResponse(
            type="get_info",
            model_data=types.ModelData(arch=record.arch, model_name=record.base_model, tokenizer_id=record.tokenizer),
            model_id=run.run_id,
            is_lora=True,
            lora_rank=record.rank,
            model_name=record.base_model,
        )

    async def run_pass(self, request: PassRequest, size: int) -> Promise:
        """A forward or forward_backward pass. What is wrong with its data is refused here, and takes its turn as a failure."""
        run = self._core.run(request.model_id)

        def work(client: EmbeddedTrainingClient) -> types.ForwardBackwardOutput:
            call = client.forward if request.forward_only else client.forward_backward
            return call(request.data, request.loss_fn, request.loss_fn_config).result()

        kind = "forward" if request.forward_only else "forward_backward"
        fault = await self._fault(run, request, size)
        promise = self._core.accept(run, request.seq_id, kind, request.fingerprint, work, size)
        if fault is not None:
            # The numbers that follow go on; the failure itself spoils the accumulated gradient, as in process.
            self._core.promises.drop_request(promise.request_id)
            raise bad(str(fault))
        return promise

    async def _fault(self, run: Run, request: PassRequest, size: int) -> InputError | None:
        model = await asyncio.wrap_future(self._core.engine(run.local).loaded)

        def check() -> InputError | None:
            try:
                how = read_pass(request.loss_fn, request.loss_fn_config)
                read_datums(request.data, how.loss, model.weights.arch)
            except InputError as error:
                return error
            return None

        return check() if size < SMALL_PASS else await asyncio.to_thread(check)

    def optim_step(self, data: Mapping[str, Any], fingerprint: bytes) -> Promise:
        """One optimizer step."""
        request = validated(types.OptimStepRequest, data)
        run = self._core.run(request.model_id)
        params = check_adam(request.optim_params)

        def work(client: EmbeddedTrainingClient) -> types.OptimStepResponse:
            return client.optim_step(params).result()

        return self._core.accept(run, checked_seq(request.seq_id), "optim_step", fingerprint, work)

    def save(self, data: Mapping[str, Any], fingerprint: bytes) -> Promise:
        """A checkpoint of adapter and optimizer."""
        request = validated(types.SaveWeightsRequest, data)
        run = self._core.run(request.model_id)
        name, ttl = self._name(run, request.path, "state"), expiry(request.ttl_seconds)

        def work(client: EmbeddedTrainingClient) -> types.SaveWeightsResponse:
            client.save_state(name, overwrite=request.overwrite, user_metadata=request.user_metadata).result()
            made = self._core.store.write_checkpoint(run.run_id, name, "state", ttl, request.user_metadata)
            return types.SaveWeightsResponse(path=made.tinker_path, type="save_weights")

        return self._core.accept(run, checked_seq(request.seq_id), "save_weights", fingerprint, work)

    def save_for_sampler(self, data: Mapping[str, Any], fingerprint: bytes) -> Promise:
        """Sampler weights: a named checkpoint, or (`path` unset) a sampling session of their own."""
        request = validated(types.SaveWeightsForSamplerRequest, data)
        run = self._core.run(request.model_id)
        if request.kind != "snapshot":
            raise bad(f"kind={request.kind!r} is not supported by the embedded engine, only 'snapshot'")
        ttl = expiry(request.ttl_seconds)
        seq = checked_seq(request.seq_id)
        if request.path is not None:
            name = self._name(run, request.path, "sampler")

            def save(client: EmbeddedTrainingClient) -> _SamplerSaved:
                client.save_weights_for_sampler(name, user_metadata=request.user_metadata).result()
                made = self._core.store.write_checkpoint(run.run_id, name, "sampler", ttl, request.user_metadata)
                return _SamplerSaved(path=made.tinker_path, type="save_weights_for_sampler")

            return self._core.accept(run, seq, "save_weights_for_sampler", fingerprint, save)
        if ttl is not None or request.user_metadata:
            raise bad("ttl_seconds and user_metadata need a name: weights without one live as long as their session")
        number = checked_seq(request.sampling_session_seq_id, "sampling_session_seq_id")
        if number is None:
            raise bad("save_weights_for_sampler needs path or sampling_session_seq_id")
        return self._core.accept(
            run, seq, "save_weights_for_sampler", fingerprint, lambda client: self._snapshot(run, number, client)
        )

    def _snapshot(self, run: Run, number: int, client: EmbeddedTrainingClient) -> _SamplerSaved:
        assert run.record is not None
        sampler_id = f"{run.run_id.partition(':')[0]}:sample:{number}"
        client.write(self._core.store.sampler_file(sampler_id), training=False)
        record = SamplerRecord(sampler_id, run.record.base_model, run.local, None, True, now())
        weights: Snapshot = client.snapshot()
        self._core.add_sampler(record, weights)
        return _SamplerSaved(sampling_session_id=sampler_id, type="save_weights_for_sampler")

    def unload(self, data: Mapping[str, Any], fingerprint: bytes) -> Promise:
        """Forget a model; its checkpoints stay."""
        request = validated(types.UnloadModelRequest, data)
        core, run = self._core, self._core.run(request.model_id)
        request_id = f"{run.run_id}:unload"
        seen = core.promises.seen(request_id, "unload_model", fingerprint)
        if seen is not None:
            return seen
        session_id = run.run_id.partition(":")[0]
        promise = core.promises.add(Promise(request_id, "unload_model", session_id, fingerprint, 0, run.run_id))
        future = core.unload(run)
        answer = types.UnloadModelResponse(model_id=run.run_id, type="unload_model")
        core.promises.follow_with(promise, future, answer)
        return promise

    def _name(self, run: Run, path: str | None, kind: Kind) -> str:
        if path is None:
            raise bad("save_weights needs a path: the checkpoint's name")
        checkpoint_path(self._core.store.checkpoint_folder(run.run_id), path, kind)
        return path


class _SamplerSaved(types.SaveWeightsForSamplerResponse):
    """The answer's two forms: a path, or the id of a sampling session."""

    path: str | None = None  # type: ignore[assignment]
    sampling_session_id: str | None = None


def _adam_only(config: object) -> None:
    if not isinstance(config, types.AdamOptimizerConfig):
        kind = getattr(config, "type", type(config).__name__)
        raise ConfigError(f"optimizer {str(kind)[:80]!r} is not supported by the embedded engine, only adamw")


def expiry(seconds: int | None) -> int | None:
    """A checkpoint's time to live, checked."""
    if seconds is not None and not MIN_TTL_S <= seconds <= MAX_TTL_S:
        raise bad(f"ttl_seconds={str(seconds)[:40]} must be from {MIN_TTL_S} (an hour) to {MAX_TTL_S} (ten years)")
    return seconds


def _texts(metadata: dict[str, Any] | None) -> dict[str, str] | None:
    if metadata is not None and not all(isinstance(value, str) for value in metadata.values()):
        raise bad("user_metadata must hold texts only")
    return metadata
