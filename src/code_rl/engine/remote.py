"""A remote back end through Tinker's SDK: hosted Tinker or the user's own server. Its methods are
those of the embedded engine. Log-probabilities are scored by clients of any back end.

The SDK numbers every request of a training client. A server answers a repeated number with its
first answer, so a request whose answer was lost can be sent again and is carried out only once.
Requests are submitted at once and in order; nothing here waits until a future's result is read. The
SDK retries errors that are safe to retry (connection errors, 408, 429, 5xx) and polls for results
without limit; `Link` sets the limits.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from code_rl.engine.places import HOSTED, Place
from code_rl.util.concurrency import wait_for
from code_rl.util.errors import BackendError, CodeRLError, ConfigError
from code_rl.util.outage import Outage
from code_rl.util.proxies import via_proxy

if TYPE_CHECKING:
    import tinker
    from tinker import types

T = TypeVar("T")
logger = logging.getLogger("code_rl.engine")
_CHECK_EVERY_S = 5.0
_CLOSING_S = 5.0
REQUEST_TIMES = 12
"""A healthy server may take this many times `outage_timeout` for one request."""


class Link:
    """Watches one server: how long it has been unreachable, and how its errors read.

    Waiting ends with an error if the server has not answered a health check for `outage_timeout_s`,
    or if it is healthy but has not answered a request for `REQUEST_TIMES` times that long. `health`
    is the path of the check; a 5xx status there counts as no answer.
    """

    def __init__(
        self, place: Place, outage_timeout_s: float, health: str = "/api/v1/healthz"
    ) -> None:
        self.place, self._health = place, place.url + health
        self.outage_timeout_s = outage_timeout_s
        self.check_every_s = min(_CHECK_EVERY_S, outage_timeout_s / 2)
        self._checking = threading.Lock()
        self._next_check = 0.0
        service = f"{place.url}{via_proxy(place.url)}"
        self._outage = Outage(service, outage_timeout_s, BackendError)

    @property
    def away(self) -> bool:
        """True while the server does not answer."""
        return self._outage.away

    def check(self, waited_s: float = 0.0, said: str = "") -> None:
        """Check the server's health, unless that was done recently. `waited_s` is how long the
        caller has waited; `said` is the last error that it got.

        Raises BackendError if the server has been silent, or this request unanswered, for longer
        than its limit.
        """
        if (
            waited_s > REQUEST_TIMES * self.outage_timeout_s
            and not self.away
            and self.silence() is None
        ):
            raise BackendError(
                f"{self.place.url} answers, but not one request of {waited_s:.0f} s ago (more "
                f"than {REQUEST_TIMES} times outage_timeout={self.outage_timeout_s:g})"
                + (f"; it said: {self.place.redacted(said)}" if said else "")
            )
        if not self._checking.acquire(blocking=False):
            return
        try:
            if time.monotonic() < self._next_check:
                return
            why, pause_s = self.silence(), self.check_every_s
            # Of many callers waiting for a healthy server, only one checks. After a first silence
            # the next check follows at once.
            pause_s = pause_s / 2 if why is None else pause_s * self.away
            self._next_check = time.monotonic() + pause_s
            if why is None:
                self.answered()
            else:
                self._outage.missed(why)
        finally:
            self._checking.release()

    def silence(self) -> str | None:
        """Check the server's health. Return the reason for no answer, or None."""
        import httpx

        try:
            answer = httpx.get(self._health, timeout=self.check_every_s)
        except httpx.HTTPError as error:
            return self.place.redacted(str(error)) or type(error).__name__
        return f"status {answer.status_code}" if answer.is_server_error else None

    def answered(self) -> None:
        """Record that the server answers, which ends an outage."""
        self._outage.answered()

    async def watch(self, waiting: asyncio.Future[Any], since: float, said: str = "") -> None:
        """Wait until a request of the time `since` is done, and check the server meanwhile. The
        request is cancelled with the wait, and by an error of `check`."""
        try:
            while not (await asyncio.wait({waiting}, timeout=self.check_every_s))[0]:
                await asyncio.to_thread(self.check, time.monotonic() - since, said)
        except BaseException:
            waiting.cancel()
            raise

    def outcome(self, future: Future[T]) -> T:
        """Return a finished future's result. Raises BackendError in place of the SDK's errors."""
        try:
            result = future.result()
        except CodeRLError:
            raise
        except Exception as error:  # SDK versions differ in their exceptions; the cause is kept
            raise BackendError(
                f"{self.place.url}: {self.place.redacted(_in_words(error))}"
            ) from error
        return result

    def submit(
        self, call: Callable[[], Any], then: Callable[[Any], T] = lambda value: value
    ) -> RemoteFuture[T]:
        """Make a call of the SDK now. The future resolves to `then` of its result, or raises
        BackendError."""
        immediate: Future[Any] = Future()
        try:
            answer = call()
        except Exception as error:  # noqa: BLE001 - it is handed to whoever waits for the future
            immediate.set_exception(error)
            answer = immediate
        return RemoteFuture(_plain(answer), self, then)


