"""A remote back end through Tinker's SDK: hosted Tinker, or a server of one's own. Same methods as the embedded engine.

The SDK numbers every request of a training client; a server of this protocol answers a repeated number with the first
answer, so that a request whose answer was lost is repeated without being carried out twice. Requests are submitted at once and
in order; nothing here waits before a future is asked for.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

from code_rl.backends.link import Link, RemoteFuture, SdkLog
from code_rl.backends.places import HOSTED, Place
from code_rl.errors import BackendError, ConfigError

if TYPE_CHECKING:
    from tinker import types

logger = logging.getLogger("code_rl.backends")
_CLOSING_S = 5.0


class RemoteService:
    """Makes clients on one server. Creating it opens a session: the SDK retries for minutes, so ask `preflight` first."""

    def __init__(
        self, place: Place, patience_s: float, ttl_seconds: int | None, request_patience_s: float = math.inf
    ) -> None:
        if place.url != HOSTED:
            os.environ.setdefault("TINKER_TELEMETRY", "0")
        import tinker

        self.link = Link(place, patience_s, request_patience_s)
        SdkLog.install(place)
        self._ttl_seconds = ttl_seconds
        self._service = tinker.ServiceClient(base_url=place.url, api_key=place.key)
        # Older SDKs create clients by blocking calls; newer ones return futures.
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="tinker-create")

    @property
    def session_id(self) -> str:
        """The server's name for this session."""
        return str(self._service.holder.get_session_id())

    async def create_lora_training_client(self, base_model: str, rank: int, seed: int) -> RemoteTrainingClient:
        """A client that trains a fresh adapter. Raises BackendError."""
        return await self._training_client(self._service.create_lora_training_client, base_model, rank=rank, seed=seed)

    async def create_training_client_from_state_with_optimizer(self, path: str) -> RemoteTrainingClient:
        """A client that continues where `save_state` left off, optimizer included. Raises BackendError."""
        return await self._training_client(self._service.create_training_client_from_state_with_optimizer, path)

    async def create_sampling_client(self, base_model: str) -> RemoteSamplingClient:
        """A sampler of a base model. Raises BackendError."""
        made = await self._created(self._service.create_sampling_client, base_model=base_model)
        return RemoteSamplingClient(made, self.link)

    def close(self) -> None:
        """Finish the session, so that the server need not wait for its heartbeat to lapse. Never raises."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        close = getattr(self._service, "close", None)
        if close is None:
            return
        try:
            self.link.submit(lambda: close("success"), _unchanged).result(timeout=_CLOSING_S)
        except (BackendError, TimeoutError) as error:
            logger.warning("the session could not be finished: %s", error)

    async def _training_client(self, create: Any, *args: Any, **kwargs: Any) -> RemoteTrainingClient:
        client = await self._created(create, *args, **kwargs)
        logger.info("%s session %s model %s", self.link.place.url, self.session_id, client.model_id)
        return RemoteTrainingClient(client, self.link, self._ttl_seconds, self._threads)

    async def _created(self, create: Any, *args: Any, **kwargs: Any) -> Any:
        def run() -> Any:
            made = create(*args, **kwargs)
            return made.result() if hasattr(made, "result") else made

        return await self.link.submit(lambda: self._threads.submit(run), _unchanged)


class RemoteTrainingClient:
    """One model in training on a server; methods and results are those of `tinker.TrainingClient`."""

    def __init__(self, client: Any, link: Link, ttl_seconds: int | None, threads: ThreadPoolExecutor) -> None:
        self._client = client
        self._link = link
        self._ttl_seconds = ttl_seconds
        self._threads = threads
        self.model_id = str(client.model_id)

    def forward(
        self, data: Sequence[types.Datum], loss_fn: str, loss_fn_config: Mapping[str, float] | None = None
    ) -> RemoteFuture[types.ForwardBackwardOutput]:
        """Log-probabilities without gradients."""
        return self._link.submit(
            lambda: self._client.forward(list(data), loss_fn, _or_none(loss_fn_config)), _unchanged
        )

    def forward_backward(
        self, data: Sequence[types.Datum], loss_fn: str, loss_fn_config: Mapping[str, float] | None = None
    ) -> RemoteFuture[types.ForwardBackwardOutput]:
        """The same, accumulating the gradient. What the server measured goes into the log."""
        return self._link.submit(
            lambda: self._client.forward_backward(list(data), loss_fn, _or_none(loss_fn_config)),
            lambda output: _logged("forward_backward", output),
        )

    def forward_backward_custom(
        self, data: Sequence[types.Datum], loss_fn: Callable[..., Any], *, temperature: float = 1.0
    ) -> RemoteFuture[types.ForwardBackwardOutput]:
        """`forward_backward` with `loss_fn(data, logprobs) -> (loss, metrics)`, which runs here: the SDK sends its gradient.

        Raises ConfigError for a temperature other than 1, which the SDK cannot ask for.
        """
        if temperature != 1:
            raise ConfigError(f"temperature={temperature:g}: custom losses on a server are computed at temperature 1")
        return self._link.submit(
            lambda: self._client.forward_backward_custom(list(data), loss_fn),
            lambda output: _logged("forward_backward", output),
        )

    def optim_step(self, adam_params: types.AdamParams) -> RemoteFuture[types.OptimStepResponse]:
        """One step of Adam with the accumulated gradient."""
        return self._link.submit(
            lambda: self._client.optim_step(adam_params), lambda response: _logged("optim_step", response)
        )

    def save_state(self, name: str, overwrite: bool = False) -> RemoteFuture[types.SaveWeightsResponse]:
        """Save weights and optimizer state, with the run's expiry if it has one."""
        return self._link.submit(
            lambda: self._client.save_state(name, ttl_seconds=self._ttl_seconds, overwrite=overwrite), _unchanged
        )

    def save_weights_for_sampler(self, name: str) -> RemoteFuture[types.SaveWeightsForSamplerResponse]:
        """Save weights to sample from later, with the run's expiry if it has one."""
        return self._link.submit(
            lambda: self._client.save_weights_for_sampler(name, ttl_seconds=self._ttl_seconds), _unchanged
        )

    def save_weights_and_get_sampling_client(self) -> RemoteFuture[RemoteSamplingClient]:
        """A sampler over a snapshot of the weights as they are when this request's turn comes."""
        create = self._client.save_weights_and_get_sampling_client
        waits = not _creates_futures()
        return self._link.submit(
            lambda: self._threads.submit(create) if waits else create(),
            lambda made: RemoteSamplingClient(made, self._link),
        )

    def get_info(self) -> types.GetInfoResponse:
        """What the server says of this model. Raises BackendError."""
        return cast("types.GetInfoResponse", self._link.submit(self._client.get_info, _unchanged).result())


