"""The sampling client, and its thread that combines concurrent requests into one batch."""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
from tinker import types
from tinker.lib.public_interfaces.api_future import AwaitableConcurrentFuture
from tinker.types.topk_logprobs import MASK_LOGPROB, TopkLogprobs

from code_rl.util.errors import ConfigError

from .decode import MAX_ROWS, Completion, SequenceRequest, decode
from .device import Device
from .forward import Prompt, Scored
from .hf import HfWeights, decode_hf
from .models import Model
from .passes import check_temperature, prompt_tokens
from .picking import Choice
from .weights import Weights
from .worker import Lanes, run_into

QUIET_S, LONGEST_LINGER_S = 0.002, 0.1
MAX_TOP_K = 1 << 30
MAX_LIKELIEST = 1024


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Immutable weights of a model. Requests that share it are sampled together."""

    model: Model
    weights: Weights | HfWeights


@dataclass(frozen=True)
class Request:
    """One checked `sample` call. `last_n` is the number of final prompt positions whose
    log-probabilities and `topk` likeliest tokens are returned (None: all). `number` is its place in
    its batch."""

    snapshot: Snapshot
    prompt: list[int]
    samples: int
    params: types.SamplingParams
    max_tokens: int
    seed: int
    stop_tokens: frozenset[int]
    stopped: Callable[[list[int]], bool] | None
    prompt_logprobs: bool
    last_n: int | None
    topk: int
    number: int
    future: Future[types.SampleResponse]


class Sampler:
    """One thread per service. Requests that wait at the same time and share a snapshot are sampled
    together, at most `MAX_ROWS` completions at first; further ones join while no other snapshot's
    requests wait.

    Callers submit a batch request by request: a batch begins when none has arrived for `quiet_s`.
    """

    def __init__(self, quiet_s: float) -> None:
        """`quiet_s` is how long, in seconds, a batch waits for further requests before it begins.
        The thread starts with the first request."""
        self._lanes = Lanes("embedded-sampler")
        self._quiet_s, self._arrived = quiet_s, 0.0
        # None: a part of the memory that is free when a batch begins.
        self.cache_bytes: int | None = None
        self._lock = threading.Lock()
        self._waiting: dict[Snapshot, deque[Request]] = {}

    def submit(self, request: Request) -> AwaitableConcurrentFuture[types.SampleResponse]:
        """Queue a request and return the future of its result, which can be cancelled until its
        batch begins. Raises BackendError after `close`."""
        with self._lock:
            self._lanes.submit(lambda: self._sample(request.snapshot), request.snapshot)
            self._waiting.setdefault(request.snapshot, deque()).append(request)
            self._arrived = time.monotonic()
        return AwaitableConcurrentFuture(request.future)

    def close(self) -> None:
        """Refuse new requests; those already queued are still answered."""
        self._lanes.close()

    def _sample(self, snapshot: Snapshot) -> None:
        """Answer the requests that wait for a snapshot, on the sampler's thread, once none has
        arrived for `quiet_s` or after 0.1 s. An earlier call may have left none."""
        with self._lock:  # `submit` queues this call before it adds its request
            if snapshot not in self._waiting:
                return
        end = time.monotonic() + LONGEST_LINGER_S
        while (left := min(end, self._arrived + self._quiet_s) - time.monotonic()) > 0:
            time.sleep(left)
        answer(self._take(snapshot), lambda: self._take(snapshot, joining=True), self.cache_bytes)

    def _take(self, snapshot: Snapshot, joining: bool = False) -> list[Request]:
        """Return the waiting requests for a snapshot, of about `MAX_ROWS` completions at most, in
        the order of their numbers. None are `joining` a running batch while requests for another
        snapshot wait. Cancelled ones are left out."""
        with self._lock:
            waiting = self._waiting.get(snapshot)
            if waiting is None or (joining and len(self._waiting) > 1):
                return []
            taken, rows = [waiting.popleft()], 0
            while waiting and (rows := rows + taken[-1].samples) < MAX_ROWS:
                taken.append(waiting.popleft())
            if not waiting:
                del self._waiting[snapshot]
        taken.sort(key=lambda request: request.number)
        return [request for request in taken if request.future.set_running_or_notify_cancel()]


def answer(
    requests: Sequence[Request],
    more: Callable[[], Sequence[Request]] = tuple,
    cache_bytes: int | None = None,
) -> None:
    """Sample requests that share a snapshot, and further ones that `more` returns while fewer than
    `MAX_ROWS` completions wait for room. A future is resolved when its request is done; an
    exception goes to all that are not.

    `cache_bytes` are the bytes for caches (None: half of the free memory).
    """
    if not requests:
        return
    weights = requests[0].snapshot.weights
    budget = Device(weights.device).cache_bytes if cache_bytes is None else cache_bytes
    taken: list[tuple[Request, dict[int, Completion]]] = []
    prompts: dict[Prompt, Prompt] = {}
    waiting: deque[SequenceRequest] = deque()

    def take(new: Sequence[Request]) -> None:
        """Add the completions of requests to the batch, in order. Equal prompts are one object, so
        that they are computed once."""
        for request in new:
            p, number = request.params, len(taken)
            scored_at = (p.temperature or 1.0) if request.prompt_logprobs or request.topk else None
            prompt = Prompt(tuple(request.prompt), scored_at, request.topk)
            prompt = prompts.setdefault(prompt, prompt)
            stops = request.stop_tokens, request.stopped
            for i in range(request.samples):
                choice = Choice(request.seed, i, float(p.temperature), int(p.top_k), float(p.top_p))
                waiting.append(
                    SequenceRequest((number, i), prompt, request.max_tokens, choice, *stops)
                )
            taken.append((request, {}))

    def arrive() -> None:
        """Add the requests that `more` returns, unless `MAX_ROWS` completions wait already."""
        if len(waiting) < MAX_ROWS:
            take(more())

    take(requests)
    completions = (
        decode_hf(weights, waiting, budget, arrive)
        if isinstance(weights, HfWeights)
        else decode(weights, waiting, budget, arrive)
    )
    try:
        for draw, completion in completions:
            number, index = draw.place
            request, done = taken[number]
            done[index] = completion
            if len(done) == request.samples:
                request.future.set_result(
                    _response(request, [done[i] for i in range(request.samples)])
                )
    except BaseException as error:  # noqa: BLE001 - it is handed to whoever waits for the futures
        for request, _ in taken:
            if not request.future.done():
                request.future.set_exception(error)


def _response(request: Request, completions: Sequence[Completion]) -> types.SampleResponse:
    """Assemble the SDK's response from one request's completions, in the order of their indices."""
    scored, length = completions[0].scored, len(request.prompt)
    before = length - (request.last_n or length)
    logprobs = np.concatenate([np.full(before, np.nan, dtype=np.float32), scored.logprobs[before:]])
    best = _likeliest(request, scored, max(before, 1)) if request.topk else None
    sequences = [
        types.SampledSequence(
            stop_reason="stop" if c.stopped else "length",
            sequence_id=secrets.token_hex(8),
            tokens_np=c.tokens,
            logprobs_np=c.logprobs,
        )
        for c in completions
    ]
    return types.SampleResponse(
        sequences=sequences,
        prompt_logprobs_np=logprobs if request.prompt_logprobs else None,
        topk_prompt_logprobs_np=best,
    )


def _likeliest(request: Request, scored: Scored, start: int) -> TopkLogprobs:
    """Return the likeliest tokens from position `start` of the prompt on, [tokens, k]. Earlier
    positions have the SDK's markers for empty cells."""
    shape = len(request.prompt), request.topk
    ids, logprobs = np.zeros(shape, dtype=np.int32), np.full(shape, MASK_LOGPROB, dtype=np.float32)
    if len(scored.ids):
        ids[start:], logprobs[start:] = scored.ids[start - 1 :], scored.best[start - 1 :]
    return TopkLogprobs(token_ids=ids, logprobs=logprobs)