class SdkLog(logging.Handler):
    """Writes the SDK's log lines, without the key, to the run's own log."""

    def __init__(self, place: Place) -> None:
        super().__init__(logging.INFO)
        self._place = place

    def emit(self, record: logging.LogRecord) -> None:
        """Pass one record on."""
        logger.log(record.levelno, "sdk: %s", self._place.redacted(record.getMessage()))

    @classmethod
    def install(cls, place: Place) -> None:
        """Install the handler in place of an earlier one."""
        sdk = logging.getLogger("tinker")
        sdk.handlers = [handler for handler in sdk.handlers if not isinstance(handler, cls)] + [
            cls(place)
        ]
        sdk.propagate = False


class RemoteFuture(Generic[T]):
    """A pending result. `result()` and `await` both raise BackendError if it fails."""

    def __init__(self, future: Future[Any], link: Link, then: Callable[[Any], T]) -> None:
        self._future = future
        self._link = link
        self._then = then
        self._since = time.monotonic()

    def result(self, timeout: float | None = None) -> T:
        """Wait for the result, at most `timeout` seconds (TimeoutError)."""
        return wait_for(asyncio.wait_for(self.result_async(), timeout))

    async def result_async(self) -> T:
        """Await `result`; cancelling the wait cancels the request."""
        waiting = asyncio.wrap_future(self._future)
        await self._link.watch(waiting, self._since)
        if not waiting.cancelled():
            waiting.exception()  # read, or asyncio reports the exception as never retrieved
        return self._then(self._link.outcome(self._future))

    def __await__(self) -> Generator[Any, None, T]:
        return self.result_async().__await__()