class RemoteSamplingClient:
    """A snapshot of weights on a server; methods and results are those of `tinker.SamplingClient`."""

    def __init__(self, client: Any, link: Link) -> None:
        self._client = client
        self._link = link

    def sample(
        self, prompt: types.ModelInput, num_samples: int, sampling_params: types.SamplingParams, **options: Any
    ) -> RemoteFuture[types.SampleResponse]:
        """Draw completions with the log-probability of each token."""
        return self._link.submit(
            lambda: self._client.sample(
                prompt=prompt, num_samples=num_samples, sampling_params=sampling_params, **options
            ),
            _unchanged,
        )

    async def sample_async(self, *args: Any, **kwargs: Any) -> types.SampleResponse:
        """`sample`, awaited."""
        return await self.sample(*args, **kwargs)

    def compute_logprobs(self, prompt: types.ModelInput) -> RemoteFuture[list[float | None]]:
        """The log-probability of each prompt token given those before it."""
        return self._link.submit(lambda: self._client.compute_logprobs(prompt), _unchanged)


def _creates_futures() -> bool:
    """True for an SDK whose creation calls return at once."""
    return importlib.util.find_spec("tinker.lib.public_interfaces.backcompat_client_future") is not None


def _or_none(config: Mapping[str, float] | None) -> dict[str, float] | None:
    return dict(config) if config else None


def _logged(what: str, response: Any) -> Any:
    metrics = getattr(response, "metrics", None)
    if metrics:
        logger.info("%s %s", what, dict(metrics))
    return response


def _unchanged(value: Any) -> Any:
    return value