class EmbeddedSamplingClient:
    """Samples from one immutable snapshot, with the methods and results of
    `tinker.SamplingClient`."""

    def __init__(self, sampler: Sampler, snapshot: Snapshot) -> None:
        """`sampler` is shared by the service's clients; requests of one snapshot are sampled
        together."""
        self._sampler = sampler
        self._snapshot = snapshot

    def sample(
        self,
        prompt: types.ModelInput,
        num_samples: int,
        sampling_params: types.SamplingParams,
        include_prompt_logprobs: bool = False,
        topk_prompt_logprobs: int = 0,
        prompt_logprobs_last_n: int | None = None,
        *,
        number: int = 0,
    ) -> AwaitableConcurrentFuture[types.SampleResponse]:
        """Sample `num_samples` completions; the future resolves once all are done.

        A token id that ends a completion is its last token. `stop` None stops at the model's
        end-of-sequence tokens, a list at its entries and at those tokens; `[]` never stops.
        `max_tokens` None fills the context. All log-probabilities are at the temperature (greedy:
        1), before top-k and top-p. With `seed`, sample i depends only on the seed, i and the
        prompt. A batch is sorted by `number`, which the SDK does not have.

        Raises ConfigError at once for unsupported settings or a request longer than the context.
        Raises DataError for a prompt that is not text or has ids outside the vocabulary, and
        BackendError after the service's `close`.
        """
        if num_samples < 1:
            raise ConfigError(f"num_samples={num_samples} must be at least 1")
        snapshot, params = self._snapshot, sampling_params
        arch = snapshot.weights.arch
        scored, last_n = include_prompt_logprobs, prompt_logprobs_last_n
        tokens = prompt_tokens(prompt, arch, "prompt")
        room = arch.max_context - len(tokens)
        # The SDK scores a text by sampling one token after it, which is ignored: so a text may fill
        # the context.
        most = max(room, 1) if scored or topk_prompt_logprobs else room
        limit = params.max_tokens if params.max_tokens is not None else max(room, 0)
        if limit > most or room < 0:
            raise ConfigError(
                f"prompt of {len(tokens)} tokens and max_tokens={limit} exceed the model's context "
                f"of {arch.max_context}"
            )
        _check_params(params, limit)
        if last_n is not None and not (scored and 1 <= last_n < len(tokens)):
            raise ConfigError(
                f"prompt_logprobs_last_n={last_n} needs include_prompt_logprobs and 1 to "
                f"{len(tokens) - 1} tokens"
            )
        _check_top_k(topk_prompt_logprobs, min(MAX_LIKELIEST, arch.vocab))
        request = Request(
            snapshot,
            tokens,
            num_samples,
            params,
            limit,
            params.seed if params.seed is not None else secrets.randbits(63),
            *self._stops(params.stop),
            scored,
            last_n,
            topk_prompt_logprobs,
            number,
            Future(),
        )
        return self._sampler.submit(request)

    def compute_logprobs(
        self, prompt: types.ModelInput, prompt_logprobs_last_n: int | None = None
    ) -> AwaitableConcurrentFuture[list[float | None]]:
        """Return a future of the log-probability, in nats at temperature 1, of each prompt token
        given those before it. None stands for the first and for positions before the last
        `prompt_logprobs_last_n`. Raises as `sample` does."""
        params = types.SamplingParams(max_tokens=0)
        response = self.sample(prompt, 1, params, True, 0, prompt_logprobs_last_n).future()
        result: Future[list[float | None]] = Future()

        def hand_over(done: Future[types.SampleResponse]) -> None:
            """Put the scores, or the exception, into the result."""
            run_into(result, lambda: done.result().prompt_logprobs or [])

        response.add_done_callback(hand_over)
        return AwaitableConcurrentFuture(result)

    def get_tokenizer(self) -> Any:
        """Return the model's tokenizer, loaded on first use. Raises ConfigError if it has none."""
        return self._snapshot.model.tokenizer

    def max_context_length(self) -> int:
        """Return the most tokens of prompt and completion together."""
        return self._snapshot.weights.arch.max_context

    def _stops(
        self, stop: str | Sequence[str] | Sequence[int] | None
    ) -> tuple[frozenset[int], Callable[[list[int]], bool] | None]:
        """Return the token ids that end a completion, and a test for stop texts (None: there are
        none). Raises ConfigError for entries other than token ids and non-empty texts."""
        eos = self._snapshot.model.eos
        if stop is None:
            return eos, None
        entries = [stop] if isinstance(stop, str) else list(stop)
        texts = [entry for entry in entries if isinstance(entry, str) and entry]
        ids = frozenset(entry for entry in entries if type(entry) is int)
        if len(texts) + sum(type(entry) is int for entry in entries) != len(entries):
            raise ConfigError(f"stop={stop!r} must hold token ids or non-empty strings")
        if not entries:
            return ids, None
        return eos | ids, _text_stop(self.get_tokenizer(), texts) if texts else None


