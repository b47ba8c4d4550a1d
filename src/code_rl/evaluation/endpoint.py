"""An OpenAI Chat Completions endpoint, asked by way of the package `openai`: vLLM, SGLang, TGI,
TensorRT-LLM, `transformers serve`, a hosted API."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from code_rl.evaluation.completers import Completer, CompletionError, CompletionRequest
from code_rl.evaluation.samples import GREEDY, Sample
from code_rl.evaluation.settings import EvalConfig, narrowed
from code_rl.policy import derive_seed
from code_rl.util.errors import BackendError, ConfigError, install_command
from code_rl.util.redaction import HIDDEN

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
PASSING = frozenset({408, 409, 425, 429})
FOR_ITSELF = frozenset({400, 413, 422})
CONNECT_TIMEOUT_S = 30.0
SLOW_TRIES = 2
SHOWN = 200
SENT = frozenset(
    {
        "host",
        "accept",
        "accept-encoding",
        "connection",
        "content-type",
        "content-length",
        "user-agent",
    }
)
"""Headers of a request, beside the key that was named: `openai` adds others from variables of the
environment."""
RESERVED = ("model", "messages", "max_tokens", "temperature", "seed", "stream", "n")


class Endpoint(Completer):
    """Chat completions of `model=` at `endpoint=`, as the settings of `code-rl eval` ask for
    them."""

    grouped = False

    def __init__(self, config: EvalConfig) -> None:
        self._config, self._url = config, str(config.endpoint).rstrip("/")
        self._extra = read_extra(config.extra_body, narrowed(config))
        self._key = _read_key(config.api_key_env)
        self._client = _connect(self._url, self._key)
        self.at_once, self._places = config.asking, asyncio.Semaphore(config.asking)
        self.description = f"{config.model} at {self._url}"
        self.facts = {"endpoint": self._url, "model": config.model, "extra_body": self._extra}
        self._answered = time.monotonic()

    async def complete(self, request: CompletionRequest, numbers: Sequence[int]) -> list[Sample]:
        """One request for each number, at once."""
        return list(await asyncio.gather(*(self._one(request, number) for number in numbers)))

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _one(self, request: CompletionRequest, number: int) -> Sample:
        body = {
            "model": self._config.model,
            "messages": list(request.opening),
            "max_tokens": self._config.max_tokens,
            "temperature": 0.0 if request.mode == GREEDY else self._config.temperature,
            "seed": derive_seed(request.seed, request.mode, number),
            "extra_body": {**self._extra, **narrowed(self._config)},
        }
        async with self._places:
            started = time.perf_counter()
            answer = await self._patiently(body)
            seconds = time.perf_counter() - started
        choice = answer.choices[0]
        return Sample(
            request.problem.id,
            request.mode,
            number,
            completion=choice.message.content or "",
            truncated=choice.finish_reason == "length",
            prompt_tokens=answer.usage.prompt_tokens if answer.usage else 0,
            completion_tokens=answer.usage.completion_tokens if answer.usage else 0,
            seconds=seconds,
        )

    async def _patiently(self, body: Mapping[str, Any]) -> Any:
        """The server's answer. Raises CompletionError, ConfigError, or (patience at its end)
        BackendError.

        A request that fails for `patience` while the server answers others is a missing sample;
        where nothing is answered, the evaluation stops.
        """
        patience, timeout = self._config.patience, self._config.request_timeout
        began, pause, slow = time.monotonic(), FIRST_PAUSE_S, 0
        while True:
            try:
                async with asyncio.timeout(timeout):
                    answer = await self._once(body)
            except TimeoutError as error:
                slow, why = slow + 1, f"no answer within {timeout:g} s"
                if slow == SLOW_TRIES:
                    if time.monotonic() - self._answered > patience + SLOW_TRIES * timeout:
                        raise self._gone(why) from error
                    raise CompletionError("request_timeout", f"{why}, {slow} times") from error
            except _PassingError as error:
                left = began + patience - time.monotonic()
                if left <= 0 or error.retry_after > left:
                    if self._answered > began:
                        raise CompletionError(
                            "server_error", f"{error}, while others were answered"
                        ) from error
                    raise self._gone(str(error)) from error
                await asyncio.sleep(max(error.retry_after, min(pause, left)))
                pause = min(2 * pause, LONGEST_PAUSE_S)
            else:
                self._answered = time.monotonic()
                return answer

    async def _once(self, body: Mapping[str, Any]) -> Any:
        import openai

        try:
            answer = await self._client.chat.completions.create(**body)
            choice = answer.choices[0]
            if (
                not isinstance(choice.message.content, str | None)
                or choice.finish_reason == "abort"
            ):
                raise _PassingError("the server gave no whole completion")
        except openai.APIStatusError as error:
            status, shown = error.status_code, " ".join(error.response.text[:SHOWN].split())
            shown = f"HTTP {status}: {shown.replace(self._key, HIDDEN) if self._key else shown}"
            if status in PASSING or status >= 500:
                raise _PassingError(
                    shown, _seconds(error.response.headers.get("retry-after"))
                ) from None
            if status in FOR_ITSELF:
                raise CompletionError(f"http_{status}", shown) from None
            remedy = (
                "name the key's variable in api_key_env="
                if status in (401, 403)
                else "an address ends in /v1"
            )
            raise ConfigError(
                f"endpoint={self._url} with model={body['model']} answers {shown}; {remedy}"
            ) from None
        except openai.APIError as error:
            raise _PassingError(type(error.__cause__ or error).__name__) from None
        except (AttributeError, IndexError, TypeError, ValueError) as error:
            raise _PassingError("the answer is no chat completion") from error
        return answer

    def _gone(self, why: str) -> BackendError:
        return BackendError(
            f"{self._url} did not answer for {self._config.patience:g} s ({why}; patience=); "
            "every sample so far is kept: run the same command again to go on"
        )


class _PassingError(Exception):
    """Trouble that may pass; `retry_after` is what the server asked for, in seconds."""

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


def _connect(url: str, key: str | None) -> Any:
    """A client that sends the key that was named, and nothing from other variables of the
    environment."""
    try:
        import openai
    except ImportError as error:
        raise ConfigError(
            f"endpoint= needs the package openai; run: {install_command('endpoint')}"
        ) from error
    try:
        parts = urlsplit(url)
        whole = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        whole = False
    if not whole:
        raise ConfigError(f"endpoint={url!r} is no http(s) address; write http://HOST:PORT/v1")
    named = {"Authorization": f"Bearer {key}"} if key else {}
    sent = SENT | {name.lower() for name in named}

    async def send_no_more(request: Any) -> None:
        for name in set(request.headers) - sent:
            del request.headers[name]

    http = openai.DefaultAsyncHttpxClient(trust_env=False, event_hooks={"request": [send_no_more]})
    timeout = openai.Timeout(None, connect=CONNECT_TIMEOUT_S)
    return openai.AsyncOpenAI(
        api_key=key or "none",
        base_url=url,
        timeout=timeout,
        max_retries=0,
        default_headers=named,
        http_client=http,
    )


def _seconds(retry_after: str | None) -> float:
    with contextlib.suppress(ValueError):
        return max(0.0, float(retry_after or 0))
    return 0.0


def read_extra(text: str | None, also: Iterable[str] = ()) -> dict[str, Any]:
    """Further fields of every request, from JSON. Raises ConfigError for another form, and for
    fields that have settings."""
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
        raise ConfigError(
            f"extra_body holds {taken[0]!r}, which the evaluation sets itself; use its own setting"
        )
    return extra


def _read_key(variable: str | None) -> str | None:
    """The key, from the variable that was named."""
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key.isascii() or not key.isprintable() or not key:
        raise ConfigError(f"api_key_env={variable}: that environment variable is not set to a key")
    return key