class RemoteService:
    """Makes clients on one server. Creating it opens a session, which the SDK retries for minutes,
    so call `preflight` first."""

    def __init__(self, place: Place, outage_timeout_s: float, ttl_seconds: int | None) -> None:
        if place.url != HOSTED:
            os.environ.setdefault("TINKER_TELEMETRY", "0")
        import tinker

        self.link = Link(place, outage_timeout_s)
        SdkLog.install(place)
        self._ttl_seconds = ttl_seconds
        self._service = tinker.ServiceClient(base_url=place.url, api_key=place.key)
        # Older SDKs create clients by blocking calls, newer ones return futures.
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="tinker-create")

    @property
    def session_id(self) -> str:
        """The server's name for this session."""
        return str(self._service.holder.get_session_id())

    async def create_lora_training_client(
        self, base_model: str, rank: int, seed: int
    ) -> RemoteTrainingClient:
        """Return a client that trains a new adapter. Raises BackendError."""
        return await self._training_client(
            self._service.create_lora_training_client, base_model, rank=rank, seed=seed
        )

    async def create_training_client_from_state_with_optimizer(
        self, path: str
    ) -> RemoteTrainingClient:
        """Return a client that continues from `save_state`, with its optimizer. Raises
        BackendError."""
        return await self._training_client(
            self._service.create_training_client_from_state_with_optimizer, path
        )

    async def create_sampling_client(self, base_model: str) -> RemoteSamplingClient:
        """Return a sampler of a base model. Raises BackendError."""
        made = await self._created(self._service.create_sampling_client, base_model=base_model)
        return RemoteSamplingClient(made, self.link)

    def close(self) -> None:
        """End the session, so that the server does not wait for its heartbeat to lapse. Never
        raises."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        close = getattr(self._service, "close", None)
        if close is None:
            return
        try:
            self.link.submit(lambda: close("success")).result(timeout=_CLOSING_S)
        except (BackendError, TimeoutError) as error:
            logger.warning("the session could not be finished: %s", error)

    async def _training_client(
        self, create: Any, *args: Any, **kwargs: Any
    ) -> RemoteTrainingClient:
        client = await self._created(create, *args, **kwargs)
        logger.info("%s session %s model %s", self.link.place.url, self.session_id, client.model_id)
        return RemoteTrainingClient(client, self.link, self._ttl_seconds, self._threads)

    async def _created(self, create: Any, *args: Any, **kwargs: Any) -> Any:
        def run() -> Any:
            made = create(*args, **kwargs)
            return made.result() if hasattr(made, "result") else made

        return await self.link.submit(lambda: self._threads.submit(run))


class RemoteTrainingClient:
    """One model in training on a server, with the methods and results of
    `tinker.TrainingClient`."""

    def __init__(
        self,
        client: Any,
        link: Link,
        ttl_seconds: int | None,
        threads: ThreadPoolExecutor,
    ) -> None:
        self._client = client
        self._link = link
        self._ttl_seconds = ttl_seconds
        self._threads = threads
        self.model_id = str(client.model_id)

    def forward(
        self,
        data: Sequence[types.Datum],
        loss_fn: str,
        loss_fn_config: Mapping[str, float] | None = None,
    ) -> RemoteFuture[types.ForwardBackwardOutput]:
        """Return log-probabilities without gradients."""
        config = dict(loss_fn_config or {}) or None
        return self._ask(self._client.forward, list(data), loss_fn, config)

    def forward_backward(
        self,
        data: Sequence[types.Datum],
        loss_fn: str,
        loss_fn_config: Mapping[str, float] | None = None,
    ) -> RemoteFuture[types.ForwardBackwardOutput]:
        """Do the same as `forward`, and accumulate the gradient. The server's measurements are
        logged."""
        config = dict(loss_fn_config or {}) or None
        return self._ask(
            self._client.forward_backward, list(data), loss_fn, config, log="forward_backward"
        )

    def forward_backward_custom(
        self, data: Sequence[types.Datum], loss_fn: Callable[..., Any], *, temperature: float = 1.0
    ) -> RemoteFuture[types.ForwardBackwardOutput]:
        """Do a `forward_backward` with `loss_fn(data, logprobs) -> (loss, metrics)`, which runs
        here. The SDK sends its gradient.

        Raises ConfigError for a temperature other than 1, which the SDK does not support.
        """
        if temperature != 1:
            raise ConfigError(
                f"temperature={temperature:g}: custom losses on a server are computed at "
                "temperature 1"
            )
        return self._ask(
            self._client.forward_backward_custom, list(data), loss_fn, log="forward_backward"
        )

    def optim_step(self, adam_params: types.AdamParams) -> RemoteFuture[types.OptimStepResponse]:
        """Take one step of Adam with the accumulated gradient."""
        return self._ask(self._client.optim_step, adam_params, log="optim_step")

    def save_state(
        self, name: str, overwrite: bool = False
    ) -> RemoteFuture[types.SaveWeightsResponse]:
        """Save weights and optimizer state, with the run's expiry if it has one."""
        return self._ask(
            self._client.save_state, name, ttl_seconds=self._ttl_seconds, overwrite=overwrite
        )

    def save_weights_for_sampler(
        self, name: str
    ) -> RemoteFuture[types.SaveWeightsForSamplerResponse]:
        """Save weights for later sampling, with the run's expiry if it has one."""
        return self._ask(self._client.save_weights_for_sampler, name, ttl_seconds=self._ttl_seconds)

    def _ask(
        self, call: Callable[..., Any], *args: Any, log: str | None = None, **kwargs: Any
    ) -> RemoteFuture[Any]:
        """Make a call of the SDK and log its measurements under the name `log`."""

        def then(response: Any) -> Any:
            if log is not None and getattr(response, "metrics", None):
                logger.info("%s %s", log, dict(response.metrics))
            return response

        return self._link.submit(lambda: call(*args, **kwargs), then)

    def save_weights_and_get_sampling_client(self) -> RemoteFuture[RemoteSamplingClient]:
        """Return a sampler with the weights at this request's turn in the queue."""
        create = self._client.save_weights_and_get_sampling_client
        # Older SDKs block here until the sampler exists.
        at_once = (
            importlib.util.find_spec("tinker.lib.public_interfaces.backcompat_client_future")
            is not None
        )
        return self._link.submit(
            lambda: create() if at_once else self._threads.submit(create),
            lambda made: RemoteSamplingClient(made, self._link),
        )

    def get_info(self) -> types.GetInfoResponse:
        """Return the server's facts about this model. Raises BackendError."""
        return cast("types.GetInfoResponse", self._link.submit(self._client.get_info).result())