def _check_top_k(k: int, most: int) -> None:
    """Raise ConfigError unless `topk_prompt_logprobs` is from 0 to `most`."""
    if not 0 <= k <= most:
        raise ConfigError(f"topk_prompt_logprobs={k} must be from 0 to {most}")


def _check_params(params: types.SamplingParams, limit: int) -> None:
    """Raise ConfigError for a sampling parameter outside its range. `limit` is the number of tokens
    to sample."""
    if limit < 0:
        raise ConfigError(f"max_tokens={limit} must not be negative")
    if params.temperature != 0:
        check_temperature(params.temperature, "temperature")
    if not 0 < params.top_p <= 1:
        raise ConfigError(f"top_p={params.top_p} must be above 0 and at most 1")
    if params.top_k != -1 and not 1 <= params.top_k <= MAX_TOP_K:
        raise ConfigError(f"top_k={params.top_k} must be -1 (no limit) or from 1 to {MAX_TOP_K}")


def _text_stop(tokenizer: Any, texts: Sequence[str]) -> Callable[[list[int]], bool]:
    """Return a function that is True for tokens whose last one completed one of the texts. It
    assumes that a token stands for at least one byte of text."""
    window = max(len(text.encode()) for text in texts) + 4

    def stopped(tokens: list[int]) -> bool:
        """Return True if one of the texts is in the last tokens' text."""
        tail = tokenizer.decode(tokens[-window:], skip_special_tokens=False)
        return any(text in tail for text in texts)

    return stopped
