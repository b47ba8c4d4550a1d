"""An OpenAI Chat Completions endpoint: vLLM, SGLang, TGI, TensorRT-LLM, `transformers serve`, a hosted API.

One request per sample. What may pass (no connection, time-outs, 408, 409, 425, 429, 5xx, answers that are no answer) is tried again with growing
pauses, until nothing has been answered for `patience`, or the server asks for more. Whether then, and where a request is refused for good (401, 404, 451, ...), the
server or this one request is to blame, a request of one token decides: where that is answered, this is one missing sample, else the evaluation stops. A request that
the server refuses for itself (400, 413, 422), or leaves without an answer twice, is a missing sample without that.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp

from code_rl.evaluation.completers import Completer, CompletionError, Request
from code_rl.evaluation.samples import GREEDY, Sample
from code_rl.evaluation.settings import EvalConfig, narrowed
from code_rl.policy.sample import derive_seed
from code_rl.util.errors import BackendError, ConfigError

logger = logging.getLogger("code_rl.outages")

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
PASSING = frozenset({408, 409, 425, 429})
FOR_ITSELF = frozenset({400, 413, 422})
CONNECT_TIMEOUT_S = 30.0
SLOW_TRIES = 2
"""How often a request may run into its own time-out before its sample is missing: a model that never ends is no server that is away."""
SHOWN = 200
RESERVED = ("model", "messages", "max_tokens", "temperature", "seed", "stream", "n")


class Endpoint(Completer):
    """Chat completions of `model=` at `endpoint=` (with or without `/v1` and `/chat/completions`), as the settings of `code-rl eval` ask for them."""

    grouped = False

    def __init__(self, config: EvalConfig) -> None:
        self._config, self._url = config, chat_url(str(config.endpoint))
        self._answered = self._told = time.monotonic()
        self._timeout = aiohttp.ClientTimeout(total=config.request_timeout, sock_connect=CONNECT_TIMEOUT_S)
        self._extra = read_extra(config.extra_body, narrowed(config))
        self._headers = _headers(config.api_key_env)
        self._session: aiohttp.ClientSession | None = None
        self._rng = random.Random(0)
        self.at_once, self._places = config.asking, asyncio.Semaphore(config.asking)
        self.description = f"{config.model} at {self._url}"
        self.facts = {"endpoint": self._url, "model": config.model, "extra_body": self._extra}

    async def complete(self, request: Request, numbers: Sequence[int]) -> list[Sample]:
        """One request for each number, at once."""
        return list(await asyncio.gather(*(self._one(request, number) for number in numbers)))

    async def aclose(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _one(self, request: Request, number: int) -> Sample:
        body = {
            **self._extra,
            **narrowed(self._config),
            "model": self._config.model,
            "messages": list(request.opening),
            "max_tokens": self._config.max_tokens,
            "temperature": 0.0 if request.mode == GREEDY else self._config.temperature,
            "seed": derive_seed(request.seed, request.mode, number),
        }
        async with self._places:
            started = time.perf_counter()
            answer = await self._patiently(body)
            seconds = time.perf_counter() - started
        choice = answer["choices"][0]
        return Sample(
            request.problem.id,
            request.mode,
            number,
            completion=choice["message"].get("content") or "",
            truncated=choice.get("finish_reason") == "length",
            prompt_tokens=_counted(answer, "prompt_tokens"),
            completion_tokens=_counted(answer, "completion_tokens"),
            seconds=seconds,
        )

    async def _patiently(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The server's answer. Raises CompletionError, ConfigError, or (patience at its end) BackendError."""
        trouble_since: float | None = None
        pause, slow, tries, alone = FIRST_PAUSE_S, 0, 0, False
        patience, timeout = self._config.patience, self._config.request_timeout
        while True:
            try:
                answer = await self._once(body)
            except _RefusedError as error:
                if await self._answers_another():
                    raise CompletionError(f"http_{error.status}", str(error)) from error
                raise ConfigError(error.advice) from error
            except _PassingError as error:
                now = time.monotonic()
                slow, tries = slow + error.slow, tries + 1
                trouble_since = now if trouble_since is None else trouble_since
                if error.retry_after > patience:
                    raise BackendError(
                        f"{self._url} asks to be left alone for {error.retry_after:g} s ({error}), longer than patience={patience:g}; "
                        "every sample so far is kept: run the same command again then, or with a larger patience"
                    ) from error
                if slow == SLOW_TRIES and now - self._answered <= patience + SLOW_TRIES * timeout:
                    raise CompletionError("request_timeout", f"no answer within {timeout:g} s, {slow} times") from error
                left = patience - (now - max(trouble_since, self._answered))
                if not alone and (left <= 0 or slow == SLOW_TRIES):
                    if not await self._answers_another():
                        raise BackendError(
                            f"{self._url} did not answer for {patience:g} s ({error}; patience=); "
                            "every sample so far is kept: run the same command again to go on"
                        ) from error
                    alone = True
                    if slow < SLOW_TRIES:  # it may have come back just now
                        continue
                if alone:
                    how = f"{error}, {tries} times, while another request was answered"
                    raise CompletionError("request_timeout" if error.slow else "server_error", how) from error
                wait = max(error.retry_after, min(pause * (0.5 + self._rng.random()), left))
                if wait > LONGEST_PAUSE_S and now + wait > self._told:
                    self._told = now + 2 * wait
                    logger.warning("%s asks to be left alone for %g s (%s); waiting", self._url, wait, error)
                await asyncio.sleep(wait)
                pause = min(2 * pause, LONGEST_PAUSE_S)
            else:
                self._answered = time.monotonic()
                return answer

    async def _answers_another(self) -> bool:
        """Whether the server answers a request of one token now: then it is up, key and model are right, and another request that it fails is to blame itself."""
        asked = {
            "model": self._config.model,
            "messages": [{"role": "user", "content": "1"}],
            "max_tokens": 1,
            "seed": 0,
        }
        with contextlib.suppress(_PassingError, _RefusedError, CompletionError):
            await self._once(asked)
            return True
        return False

    async def _once(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if self._session is None:
            many = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(headers=self._headers, timeout=self._timeout, connector=many)
        try:
            async with self._session.post(self._url, json=body) as response:
                text = await response.text()
                _check_status(response, text, self._url, self._config.model)
        except (aiohttp.ClientError, UnicodeDecodeError) as error:
            raise _PassingError(f"{type(error).__name__}: {error}") from error
        except TimeoutError as error:
            raise _PassingError(f"no answer within {self._config.request_timeout:g} s", slow=True) from error
        return _read_answer(text)


class _PassingError(Exception):
    """Trouble that may pass; `retry_after` is what the server asked for, in seconds, `slow` says that it is this one request's time-out."""

    def __init__(self, message: str, retry_after: float = 0.0, *, slow: bool = False) -> None:
        super().__init__(message)
        self.retry_after, self.slow = retry_after, slow


class _RefusedError(Exception):
    """A status that no waiting changes; `advice` is what to say where the server refuses every request so."""

    def __init__(self, status: int, message: str, advice: str) -> None:
        super().__init__(message)
        self.status, self.advice = status, advice


def _check_status(response: aiohttp.ClientResponse, text: str, url: str, model: str | None) -> None:
    status = response.status
    if status == 200:
        return
    shown = " ".join(text[:SHOWN].split())
    if status in PASSING or status >= 500:
        raise _PassingError(f"HTTP {status}: {shown}", _seconds(response))
    if status in FOR_ITSELF:
        raise CompletionError(f"http_{status}", shown)
    if status in (401, 403):
        advice = f"endpoint={url} refuses the key (HTTP {status}): {shown}; name its variable in api_key_env="
    else:
        advice = f"endpoint={url} with model={model} answers HTTP {status}: {shown}"
    raise _RefusedError(status, shown, advice)


def _seconds(response: aiohttp.ClientResponse) -> float:
    """Its `Retry-After` in seconds from now, said as a number or as a date; 0 for anything else."""
    text = response.headers.get("Retry-After", "")
    with contextlib.suppress(ValueError, OverflowError):
        wait = float(text) if text[:1].isdigit() else parsedate_to_datetime(text).timestamp() - time.time()
        return max(0.0, wait)
    return 0.0


def _read_answer(text: str) -> dict[str, Any]:
    try:
        answer = json.loads(text)
        choice = answer["choices"][0]
        message, ended = choice["message"], choice.get("finish_reason")
        if isinstance(content := message.get("content"), list):  # in parts, as some servers give it
            content = message["content"] = "".join(part["text"] for part in content)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise _PassingError(f"not a chat completion: {' '.join(text[:SHOWN].split())}") from error
    if content is not None and not isinstance(content, str):
        raise _PassingError("the message's content is not text")
    if ended == "abort":
        raise _PassingError("the server gave the completion up (finish_reason abort)")
    return dict(answer)


def _counted(answer: Mapping[str, Any], name: str) -> int:
    """A number of tokens as the server says it; 0 where it says none."""
    usage = answer.get("usage")
    count = usage.get(name) if isinstance(usage, dict) else None
    return count if isinstance(count, int) else 0


def chat_url(url: str) -> str:
    """The address of chat completions at `url`. Raises ConfigError for anything that is no http(s) address."""
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"endpoint={url!r} is no http(s) address; write http://HOST:PORT/v1")
    base = url.rstrip("/")
    if base.endswith("/chat/completions"):
        return base
    return f"{base}/chat/completions" if base.endswith("/v1") else f"{base}/v1/chat/completions"


def read_extra(text: str | None, also: Iterable[str] = ()) -> dict[str, Any]:
    """Further fields of every request, from JSON. Raises ConfigError for another form, and for fields that have settings."""
    if text is None:
        return {}
    try:
        extra = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"extra_body={text!r} is not JSON: {error}") from error
    if not isinstance(extra, dict):
        raise ConfigError(f"extra_body={text!r} must be a JSON object")
    taken = [name for name in (*RESERVED, *also) if name in extra]
    if taken:
        raise ConfigError(f"extra_body holds {taken[0]!r}, which the evaluation sets itself; use its own setting")
    return extra


def _headers(api_key_env: str | None) -> dict[str, str]:
    """The key, from the variable that was named: no key is ever sent to an endpoint unasked."""
    if api_key_env is None:
        return {}
    key = os.environ.get(api_key_env)
    if not key:
        raise ConfigError(f"api_key_env={api_key_env}: that environment variable is not set")
    return {"Authorization": f"Bearer {key}"}
