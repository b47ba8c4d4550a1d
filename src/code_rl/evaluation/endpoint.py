"""An OpenAI Chat Completions endpoint, called through the package `openai`: vLLM, SGLang, TGI,
TensorRT-LLM, `transformers serve`, a hosted API."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from code_rl.evaluation.generators import CompletionError, CompletionGenerator, CompletionRequest
from code_rl.evaluation.samples import GREEDY, Sample
from code_rl.evaluation.settings import EvalConfig, narrowed
from code_rl.policy import derive_seed
from code_rl.util.errors import BackendError, ConfigError, install_command
from code_rl.util.proxies import settle_proxies, via_proxy
from code_rl.util.redaction import HIDDEN

PASSING = frozenset({408, 409, 429})
# The longest pause of `openai` between tries; the first is half a second, each later one is
# doubled.
LONGEST_PAUSE_S = 8.0
FIRST_TRIES = 4
FOR_ITSELF = frozenset({400, 413, 422})
CONNECT_TIMEOUT_S = 30.0
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
"""Headers of a request besides the named key. They replace those that `openai` takes from
environment variables."""
RESERVED = ("model", "messages", "max_tokens", "temperature", "seed", "stream", "n")


class Endpoint(CompletionGenerator):
    """Chat completions of `model_name=` at `endpoint=`, with the settings of `code-rl eval`."""

    grouped = False

    def __init__(self, config: EvalConfig) -> None:
        """Prepare the client; nothing is sent. Raises ConfigError for an `endpoint`, `extra_body`
        or `api_key_env` that cannot be used, or without the package `openai`."""
        self._config, self._url = config, str(config.endpoint).rstrip("/")
        self._extra = read_extra(config.extra_body, narrowed(config))
        self._key = _read_key(config.api_key_env)
        self._client = _connect(self._url, self._key, config.outage_timeout)
        self.at_once, self._places = config.asking, asyncio.Semaphore(config.asking)
        self.description = f"{config.model_name} at {self._url}"
        self.facts = {"endpoint": self._url, "model": config.model_name, "extra_body": self._extra}
        self._answered = time.monotonic()

    async def check(self) -> None:
        """Raise BackendError if no server listens. Any answer, also a refusal, and a slow server
        are accepted."""
        import openai

        asking = self._client.with_options(max_retries=0, timeout=CONNECT_TIMEOUT_S)
        try:
            await asking.models.list()
        except openai.APITimeoutError:
            return
        except openai.APIConnectionError as error:
            raise BackendError(
                f"endpoint={self._url}{via_proxy(self._url)} cannot be reached "
                f"({error.__cause__ or error}); start its server, or correct the address"
            ) from None
        except (openai.OpenAIError, ValueError):
            return

    async def complete(self, request: CompletionRequest, numbers: Sequence[int]) -> list[Sample]:
        """Send one request for each number, at most `asking` at once over the whole evaluation, and
        return the samples in order. Raises CompletionError for a sample that is not available,
        BackendError or ConfigError if none can be."""
        return list(
            await asyncio.gather(*(self._request_sample(request, number) for number in numbers))
        )

    async def aclose(self) -> None:
        """Close the connections; `complete` fails afterwards."""
        await self._client.close()

    async def _request_sample(self, request: CompletionRequest, number: int) -> Sample:
        """Send one request, in its turn, and read the sample from the answer. Its seed depends only
        on the problem's seed, the mode and the number. `seconds` excludes the wait for the turn."""
        body = {
            "model": self._config.model_name,
            "messages": list(request.opening),
            "max_tokens": self._config.max_tokens,
            "temperature": 0.0 if request.mode == GREEDY else self._config.temperature,
            "seed": derive_seed(request.seed, request.mode, number),
            "extra_body": {**self._extra, **narrowed(self._config)},
        }
        async with self._places:
            started = time.perf_counter()
            answer = await self._answer(body)
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

    async def _answer(self, body: Mapping[str, Any]) -> Any:
        """Return the server's answer to one request, which has a whole choice. Raises
        CompletionError for this sample alone, ConfigError for a wrong address, model or key,
        BackendError if the server is gone.

        A request that fails for `outage_timeout` while the server answers others is a missing
        sample. If no request is answered for so long, the evaluation stops.
        """
        import openai

        outage_s, timeout = self._config.outage_timeout, self._config.request_timeout
        began = time.monotonic()
        try:
            async with asyncio.timeout(timeout):
                answer = await self._client.chat.completions.create(**body)
            choice = answer.choices[0]
            if (
                not isinstance(choice.message.content, str | None)
                or choice.finish_reason == "abort"
            ):
                raise ValueError(choice)
        except TimeoutError as error:
            why = f"no answer within {timeout:g} s"
            if time.monotonic() - self._answered > outage_s + timeout:
                raise self._gone(why) from error
            raise CompletionError(f"request_timeout: {why}") from error
        except openai.APIStatusError as error:
            status, shown = error.status_code, " ".join(error.response.text[:SHOWN].split())
            shown = f"HTTP {status}: {shown.replace(self._key, HIDDEN) if self._key else shown}"
            if status in PASSING or status >= 500:
                raise self._failed(shown, began) from None
            if status in FOR_ITSELF:
                raise CompletionError(f"http_{status}: {shown}") from None
            remedy = (
                "name the key's variable in api_key_env="
                if status in (401, 403)
                else "an address ends in /v1"
            )
            raise ConfigError(
                f"endpoint={self._url} with model_name={body['model']} answers {shown}; {remedy}"
            ) from None
        except openai.APIConnectionError as error:
            raise self._failed(type(error.__cause__ or error).__name__, began) from None
        except (openai.APIError, AttributeError, IndexError, TypeError, ValueError) as error:
            raise CompletionError(
                "no_completion: the answer is no whole chat completion"
            ) from error
        self._answered = time.monotonic()
        return answer

    def _failed(self, why: str, began: float) -> CompletionError | BackendError:
        """Return the error of a request that `began` then (`time.monotonic`): of this sample alone
        if the server has answered others since, else of the server. The caller raises it."""
        if self._answered > began:
            return CompletionError(f"server_error: {why}, while others were answered")
        return self._gone(why)

    def _gone(self, why: str) -> BackendError:
        """Return the error that ends the evaluation: the server answers nothing. The caller raises
        it."""
        return BackendError(
            f"{self._url}{via_proxy(self._url)} did not answer for "
            f"{self._config.outage_timeout:g} s ({why}; outage_timeout=); every sample so far is "
            "kept: run the same command again to go on"
        )


