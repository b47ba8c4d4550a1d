"""A vLLM server as the sampler beside the embedded trainer (`sampler=`).

After each step the adapter is written in peft's form and loaded into the server under a new name.
Prompts and completions are sent as token ids with log-probabilities. The trainer's own engine
scores the first answer of every adapter again. The difference is logged, and a large difference
ends the run before anything is trained on the samples. A run waits for an unreachable server, and
loads its adapters again if the server lost them.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import math
import re
import secrets
import shutil
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import WeakValueDictionary

import numpy as np

from code_rl.engine.adapters import open_to_others, read_embedded, write_peft
from code_rl.engine.places import Place, TrainingOptions, place_of
from code_rl.engine.remote import Link, gaps_to
from code_rl.engine.vllm_server import HEALTH, command_of
from code_rl.util.concurrency import gather_or_cancel
from code_rl.util.errors import BackendError, ConfigError
from code_rl.util.files import writes
from code_rl.util.options import SamplingOptions
from code_rl.util.proxies import via_proxy

if TYPE_CHECKING:
    import httpx
    from tinker import types

    from code_rl.engine.local.sampling import EmbeddedSamplingClient
    from code_rl.engine.local.training import EmbeddedTrainingClient

Answer = TypeVar("Answer")
logger = logging.getLogger("code_rl.engine")
CONNECT_S, ANSWER_S = 5.0, 15.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 4.0
PASSING = frozenset({408, 409, 425, 429})
BROKEN_TRIES = 4
"""How often a healthy server may fail at one request."""
LARGEST_GAP = 0.1
"""The largest accepted mean difference, in nats, between its log-probabilities and the trainer's
for the same weights."""
AT_ONCE = 256
_PROBE_TOKENS, _HOT = 16, 3.0
_SCALED = "--logprobs-mode processed_logprobs"
_START = (
    "start it as: VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 vllm serve MODEL --enable-lora "
    "--max-lora-rank RANK --max-loras 2"
)
# Sent explicitly, since a model's generation_config.json would change any parameter left out.
_PLAIN = {
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_tokens": 0,
}


def vllm_at(sampler: str) -> Place:
    """Return the server that `sampler=` names; a trailing `/v1` is dropped. Its key comes from
    CODE_RL_SERVER_KEY in the environment. Nothing is sent. Raises ConfigError for anything but a
    URL, and for a malformed key."""
    return place_of(sampler.rstrip("/").removesuffix("/v1"), setting="sampler")


def check_vllm(training: TrainingOptions) -> None:
    """Raise ConfigError if the run's own vLLM is not installed, or if the server of `sampler=` does
    not answer as vLLM does. `training` has a sampler."""
    if training.starts_vllm:
        command_of(training)
    else:
        find_vllm(vllm_at(str(training.sampler)))


def find_vllm(place: Place) -> tuple[str, int, list[str]]:
    """Return the server's base model, its context in tokens, and the names of its adapters. Raises
    ConfigError if it cannot be reached, refuses the key, or is not vLLM."""
    import httpx

    timeout = httpx.Timeout(ANSWER_S, connect=CONNECT_S)
    try:
        answer = httpx.get(f"{place.url}/v1/models", headers=_headers(place), timeout=timeout)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ConfigError(
            f"sampler={place.url} cannot be reached{via_proxy(place.url)} ({error}); {_START}"
        ) from None
    if answer.status_code in (401, 403):
        raise ConfigError(
            f"sampler={place.url} refuses the key ({answer.status_code}); check CODE_RL_SERVER_KEY"
        )
    try:
        models = answer.json()["data"]
        base = next(each for each in models if not each.get("parent"))
        return (
            str(base["id"]),
            int(base["max_model_len"]),
            [str(each["id"]) for each in models if each.get("parent")],
        )
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration):
        raise ConfigError(
            f"sampler={place.url} does not answer as vLLM does (status {answer.status_code} at "
            "/v1/models); check the address"
        ) from None


class Vllm:
    """One server, and the adapters of the run in `state_dir` that are loaded on it. The server
    reads them from folders below `folder`.

    The names of the run's adapters begin with a mark that no other run has. With `sampler_dir` its
    folder there has the mark as its name.
    """

    def __init__(
        self,
        options: SamplingOptions,
        sampler_dir: str | None,
        place: Place,
        state_dir: Path,
        check: Callable[[], None],
    ) -> None:
        """Send and write nothing yet. `check` raises BackendError once nothing will answer at
        `place` any more. `sampler_dir` is the folder that the server sees too (None: `adapters` in
        `state_dir`)."""
        import httpx

        self._check = check
        home = state_dir.resolve()
        told = hashlib.sha256(
            f"{socket.gethostname()}:{home}".encode(errors="surrogateescape")
        ).hexdigest()[:12]
        self._mark = f"code-rl-{re.sub('[^A-Za-z0-9._-]', '_', home.parent.name)[:40]}-{told}"
        folder = state_dir / "adapters" if sampler_dir is None else Path(sampler_dir) / self._mark
        self.place, self.folder, self._options = place, folder.expanduser().absolute(), options
        self._link = Link(place, options.outage_timeout, health=HEALTH)
        limits = httpx.Limits(max_connections=AT_ONCE, max_keepalive_connections=0)
        timeout = httpx.Timeout(None, connect=CONNECT_S)
        self._http = httpx.AsyncClient(
            base_url=place.url, headers=_headers(place), timeout=timeout, limits=limits
        )
        self._tag, self._made = f"{self._mark}-{secrets.token_hex(4)}", 0
        self._vocabulary = 0
        self._loaded: set[str] = set()
        self._keeps = False
        self._in_use: WeakValueDictionary[str, VllmSampler] = WeakValueDictionary()
        self._loading = asyncio.Lock()
        self._gaps: list[float] = []

    async def begin(self, trainer: EmbeddedTrainingClient, held: Sequence[str]) -> None:
        """Try every kind of request that the run will make. `held` are the adapters on the server;
        those left by an earlier process of this run are dropped, with their files.

        Raises ConfigError if the server cannot load or read adapters, has another base model, or
        returns log-probabilities other than those of the whole distribution at the run's
        temperature. Raises it also if the folder cannot be written.
        """
        self._vocabulary = trainer.model.weights.arch.vocab
        self._loaded.update(name for name in held if name.startswith(f"{self._mark}-"))
        self._clear()
        with writes(self.folder, setting="sampler_dir"):
            self.folder.mkdir(parents=True, exist_ok=True)
        try:
            sampler = await self.snapshot(trainer)
            await self._probe(sampler, len(trainer.get_tokenizer()) - 1)
        except BackendError as error:
            raise ConfigError(f"sampler={error}") from error

    async def _probe(self, sampler: VllmSampler, last_token: int) -> None:
        """Score tokens that the server sampled on the embedded engine. Raises ConfigError if its
        log-probabilities have another scale than the run's temperature, top_p and top_k need, and
        BackendError if they are too far apart."""
        from tinker import types

        options, prompt = self._options, [last_token // 2, last_token // 3, last_token]
        tempered = options.temperature not in (0.0, 1.0)
        narrowed = options.top_p < 1 or options.top_k > 0

        async def apart(drawn_at: float, scored_at: float) -> list[float]:
            """Return the differences of log-probabilities between the server, sampling at one
            temperature, and the engine, scoring at the other."""
            how = types.SamplingParams(max_tokens=_PROBE_TOKENS, temperature=drawn_at, seed=0)
            tokens, logprobs, _ = await self.complete(sampler, prompt, how, 0)
            assert sampler.exact is not None
            return await gaps_to(cast("Any", sampler.exact), prompt, tokens, logprobs, scored_at)

        self.compare(await apart(1.0, 1.0))
        if not (tempered or narrowed):
            return
        scaled = sum(await apart(_HOT, _HOT)) < sum(await apart(_HOT, 1.0))
        if {tempered, not narrowed} != {scaled}:
            raise ConfigError(
                f"temperature={options.temperature:g} with top_p={options.top_p:g} and "
                f"top_k={options.top_k} cannot be trained with on sampler={self.place.url}: a "
                f"temperature needs {_SCALED}, top_p and top_k need vLLM without it"
            )

    async def snapshot(self, trainer: EmbeddedTrainingClient) -> VllmSampler:
        """Save the trainer's current weights, load them into the server under a new name, and
        return their sampler. Adapters whose samplers are gone are unloaded and their files deleted.
        Raises BackendError."""
        name, self._made = f"{self._tag}-{self._made}", self._made + 1
        saving = trainer.save_weights_for_sampler("sampler")
        exact = await trainer.save_weights_and_get_sampling_client()
        saved, folder = Path((await saving).path), self.folder / name
        await asyncio.to_thread(_write, saved, folder)
        sampler = self._in_use[name] = VllmSampler(self, name, exact)
        await gather_or_cancel(
            self._unload(old) for old in sorted(self._loaded - set(self._in_use))
        )
        await self.load(name)
        return sampler

    async def _unload(self, name: str) -> None:
        """Make the server unload an adapter, and delete its files. If the server refuses, the files
        stay and the next snapshot tries again; a warning is logged once. Raises BackendError if the
        server is gone."""
        answer = await self.post("/v1/unload_lora_adapter", {"lora_name": name}, _unread)
        if answer.status_code in (200, 404):
            await asyncio.to_thread(shutil.rmtree, self.folder / name, ignore_errors=True)
            self._loaded.discard(name)
        elif not self._keeps:
            self._keeps = True
            logger.warning(
                "%s does not unload %s (status %d: %s); adapters that it keeps are tried again "
                "after every step",
                *(self.place.url, name, answer.status_code, _error_text(answer)),
            )

    async def load(self, name: str) -> None:
        """Make the server load an adapter from disk; one that is already loaded is fine. Raises
        BackendError if it fails."""
        body = {"lora_name": name, "lora_path": str(self.folder / name)}
        async with self._loading:
            answer = await self.post("/v1/load_lora_adapter", body, _unread)
        said = _error_text(answer)
        if answer.status_code != 200 and "already been loaded" not in said:
            raise BackendError(
                f"{self.place.url} cannot load the adapter in {self.folder / name}: {said}; both "
                f"must see that folder (sampler_dir=), RANK be at least lora_rank; {_START}"
            )
        self._loaded.add(name)

    async def complete(
        self, sampler: VllmSampler, prompt: Sequence[int], how: types.SamplingParams, seed: int
    ) -> tuple[list[int], list[float], types.StopReason]:
        """Return tokens, log-probabilities in nats and stop reason of one completion; `seed`
        replaces that of `how`. Each completion is a request of its own, since vLLM's CPU build
        crashes on a seed with n above 1. Raises BackendError."""
        stops = "stop" if how.stop and isinstance(how.stop[0], str) else "stop_token_ids"
        body = {
            **_PLAIN,
            "model": sampler.name,
            "prompt": list(prompt),
            "max_tokens": how.max_tokens,
            "temperature": how.temperature,
            "top_p": how.top_p,
            "top_k": how.top_k,
            "seed": seed,
            stops: how.stop or [],
            "logprobs": 0,
            "return_token_ids": True,
        }

        async def read(
            answer: httpx.Response,
        ) -> tuple[list[int], list[float], types.StopReason] | None:
            """Read an answer; None asks again, once the adapter is loaded. Raises BackendError for
            a refusal."""
            if answer.status_code == 404 and "does not exist" in _error_text(answer):
                await self.load(sampler.name)  # the server was restarted
                return None
            if answer.status_code != 200:
                raise BackendError(
                    f"{self.place.url} refuses a request (status {answer.status_code}): "
                    f"{_error_text(answer)}"
                )
            return self._choice(answer, how.max_tokens or 0)

        return await self.post("/v1/completions", body, read)

    def _choice(
        self, answer: httpx.Response, most: int
    ) -> tuple[list[int], list[float], types.StopReason] | None:
        """Return the one completion of an answer, or None if the server gave it up because it is
        shutting down. Raises BackendError for a malformed answer, also for more than `most` tokens
        and for ids outside the vocabulary."""
        try:
            choice = answer.json()["choices"][0]
            if choice["finish_reason"] not in ("stop", "length"):
                return None
            tokens = list(choice["token_ids"])
            logprobs = list(map(float, choice["logprobs"]["token_logprobs"]))
        except (ValueError, KeyError, IndexError, TypeError, OverflowError) as error:
            raise BackendError(
                f"{self.place.url} does not answer with token ids and their log-probabilities "
                f"({error!r}); vLLM 0.32 does"
            ) from error
        if not (
            1 <= len(tokens) == len(logprobs) <= most
            and all(type(token) is int and 0 <= token < self._vocabulary for token in tokens)
            and all(map(math.isfinite, logprobs))
        ):
            raise BackendError(
                f"{self.place.url} answers with {len(tokens)} tokens and {len(logprobs)} "
                f"log-probabilities; 1 to {most} of the {self._vocabulary} token ids of the model "
                "in training were asked for, each with a finite one"
            )
        return tokens, logprobs, choice["finish_reason"]

    def compare(self, gaps: Sequence[float]) -> None:
        """Record differences of log-probabilities, in nats, for `measured`. Raises BackendError if
        their mean is above `LARGEST_GAP`; these are not recorded."""
        mean = math.fsum(gaps) / len(gaps) if gaps else 0.0
        if not mean <= LARGEST_GAP:
            raise BackendError(
                f"{self.place.url} and the trainer give the same tokens log-probabilities that are "
                f"{mean:.3g} apart on average ({LARGEST_GAP} at most): it must serve the base "
                "model that is trained, in about the same precision"
            )
        self._gaps += gaps

    def measured(self) -> dict[str, float]:
        """Return the metrics `sampler/gap_mean` and `sampler/gap_max`, in nats, of the comparisons
        since the last call, and forget them. Empty without comparisons."""
        gaps, self._gaps = self._gaps, []
        return (
            {"sampler/gap_mean": math.fsum(gaps) / len(gaps), "sampler/gap_max": max(gaps)}
            if gaps
            else {}
        )

    def close(self) -> None:
        """Unload this run's adapters if the server answers, and delete their files. Errors of the
        server and of files are ignored."""
        import httpx

        url, headers = f"{self.place.url}/v1/unload_lora_adapter", _headers(self.place)
        with contextlib.suppress(httpx.HTTPError):
            for name in sorted(self._loaded):
                httpx.post(url, json={"lora_name": name}, headers=headers, timeout=CONNECT_S)
        self._clear()

    def _clear(self) -> None:
        """Delete the files of this run's adapters, and their folder if nothing else is in it. Never
        raises."""
        for made in self.folder.glob(f"{self._mark}-*"):
            shutil.rmtree(made, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    async def post(
        self,
        path: str,
        body: Mapping[str, Any],
        read: Callable[[httpx.Response], Awaitable[Answer | None]],
    ) -> Answer:
        """Send `body` to `path` and return the result of `read` on the server's final answer; while
        `read` returns None the request is sent again. A server error is final if the server is
        healthy and fails repeatedly.

        Raises BackendError after `outage_timeout`, counted from the first try or from the last
        outage, and any error of `read`.
        """
        import httpx

        pause, broken, since, said = FIRST_PAUSE_S, 0, time.monotonic(), ""
        while True:
            asked, final = asyncio.ensure_future(self._http.post(path, json=body)), False
            try:
                await self._link.watch(asked, since, said)
                answer = asked.result()
                said = f"status {answer.status_code}, {_error_text(answer)}"
                final = answer.status_code < 500 and answer.status_code not in PASSING
                if final:
                    self._link.answered()
                elif answer.status_code >= 500:
                    broken += 1
                    final = (
                        broken >= BROKEN_TRIES
                        and await asyncio.to_thread(self._link.silence) is None
                    )
            except httpx.HTTPError as error:
                said = str(error) or type(error).__name__
            if final and (found := await read(answer)) is not None:
                return found
            logger.info("%s %s: %s", self.place.url, path, said)
            self._check()
            await asyncio.to_thread(self._link.check, time.monotonic() - since, said)
            if self._link.away:
                broken, since = 0, time.monotonic()
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)


class VllmSampler:
    """One adapter on the server: a snapshot of the weights, with the methods and results of
    `tinker.SamplingClient` that a run needs.

    `exact` samples from the same weights on the trainer's engine. It scores one answer and is then
    released: a new adapter has no effect, so one comparison at a run's start would show nothing.
    """

    def __init__(self, vllm: Vllm, name: str, exact: EmbeddedSamplingClient) -> None:
        """`name` is the adapter's on the server, and `exact` samples from the same weights on the
        trainer's engine."""
        self.name, self._vllm = name, vllm
        self.exact: EmbeddedSamplingClient | None = exact

    async def sample(
        self, prompt: types.ModelInput, num_samples: int, sampling_params: types.SamplingParams
    ) -> types.SampleResponse:
        """Sample completions; sample i depends on seed + i (without a seed, a random one). The
        first call also scores its first completion on the trainer's engine, unless it is greedy.

        Raises BackendError, also for log-probabilities that differ too much from the trainer's.
        """
        from tinker import types

        tokens, how = prompt.to_ints(), sampling_params
        seed = secrets.randbits(31) if how.seed is None else how.seed
        drawn = await gather_or_cancel(
            self._vllm.complete(self, tokens, how, seed + i) for i in range(num_samples)
        )
        exact, self.exact = self.exact, None
        if how.temperature and exact is not None:
            gaps = await gaps_to(cast("Any", exact), tokens, *drawn[0][:2], how.temperature)
            self._vllm.compare(gaps)
        sequences = [
            types.SampledSequence(
                stop_reason=end,
                sequence_id=f"{self.name}-{seed + i}",
                tokens_np=np.asarray(ids, dtype=np.int32),
                logprobs_np=np.asarray(logprobs, dtype=np.float32),
            )
            for i, (ids, logprobs, end) in enumerate(drawn)
        ]
        return types.SampleResponse(sequences=sequences)


def _write(saved: Path, folder: Path) -> None:
    """Write a saved adapter into the new folder `folder` in peft's form, readable by the server's
    user, and delete `saved`."""
    folder.mkdir(parents=True)
    adapter = read_embedded(saved)
    write_peft(adapter, adapter.base_model, folder)
    open_to_others(folder)
    saved.unlink()


async def _unread(answer: httpx.Response) -> httpx.Response:
    """Return the answer itself: the `read` of a request whose status the caller judges."""
    return answer


def _headers(place: Place) -> dict[str, str]:
    """Return the HTTP header with the server's key, which vLLM takes as a bearer token."""
    return {"Authorization": f"Bearer {place.key}"}


def _error_text(answer: httpx.Response) -> str:
    """Return the server's own words about an error, or else the answer's text, at most 300
    characters on one line."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(answer.json()["error"]["message"])[:300]
    return " ".join(answer.text.split())[:300]
