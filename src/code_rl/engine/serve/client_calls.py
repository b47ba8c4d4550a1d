"""The calls of a TrainingClient (creation, passes, optimizer steps, saving and loading) and of a
SamplingClient (sessions that hold weights, samples from them), and the results of both."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from pydantic import BaseModel, ConfigDict
from tinker import types

from code_rl.engine.adapters import read_embedded, write_peft
from code_rl.engine.local.models import model_info
from code_rl.engine.local.sampling import EmbeddedSamplingClient
from code_rl.engine.local.state import check_name, read_state
from code_rl.engine.local.training import EmbeddedTrainingClient
from code_rl.util.errors import ConfigError

from .core import Core, Queued, SamplingSession, ServedRun
from .promises import Promise, session_of
from .store import Kind, RunRecord
from .wire import (
    USER,
    PassRequest,
    Refusal,
    bad,
    category,
    checked_seq,
    digest,
    gone,
    read_json,
    validated,
)

MAX_SAMPLES = 4096
WAIT_S = 25.0
_REFUSED = {
    "topk_sample_logprobs": "",
    "target_prompt_logprobs": "",
    "prompt_alt_tokens_k": "",
    "record_stability_info": ", nor is loss stable_reinforce, which reads it; train with "
    "importance_sampling, ppo, cispo or gspo",
}
_SAVED: Mapping[Kind, tuple[str, Callable[..., object]]] = {
    "state": ("save_weights", types.SaveWeightsResponse),
    "sampler": ("save_weights_for_sampler", types.SaveWeightsForSamplerResponseInternal),
    "external": ("save_weights_external", types.SaveWeightsExternalResponseInternal),
}


class TrainingCalls:
    """The calls of a TrainingClient. Each returns the promise of its result."""

    def __init__(self, core: Core) -> None:
        """`core` has all state; these calls keep none."""
        self._core = core

    def create(self, request: types.CreateModelRequest, fingerprint: bytes) -> Promise:
        """Promise a model with a new adapter: without `lora_config` of rank 32, without a seed a
        random one. Raises a Refusal as `Core.begin` does, and ConfigError for an optimizer other
        than Adam."""
        core, run_id = self._core, self._new_id(request.session_id, request.model_seq_id)
        lora = request.lora_config or types.LoraConfig(rank=32)
        _adam_only(request.optimizer_config)
        seed = lora.seed if lora.seed is not None else secrets.randbits(63)
        parts = lora.train_mlp, lora.train_attn, lora.train_unembed
        return core.begin(
            run_id,
            request.base_model,
            request.user_metadata,
            "create_model",
            fingerprint,
            lambda local: core.service.create_lora_training_client(local, lora.rank, seed, *parts),
            types.CreateModelResponse(model_id=run_id),
        )

    def load(self, request: types.LoadWeightsRequest, fingerprint: bytes) -> Promise:
        """Promise the loading of a checkpoint into a new model (`session_id`) or an existing one
        (`model_id`), in its order of requests. With `optimizer` the optimizer's state is loaded
        too. Raises a Refusal for a faulty request or an unknown checkpoint."""
        if (request.session_id is None) == (request.model_id is None):
            raise bad("load_weights needs session_id with model_seq_id, or model_id with seq_id")
        if request.weights_access_token is not None:
            raise bad("weights_access_token is not supported: this server has one owner")
        if request.optimizer_config is not None:
            _adam_only(request.optimizer_config)
        core, optimizer = self._core, request.optimizer
        checkpoint = core.store.find(request.path, "state", "sampler")
        file = core.store.path_of(checkpoint)

        def answer(run_id: str) -> types.LoadWeightsResponse:
            """Return the answer to the client that loaded into the run."""
            return types.LoadWeightsResponse(
                path=request.path, model_id=run_id, type="load_weights"
            )

        if request.model_id is not None:
            run = core.run(request.model_id)
            return core.accept(
                run,
                checked_seq(request.seq_id),
                "load_weights",
                fingerprint,
                lambda client: client.submit(lambda: client.restore(read_state(file), optimizer)),
                lambda _: answer(run.run_id),
            )
        run_id = self._new_id(request.session_id, request.model_seq_id)
        return core.begin(
            run_id,
            request.base_model or core.store.run(checkpoint.run_id).base_model,
            request.user_metadata,
            "load_weights",
            fingerprint,
            lambda local: (
                core.service.create_training_client_from_state_with_optimizer
                if optimizer
                else core.service.create_training_client_from_state
            )(str(file), local),
            answer(run_id),
        )

    def _new_id(self, session_id: str | None, number: int | None) -> str:
        """Return the run id of a session's model of this number. Raises a Refusal for an unknown or
        finished session, and for an invalid number."""
        session = self._core.session(session_id or "")
        return f"{session.session_id}:train:{checked_seq(number, 'model_seq_id')}"

    def info(self, request: types.GetInfoRequest) -> types.GetInfoResponse:
        """Return the facts about a model. Raises a Refusal if it is unknown or still being
        created."""
        run = self._core.run(request.model_id)
        record = self._created(run)
        return model_info(run.run_id, record.arch, record.base_model, record.tokenizer, record.rank)

    def _created(self, run: ServedRun) -> RunRecord:
        """Return the record of a run. Raises a Refusal while it is being created."""
        if run.record is None:
            raise bad(f"model {run.run_id} is still being created: retrieve that answer first")
        return run.record

    def run_pass(self, request: PassRequest, size: int) -> Promise:
        """Promise a forward or forward_backward pass. `size` is the body's, in bytes. A pass with a
        fault takes its turn all the same, so that later requests are not held, and its Refusal is
        raised."""
        run, backward = self._core.run(request.model_id), not request.forward_only
        kind = "forward_backward" if backward else "forward"
        if request.fault is not None:
            named = request.seq_id, kind, request.fingerprint
            self._core.refuse(run, *named, request.fault, backward)
            raise request.fault

        def start(client: EmbeddedTrainingClient) -> Queued:
            """Submit the pass to the engine."""
            act = client.forward_backward if backward else client.forward
            return act(request.data, request.loss_fn, request.loss_fn_config)

        return self._core.accept(run, request.seq_id, kind, request.fingerprint, start, size=size)

    def promise(
        self, kind: type[BaseModel], call: Callable[[Any, bytes], Promise], body: bytes
    ) -> Promise:
        """Return the promise of `call` for a request of this `kind`. A request that is refused for
        good takes its turn, if its body names a model and a number, so that later requests do not
        wait for it. Raises its Refusal or CodeRLError."""
        data, fingerprint = read_json(body), digest(body)
        try:
            return call(validated(kind, data), fingerprint)
        except Exception as error:
            model_id, seq = data.get("model_id"), data.get("seq_id")
            final = category(error) == USER and getattr(error, "retry_after_s", None) is None
            if final and isinstance(model_id, str) and type(seq) is int:
                with contextlib.suppress(Refusal):  # the number was taken before
                    run = self._core.run(model_id)
                    self._core.refuse(run, checked_seq(seq), "refused", fingerprint, error)
            raise

    def optim_step(self, request: types.OptimStepRequest, fingerprint: bytes) -> Promise:
        """Promise one optimizer step, in the model's order of requests. Unsuitable parameters fail
        the promise. Raises a Refusal as `Core.accept` does."""
        run = self._core.run(request.model_id)
        return self._core.accept(
            run,
            checked_seq(request.seq_id),
            "optim_step",
            fingerprint,
            lambda client: client.optim_step(request.optim_params),
        )

    def save(self, request: types.SaveWeightsRequest, fingerprint: bytes) -> Promise:
        """Promise a checkpoint of adapter and optimizer. Raises a Refusal without a name; the
        promise fails if the name exists and `overwrite` is not set."""
        if request.path is None:
            raise bad("save_weights needs a path: the checkpoint's name")
        return self._save(
            request, "state", fingerprint, request.user_metadata, bool(request.overwrite)
        )

    def save_external(
        self, request: types.SaveWeightsExternalRequest, fingerprint: bytes
    ) -> Promise:
        """Promise the adapter in peft's form for download, over one of the same name. Raises a
        Refusal if encryption is asked for."""
        if request.age_encryption_recipients:
            raise bad("age_encryption_recipients is not supported: this server does not encrypt")
        return self._save(request, "external", fingerprint, None)

    def save_for_sampler(
        self, request: types.SaveWeightsForSamplerRequest, fingerprint: bytes
    ) -> Promise:
        """Promise sampler weights as a named checkpoint, over one of the same name, or (`path`
        unset) for a new sampling session, whose file is deleted with it. Raises a Refusal for a
        faulty request."""
        if request.kind != "snapshot":
            raise bad(f"kind={request.kind!r} is not supported by this server, only 'snapshot'")
        if request.path is not None:
            return self._save(request, "sampler", fingerprint, request.user_metadata)
        if request.user_metadata:
            raise bad("user_metadata needs a name for the weights")
        number = checked_seq(request.sampling_session_seq_id, "sampling_session_seq_id")
        core, run = self._core, self._core.run(request.model_id)
        sampler_id = f"{session_of(run.run_id)}:sample:{number}"
        file = core.store.sampler_file(sampler_id)

        def save(client: EmbeddedTrainingClient) -> Queued:
            """Submit the writing of the weights. Its result is a client that samples from them."""

            def work() -> EmbeddedSamplingClient:
                """Write the weights on the engine's thread, and return a client that samples from
                them."""
                client.write(file, training=False, overwrite=True)
                return client.sampling_client()

            return client.submit(work)

        def then(sampling: EmbeddedSamplingClient) -> object:
            """Begin a sampling session with the weights that were written, and keep them in
            memory."""
            core.keep_written(run.local, file, sampling)
            core.samplers[sampler_id] = SamplingSession(
                sampler_id, self._created(run).base_model, run.local, None, file
            )
            return types.SaveWeightsForSamplerResponseInternal(
                sampling_session_id=sampler_id, type="save_weights_for_sampler"
            )

        return core.accept(
            run,
            checked_seq(request.seq_id),
            "save_weights_for_sampler",
            fingerprint,
            save,
            then,
        )

    def _save(
        self,
        request: types.SaveWeightsRequest
        | types.SaveWeightsForSamplerRequest
        | types.SaveWeightsExternalRequest,
        kind: Kind,
        fingerprint: bytes,
        metadata: dict[str, str] | None,
        overwrite: bool = True,
    ) -> Promise:
        """Promise a save of one kind; it is written in the model's own order of requests. Raises
        CodeRLError for an invalid name, and a Refusal as `Core.accept` does."""
        core, run, name = self._core, self._core.run(request.model_id), request.path or ""
        call, answer = _SAVED[kind]
        check_name(name)
        file = core.store.checkpoint_file(run.run_id, name, kind)
        written = file / "state.tmp" if kind == "external" else file

        def then(_: None) -> object:
            """Record the checkpoint, which exists from then on; one of kind `external` is first
            converted for peft."""
            if kind == "external":
                write_peft(read_embedded(written), self._created(run).base_model, file)
                written.unlink()
            made = core.store.write_checkpoint(run.run_id, name, kind, metadata)
            return answer(path=made.tinker_path, type=call)

        return core.accept(
            run,
            checked_seq(request.seq_id),
            call,
            fingerprint,
            lambda client: client.submit(lambda: client.write(written, kind == "state", overwrite)),
            then,
        )


class CancelRequest(BaseModel):
    """The sample to cancel."""

    model_config = ConfigDict(extra="forbid")
    request_id: str


class SamplingCalls:
    """The calls of a SamplingClient."""

    def __init__(self, core: Core) -> None:
        """`core` has all state; these calls keep none."""
        self._core = core

    def create_session(
        self, request: types.CreateSamplingSessionRequest
    ) -> types.CreateSamplingSessionResponse:
        """Create a sampling session on a base model or on saved weights, and begin to load the
        model. A repeated request finds the same session. Raises a Refusal for a faulty request, an
        unknown checkpoint, and while shutting down."""
        core = self._core
        session = core.session(request.session_id)
        number = checked_seq(request.sampling_session_seq_id, "sampling_session_seq_id")
        sampler_id = f"{session.session_id}:sample:{number}"
        made = core.samplers.get(sampler_id)
        if made is None:
            core.refuse_when_draining()
            made = core.samplers[sampler_id] = self._new_session(request, sampler_id)
            # The model begins to load now, before the first sample.
            core.service.load(made.local)
        return types.CreateSamplingSessionResponse(sampling_session_id=sampler_id)

    def _new_session(
        self, request: types.CreateSamplingSessionRequest, sampler_id: str
    ) -> SamplingSession:
        """Return a session on a checkpoint, whose file it links, or on a base model. It is not
        registered. Raises a Refusal for an unknown checkpoint or one of another base model."""
        core = self._core
        if request.model_path is None:
            if request.base_model is None:
                raise bad("create_sampling_session needs model_path or base_model")
            local = core.local_name(request.base_model)
            return SamplingSession(sampler_id, request.base_model, local, None, None)
        checkpoint = core.store.find(request.model_path, "state", "sampler")
        run = core.store.run(checkpoint.run_id)
        if request.base_model is not None and core.local_name(request.base_model) != run.local:
            raise bad(
                f"base_model={request.base_model!r}: {request.model_path} belongs to "
                f"{run.base_model!r}"
            )
        file = core.store.link_sampler(sampler_id, core.store.path_of(checkpoint))
        return SamplingSession(sampler_id, run.base_model, run.local, request.model_path, file)

    def get_sampler(self, sampler_id: str) -> types.GetSamplerResponse:
        """Return the facts about a sampling session. Raises a Refusal if it is unknown, or no
        longer kept."""
        found = self._core.sampler(sampler_id)
        return types.GetSamplerResponse(
            sampler_id=sampler_id, base_model=found.base_model, model_path=found.model_path
        )

    async def sample(
        self, data: Mapping[str, Any], fingerprint: bytes, size: int
    ) -> dict[str, Any]:
        """Promise samples; the answer has the promise's id and those of its sequences. `size` is
        the body's, in bytes. A copy of an earlier request gets the same answer and is not sampled
        again. Raises a Refusal for a faulty request or a full queue."""
        params = data.get("sampling_params")
        surplus = (
            sorted(set(params) - set(types.SamplingParams.model_fields))
            if isinstance(params, dict)
            else []
        )
        if surplus:
            # The SDK's type would drop them silently.
            raise bad(f"sampling_params: unknown setting {', '.join(map(repr, surplus))}")
        request = validated(types.SampleRequest, data)
        seq = checked_seq(request.seq_id)
        if request.sampling_session_id is None:
            raise bad("asample needs sampling_session_id; create a sampling session first")
        for name, instead in _REFUSED.items():
            if getattr(request, name):
                raise bad(f"{name} is not supported by this server{instead}")
        if not 1 <= request.num_samples <= MAX_SAMPLES:
            raise bad(f"num_samples={request.num_samples} must be from 1 to {MAX_SAMPLES}")
        core = self._core
        sampler = core.sampler(request.sampling_session_id)
        request_id = f"{sampler.sampler_id}:{seq}"
        promise = Promise(request_id, "sample", fingerprint, size)
        if core.seen(promise) is None:
            core.promises.check_room(size)
            future = await self._draw(sampler, request, seq)
            if core.promises.seen(promise) is not None:
                future.cancel()  # another copy of the request came first
            else:
                core.promises.add(promise)
                core.follow(sampler, promise, future)
        ids = [f"{request_id}:{i}" for i in range(request.num_samples)]
        return {"request_id": request_id, "sample_sequence_ids": ids}

    async def _draw(
        self, sampler: SamplingSession, request: types.SampleRequest, seq: int
    ) -> Future[types.SampleResponse]:
        """Submit the request to the session's client; `seq` only orders it within its batch. Raises
        a Refusal if the weights are no longer kept."""
        try:
            client = await self._core.client_of(sampler)
        except FileNotFoundError:
            raise gone(
                f"the weights of sampling session {sampler.sampler_id} are no longer kept"
            ) from None

        def draw() -> Future[types.SampleResponse]:
            """Submit the sample to the engine without waiting. Raises ConfigError for settings that
            it refuses."""
            return client.sample(
                request.prompt,
                request.num_samples,
                request.sampling_params,
                bool(request.prompt_logprobs),
                request.topk_prompt_logprobs,
                request.prompt_logprobs_last_n,
                number=seq,
            ).future()

        if isinstance(request.sampling_params.stop, str | list | tuple):
            return await asyncio.to_thread(draw)  # stop texts need the tokenizer
        return draw()

    async def retrieve(self, request_id: str) -> Promise | None:
        """Wait for a promise, 25 seconds at most, and return it once it is finished, marked as
        fetched, else None. Raises a Refusal if it is unknown."""
        promise = self._find(request_id)
        # A client that waits for an answer is alive.
        wait_s = min(WAIT_S, self._core.limits.session_timeout_s / 2)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(promise.done.wait(), wait_s)
        if not promise.done.is_set():
            return None
        promise.fetched = promise.fetched or time.monotonic()
        return promise

    def cancel(self, request: CancelRequest) -> None:
        """Cancel a sample that has not begun; one that has begun or ended is left alone. Raises a
        Refusal for an unknown request and for one that is no sample."""
        promise = self._find(request.request_id)
        if promise.kind != "sample":
            raise bad(
                f"{promise.request_id} is a {promise.kind} request; only samples can be cancelled"
            )
        if promise.cancel is not None:
            promise.cancel()

    def _find(self, request_id: str) -> Promise:
        """Return the promise of a request and count its session as alive. Raises a Refusal if it is
        no longer kept."""
        promise = self._core.promises.find(request_id)
        if promise is None:
            raise gone(
                f"request {request_id!r} is not known: its result was fetched long ago, or "
                "the server restarted"
            )
        self._core.session(promise.session_id)
        return promise


def _adam_only(config: object) -> None:
    """Raise ConfigError for the configuration of any optimizer but Adam."""
    if not isinstance(config, types.AdamOptimizerConfig):
        kind = getattr(config, "type", type(config).__name__)
        raise ConfigError(f"optimizer {kind!r} is not supported by this server, only adamw")
