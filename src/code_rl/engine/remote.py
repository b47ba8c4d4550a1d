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
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from code_rl.engine.places import HOSTED, Place
from code_rl.util.concurrency import wait_for
from code_rl.util.errors import BackendError, CodeRLError
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
        """Send nothing yet. `outage_timeout_s` is in seconds."""
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
        """Check the server's health, unless that was done recently or another thread does it.
        `waited_s` is how long the caller has waited; `said` is the last error that it got. It
        blocks for a few seconds at most.

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
            why = self.silence()
            # Of many callers, only one checks.
            self._next_check = time.monotonic() + self.check_every_s / 2
            if why is None:
                self.answered()
            else:
                self._outage.missed(why)
        finally:
            self._checking.release()

    def silence(self) -> str | None:
        """Check the server's health, waiting `check_every_s` seconds at most. Return the reason for
        no answer, without the key, or None if it answers. The outage's state is unchanged."""
        import httpx

        try:
            answer = httpx.get(self._health, timeout=self.check_every_s)
        except httpx.HTTPError as error:
            return self.place.redacted(str(error)) or type(error).__name__
        return f"status {answer.status_code}" if answer.is_server_error else None

    def answered(self) -> None:
        """Record that the server answers, which ends an outage with a log line."""
        self._outage.answered()

    async def watch(self, waiting: asyncio.Future[Any], since: float, said: str = "") -> None:
        """Wait until a request of the time `since` (time.monotonic) is done, and check the server
        meanwhile; its result or error is not read. Raises BackendError as `check` does. The request
        is cancelled with the wait, and by an error of `check`."""
        try:
            while not (await asyncio.wait({waiting}, timeout=self.check_every_s))[0]:
                await asyncio.to_thread(self.check, time.monotonic() - since, said)
        except BaseException:
            waiting.cancel()
            raise

    def submit(
        self, call: Callable[[], Any], then: Callable[[Any], T] = lambda value: value
    ) -> RemoteFuture[T]:
        """Make a call of the SDK now, before returning. The future resolves to `then` of its
        result, or raises BackendError; an exception of the call itself is kept for it too."""
        try:
            answer = call()
        except Exception as error:  # noqa: BLE001 - it is handed to whoever waits for the future
            answer = Future[Any]()
            answer.set_exception(error)
        return RemoteFuture(_standard_future(answer), self, then)


class RemoteFuture(Generic[T]):
    """A pending result. `result()` and `await` both raise BackendError if it fails. `then` is
    applied to the result."""

    def __init__(self, future: Future[Any], link: Link, then: Callable[[Any], T]) -> None:
        """Count the time that the request has taken from now on. `then` is applied to the result
        each time that it is read."""
        self._future, self._link, self._then = future, link, then
        self._since = time.monotonic()

    def result(self, timeout: float | None = None) -> T:
        """Block until the result, at most `timeout` seconds (None: as long as the link allows),
        also inside a running event loop. Raises BackendError, and TimeoutError, which cancels the
        request."""
        return wait_for(asyncio.wait_for(self.result_async(), timeout))

    async def result_async(self) -> T:
        """Await the result; cancelling the wait cancels the request. Raises BackendError if the
        request fails or its link's limits pass."""
        waiting = asyncio.wrap_future(self._future)
        await self._link.watch(waiting, self._since)
        try:
            result = waiting.result()
        except CodeRLError:
            raise
        except Exception as error:  # SDK versions differ in their exceptions; the cause is kept
            place = self._link.place
            raise BackendError(f"{place.url}: {place.redacted(_error_text(error))}") from error
        return self._then(result)

    def __await__(self) -> Generator[Any, None, T]:
        """Await `result_async`."""
        return self.result_async().__await__()


class RemoteService:
    """Makes clients on one server. Creating it opens a session, which the SDK retries for minutes,
    so call `preflight` first."""

    def __init__(self, place: Place, outage_timeout_s: float, ttl_seconds: int | None) -> None:
        """Open a session, and switch the SDK's telemetry off for any server but hosted Tinker
        unless TINKER_TELEMETRY is set. `ttl_seconds` is the lifetime of saved checkpoints (None:
        they do not expire). The SDK's own errors are raised."""
        if place.url != HOSTED:
            os.environ.setdefault("TINKER_TELEMETRY", "0")
        import tinker

        self.link = Link(place, outage_timeout_s)
        # Its lines go where ours go: into the run's log, whose formatter removes keys.
        logging.getLogger("tinker").parent = logger
        self._ttl_seconds = ttl_seconds
        self._service = tinker.ServiceClient(base_url=place.url, api_key=place.key)
        # Older SDKs create clients by blocking calls, newer ones return futures.
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="tinker-create")

    @property
    def session_id(self) -> str:
        """The server's name for this session."""
        return str(self._service.holder.get_session_id())

    async def training_client(self, how: str, *args: Any, **kwargs: Any) -> RemoteTrainingClient:
        """Return a client made by the method `how` of the SDK's service, called with these
        arguments. Raises BackendError."""
        client = await self._created(how, *args, **kwargs)
        logger.info("%s session %s model %s", self.link.place.url, self.session_id, client.model_id)
        return RemoteTrainingClient(client, self.link, self._ttl_seconds, self._threads)

    async def create_sampling_client(self, base_model: str) -> RemoteClient:
        """Return a sampler of a base model, without an adapter. Raises BackendError."""
        made = await self._created("create_sampling_client", base_model=base_model)
        return RemoteClient(made, self.link)

    def close(self) -> None:
        """End the session, waiting five seconds at most, so that the server does not wait for its
        heartbeat to lapse. A failure is logged and not raised."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        close = getattr(self._service, "close", None)
        if close is None:
            return
        try:
            self.link.submit(lambda: close("success")).result(timeout=_CLOSING_S)
        except (BackendError, TimeoutError) as error:
            logger.warning("the session could not be finished: %s", error)

    async def _created(self, how: str, *args: Any, **kwargs: Any) -> Any:
        """Make a client by the SDK's method `how`, on a thread, and wait for it within the link's
        limits. Raises BackendError."""

        def run() -> Any:
            """Return the client; an SDK that returns a future of it is waited for."""
            made = getattr(self._service, how)(*args, **kwargs)
            return made.result() if hasattr(made, "result") else made

        return await self.link.submit(lambda: self._threads.submit(run))


class RemoteClient:
    """A client of the SDK, for training or for sampling, with the same methods. Each call is made
    at once and returns a `RemoteFuture`."""

    def __init__(self, client: Any, link: Link) -> None:
        """`client` is the SDK's; `link` watches its server."""
        self._client, self._link = client, link

    def __getattr__(self, name: str) -> Callable[..., RemoteFuture[Any]]:
        """Return the SDK client's method `name`, changed so that it returns a RemoteFuture and
        raises nothing itself. Raises AttributeError for a method that the SDK does not have."""
        call = getattr(self._client, name)
        return lambda *args, **kwargs: self._link.submit(lambda: call(*args, **kwargs))