def _connect(url: str, key: str | None, outage_timeout_s: float) -> Any:
    """Return a client that sends the named `key` (None: no key) and nothing from other environment
    variables. It repeats a failed request for about `outage_timeout_s` seconds. Raises ConfigError
    for an address that is no http(s) URL, or without the package `openai`."""
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
        """Delete every header but those named, before the request is sent."""
        for name in set(request.headers) - sent:
            del request.headers[name]

    settle_proxies(url)
    http = openai.DefaultAsyncHttpxClient(event_hooks={"request": [send_no_more]})
    timeout = openai.Timeout(None, connect=CONNECT_TIMEOUT_S)
    return openai.AsyncOpenAI(
        api_key=key or "none",
        base_url=url,
        timeout=timeout,
        max_retries=FIRST_TRIES + round(outage_timeout_s / LONGEST_PAUSE_S),
        default_headers=named,
        http_client=http,
    )


def read_extra(text: str | None, also: Iterable[str]) -> dict[str, Any]:
    """Return further fields of every request, from a JSON object (None: no fields). Raises
    ConfigError for another form, and for fields that have settings of their own: RESERVED and
    `also`."""
    if text is None:
        return {}
    try:
        extra = dict(json.loads(text))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"extra_body={text!r} is not a JSON object: {error}") from error
    taken = [name for name in (*RESERVED, *also) if name in extra]
    if taken:
        raise ConfigError(
            f"extra_body holds {taken[0]!r}, which the evaluation sets itself; use its own setting"
        )
    return extra


def _read_key(variable: str | None) -> str | None:
    """Return the key from the named environment variable, or None if no variable is named. Raises
    ConfigError if it is not set to printable ASCII."""
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key.isascii() or not key.isprintable() or not key:
        raise ConfigError(f"api_key_env={variable}: that environment variable is not set to a key")
    return key