class RemoteSamplingClient:
    """A snapshot of weights on a server, with the methods and results of
    `tinker.SamplingClient`."""

    def __init__(self, client: Any, link: Link) -> None:
        self._client = client
        self._link = link

    def sample(
        self,
        prompt: types.ModelInput,
        num_samples: int,
        sampling_params: types.SamplingParams,
        **options: Any,
    ) -> RemoteFuture[types.SampleResponse]:
        """Sample completions with the log-probability of each token."""
        return self._link.submit(
            lambda: self._client.sample(
                prompt=prompt, num_samples=num_samples, sampling_params=sampling_params, **options
            )
        )

    def compute_logprobs(self, prompt: types.ModelInput) -> RemoteFuture[list[float | None]]:
        """Return the log-probability of each prompt token given those before it, None for the
        first."""
        return self._link.submit(
            lambda: self._client.compute_logprobs(prompt),
            lambda found: from_first(found, prompt.length),
        )


async def logprobs_of(
    sampler: tinker.SamplingClient, tokens: Sequence[int], temperature: float
) -> list[float | None]:
    """Return the log-probability of each token given the tokens before it (None for the first), at
    this temperature.

    A temperature other than 1 needs a back end that can score at one
    (`Capabilities.pass_temperature`).
    """
    from tinker import types

    text = types.ModelInput.from_ints(list(tokens))
    if temperature == 1:
        return list(await ready(sampler.compute_logprobs(text)))
    # As in the SDK: scoring a text requires sampling one token after it, which is ignored.
    scoring = types.SamplingParams(max_tokens=1, temperature=temperature)
    response = await ready(sampler.sample(text, 1, scoring, include_prompt_logprobs=True))
    return from_first(response.prompt_logprobs, len(tokens))


async def gaps_to(
    sampler: tinker.SamplingClient,
    prompt: Sequence[int],
    tokens: Sequence[int],
    logprobs: Sequence[float],
    temperature: float,
) -> list[float]:
    """Return the absolute difference of each token's log-probability from the sampler's own
    score."""
    scored = await logprobs_of(sampler, [*prompt, *tokens], temperature)
    pairs = zip(logprobs, scored[len(prompt) :], strict=True)
    return [abs(a - b) for a, b in pairs if b is not None]


async def ready(value: Any) -> Any:
    """Return the value, or await it if it is a future: SDK versions differ in which calls return
    futures."""
    if hasattr(value, "__await__"):
        return await value
    if hasattr(value, "result"):
        return await asyncio.to_thread(value.result)
    return value


def from_first(logprobs: Sequence[float | None], count: int) -> list[float | None]:
    """Return the log-probabilities of a prompt of `count` tokens, with None for the first if the
    server (SkyRL 0.4) leaves it out."""
    return [None, *logprobs] if len(logprobs) == count - 1 else list(logprobs)


def _plain(answer: Any) -> Future[Any]:
    """Return the standard future behind any SDK version's result, or a finished one around a
    value."""
    inner = getattr(answer, "future", None)
    if callable(inner):
        found: Future[Any] = inner()
        return found
    if isinstance(answer, Future):
        return answer
    finished: Future[Any] = Future()
    finished.set_result(answer)
    return finished


def _in_words(error: BaseException) -> str:
    """Return an SDK error and its causes as text, each once."""
    cause = error.__cause__
    text = str(error) or type(error).__name__
    return (
        f"{text} ({cause})" if cause is not None and str(cause) and str(cause) not in text else text
    )