class RemoteTrainingClient(RemoteClient):
    """One model in training on a server. What it saves has the run's expiry, if there is one."""

    def __init__(
        self, client: Any, link: Link, ttl_seconds: int | None, threads: ThreadPoolExecutor
    ) -> None:
        """`ttl_seconds` is the lifetime of saved checkpoints (None: they do not expire), and
        `threads` runs calls of the SDK that may block."""
        super().__init__(client, link)
        self._expiry, self._threads = {"ttl_seconds": ttl_seconds}, threads

    def save_state(
        self, name: str, overwrite: bool = False
    ) -> RemoteFuture[types.SaveWeightsResponse]:
        """Save weights and optimizer state under `name`, in the order of requests. Without
        `overwrite` the server may refuse a name that exists; the future then raises
        BackendError."""
        save = self._client.save_state
        return self._link.submit(lambda: save(name, overwrite=overwrite, **self._expiry))

    def save_weights_for_sampler(
        self, name: str
    ) -> RemoteFuture[types.SaveWeightsForSamplerResponse]:
        """Save weights for later sampling, without optimizer state, in the order of requests."""
        save = self._client.save_weights_for_sampler
        return self._link.submit(lambda: save(name, **self._expiry))

    def save_weights_and_get_sampling_client(self) -> RemoteFuture[RemoteClient]:
        """Return a sampler with the weights at this request's turn in the queue; later training
        does not change it."""
        create = self._client.save_weights_and_get_sampling_client
        # Older SDKs block here until the sampler exists.
        at_once = (
            importlib.util.find_spec("tinker.lib.public_interfaces.backcompat_client_future")
            is not None
        )
        made = create if at_once else lambda: self._threads.submit(create)
        return self._link.submit(made, lambda client: RemoteClient(client, self._link))

    def get_info(self) -> RemoteFuture[types.GetInfoResponse]:
        """Return the server's facts about this model, such as its tokenizer's name."""
        return self._link.submit(lambda: self._threads.submit(self._client.get_info))


async def logprobs_of(
    sampler: tinker.SamplingClient, tokens: Sequence[int], temperature: float
) -> list[float | None]:
    """Return the log-probability, in nats, of each token given the tokens before it (None for the
    first), at this temperature.

    A temperature other than 1 needs a back end that can score at one
    (`Capabilities.pass_temperature`). Raises BackendError.
    """
    from tinker import types

    text = types.ModelInput.from_ints(list(tokens))
    if temperature == 1:
        found = await ready(sampler.compute_logprobs(text))
    else:
        # As in the SDK: scoring a text requires sampling one token after it, which is ignored.
        scoring = types.SamplingParams(max_tokens=1, temperature=temperature)
        response = await ready(sampler.sample(text, 1, scoring, include_prompt_logprobs=True))
        found = response.prompt_logprobs
    # SkyRL 0.4 leaves the first out.
    return [None, *found] if len(found) == len(tokens) - 1 else list(found)


async def gaps_to(
    sampler: tinker.SamplingClient,
    prompt: Sequence[int],
    tokens: Sequence[int],
    logprobs: Sequence[float],
    temperature: float,
) -> list[float]:
    """Return the absolute difference, in nats, of the log-probability of each of `tokens`, sampled
    after `prompt`, from the sampler's own score at this temperature. Tokens without a score are
    left out. Raises ValueError unless each token has a log-probability."""
    scored = await logprobs_of(sampler, [*prompt, *tokens], temperature)
    pairs = zip(logprobs, scored[len(prompt) :], strict=True)
    return [abs(a - b) for a, b in pairs if b is not None]


async def ready(value: Any) -> Any:
    """Return the value; a future is awaited, or waited for on a thread, first. SDK versions differ
    in which calls return futures."""
    if hasattr(value, "__await__"):
        return await value
    if hasattr(value, "result"):
        return await asyncio.to_thread(value.result)
    return value


def _standard_future(answer: Any) -> Future[Any]:
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


def _error_text(error: BaseException) -> str:
    """Return an SDK error as text, with its direct cause if the text does not contain that."""
    cause = error.__cause__
    text = str(error) or type(error).__name__
    return (
        f"{text} ({cause})" if cause is not None and str(cause) and str(cause) not in text else text
    )
