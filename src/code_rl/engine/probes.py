"""Probes of a remote back end, within seconds and without cost; the SDK alone would retry for
minutes.

Small requests of Tinker's protocol ask for the server's configuration, a token for the key if it
wants one, the protocol's version, and the models. Inside a session, small experiments test its loss
and its sampled log-probabilities.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlencode

from code_rl.engine.losses import LOSSES, SEQUENCE
from code_rl.engine.names import source_of, unavailable
from code_rl.engine.places import Place
from code_rl.engine.remote import gaps_to
from code_rl.util.errors import BackendError, ConfigError
from code_rl.util.proxies import via_proxy

if TYPE_CHECKING:
    from code_rl.engine.remote import RemoteClient

CONNECT_S, ANSWER_S = 2.0, 15.0
# A server that is briefly busy is asked again.
_PAUSES_S = (0.3, 0.7)
_API = "/api/v1/"
# The SDK versions for released servers of older generations: SkyRL 0.3 reads JSON, SkyRL 0.4
# protobuf. Later SDKs request samples in a form that SkyRL 0.4 does not have.
JSON_SDK, PROTOBUF_SDK = "0.24.1", "0.25.0"
# At this high temperature a tempered log-probability is far from the policy's own. In bfloat16 the
# same number computed twice differs by a few hundredths.
_PROBE_TOKENS, _PROBE_TEMPERATURE, _APART = 16, 3.0, 0.2


@dataclass(frozen=True, slots=True)
class Survey:
    """A server's answers: its models with their context lengths (None if unknown), and facts beyond
    the protocol.

    `losses` is None if the server does not list them. `older_sdk` is the SDK version for a server
    of an older generation, None for the current one.
    """

    models: Mapping[str, int | None]
    losses: Mapping[str, frozenset[str]] | None
    older_sdk: str | None

    @property
    def numbered_requests(self) -> bool:
        """True if the server recognizes a repeated training request by its number."""
        return self.older_sdk != JSON_SDK


def survey(place: Place, model_name: str | None) -> Survey:
    """Ask the server about itself and its models. Nothing is created on it.

    Raises ConfigError if the server cannot be reached, refuses the key, does not speak this SDK's
    generation of Tinker's protocol, or lacks the model. The name None is refused with the list of
    its models.
    """
    asked = _ServerProbe(place)
    older_sdk, version = asked.configure(), _sdk_version()
    if older_sdk is not None and version.split(".")[:2] != older_sdk.split(".")[:2]:
        raise ConfigError(
            f"{place.url} speaks another generation of the protocol than SDK tinker=={version}; "
            f"in an environment of its own, run: pip install tinker=={older_sdk}"
        )
    # A server that loads folders and hub ids also lists this model if it can load it; other
    # servers ignore the query.
    wanted = f"?{urlencode({'model_name': model_name})}" if model_name is not None else ""
    _, body, said = asked.request("GET", f"get_server_capabilities{wanted}")
    try:
        models = {
            str(model["model_name"]): model.get("max_context_length")
            for model in body["supported_models"]
            if model.get("trainable") is not False
        }
        losses = body.get("losses")
        known = losses and {str(name): frozenset(keys) for name, keys in losses.items()}
    except (AttributeError, KeyError, TypeError):
        raise ConfigError(
            f"{place.url} does not say which models it has ({said}); is it a Tinker server?"
        ) from None
    if model_name not in models:
        why = "not set" if model_name is None else f"unknown to {place.url}"
        refused = f" ({str(body['refused'])[:300]})" if body.get("refused") else ""
        raise ConfigError(
            f"model_name={model_name!r} is {why}{refused}; {place.url} has: "
            f"{', '.join(sorted(models)) or 'no models'}; choose one with model_name= (code-rl "
            "serve has others by its models=)"
        )
    return Survey(models, known, older_sdk)


def require_downloads(place: Place) -> None:
    """Raise ConfigError, within seconds, if a server cannot be reached, refuses the key, or cannot
    export weights."""
    if _ServerProbe(place).configure() is not None:
        raise ConfigError(
            f"{place.url} speaks the older generation of Tinker's protocol, which has no "
            "save_weights_external: what it trained cannot be exported from here, with any SDK"
        )


class _ServerProbe:
    """A server to ask, and the credential that it accepts."""

    def __init__(self, place: Place) -> None:
        """Send nothing yet. Requests have the place's key until `configure` exchanges it."""
        self._place, self._token = place, place.key

    def request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> tuple[int, Any, str]:
        """Return the status, the JSON body (None if it is not JSON), and the server's own words,
        shortened and without the key. `path` is below `/api/v1/`. Status 429 and server errors are
        tried again twice.

        Raises ConfigError if the server cannot be reached, refuses the key, or wants billing set
        up; every other status is returned.
        """
        import httpx

        url, headers = self._place.url, {"X-API-Key": self._token} if self._token else {}
        timeout, found = httpx.Timeout(ANSWER_S, connect=CONNECT_S), None
        for pause in (*_PAUSES_S, None):
            try:
                answer = httpx.request(
                    method, f"{url}{_API}{path}", headers=headers, json=body, timeout=timeout
                )
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                reason = self._place.redacted(str(error)) or type(error).__name__
                raise ConfigError(
                    f"{url} cannot be reached{via_proxy(url)} ({reason}); check the address and "
                    "that the server runs, or use backend=embedded"
                ) from None
            status = answer.status_code
            if pause is None or not (status == 429 or status >= 500):
                break
            time.sleep(pause)
        with contextlib.suppress(ValueError):
            found = answer.json()
        detail = found.get("detail") or found.get("message") if isinstance(found, dict) else None
        said = self._place.redacted(
            f"status {status}" + (f": {str(detail)[:200]}" if detail else "")
        )
        if status in (401, 403):
            key = "TINKER_API_KEY" if self._place.kind == "tinker" else "CODE_RL_SERVER_KEY"
            raise ConfigError(f"{url} refuses the key ({said}); set {key} to one that it accepts")
        if status == 402:
            raise ConfigError(f"{url} wants billing set up first ({said})")
        return status, found, said

    def configure(self) -> str | None:
        """Introduce the SDK, and exchange the key if the server wants that; later requests use the
        new one. Return the SDK version for an older server, or None for a current one. Raises
        ConfigError if it is no Tinker server or refuses the SDK."""
        url, version = self._place.url, {"sdk_version": _sdk_version()}
        status, found, said = self.request("POST", "client/config", version)
        if status == 404 or not isinstance(found, dict):
            raise ConfigError(
                f"{url} does not speak Tinker's protocol ({said}); check the address, path included"
            )
        if status != 200:
            raise ConfigError(f"{url} refuses SDK tinker=={version['sdk_version']} ({said})")
        if found.get("pjwt_auth_enabled") and self._token and not self._token.startswith("eyJ"):
            status, exchanged, _ = self.request("POST", "auth/token")
            if status == 200 and isinstance(exchanged, dict):
                self._token = str(exchanged.get("jwt", self._token))
        if self.request("POST", "client/dynamic_config", version)[0] != 404:
            return None
        # An empty request, which no server carries out. A server that reads protobuf answers 415
        # before it reads further.
        return PROTOBUF_SDK if self.request("POST", "forward_backward", {})[0] == 415 else JSON_SDK


def _sdk_version() -> str:
    """Return the version of the installed tinker SDK. Raises PackageNotFoundError without one."""
    return importlib.metadata.version("tinker")


def sdk_is_newer() -> bool:
    """Return True if the installed SDK samples in protobuf and refreshes its configuration (0.38 or
    later). The SDK is not imported. Raises ConfigError if it is not installed."""
    spec = importlib.util.find_spec("tinker")
    if spec is None or spec.origin is None:
        raise ConfigError("the tinker SDK is not installed; run: pip install tinker")
    return (Path(spec.origin).parent / "types" / "client_dynamic_config_response.py").is_file()


def load_tokenizer(model_name: str, tokenizer_id: str | None = None) -> Any:
    """Return the model's tokenizer, by the model's name or by `tokenizer_id`, the name that the
    server gives (None: it gives none). Raises ConfigError if neither can be loaded.

    A local folder that the server gives (through its `models` map) is tried first. It is loaded
    here and not by the SDK, which misreads local folders.
    """
    from transformers import AutoTokenizer

    failures = []
    here = (
        tokenizer_id is not None
        and Path(tokenizer_id).is_absolute()
        and Path(tokenizer_id).is_dir()
    )
    names = (tokenizer_id, model_name) if here else (model_name, tokenizer_id)
    for name in dict.fromkeys(each for each in names if each):
        try:
            return AutoTokenizer.from_pretrained(source_of(name))
        except (OSError, ValueError, ConfigError) as error:
            failures.append(unavailable(name, error))
    raise ConfigError(f"model {model_name!r} has no usable tokenizer here: {'; '.join(failures)}")


def context_of(model_name: str, told: int | None) -> int:
    """Return the context in tokens: the server's answer `told`, or if that is None, the model
    configuration's. Raises ConfigError without either."""
    if told is not None:
        return told
    try:
        source = source_of(model_name)
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(Path(source) if Path(source).is_dir() else source)
        return int(config.max_position_embeddings)
    except (OSError, ValueError, ConfigError, AttributeError) as error:
        raise ConfigError(
            f"the server does not say how long the context of {model_name!r} is, and its "
            f"configuration cannot be read here: {' '.join(str(error).split())[:200]}"
        ) from error


async def probe_loss(
    trainer: RemoteClient, loss: str, settings: Mapping[str, float], token: int
) -> bool:
    """Run one forward pass over one token with the run's loss; no weights change. Return False if
    it is refused.

    Raises ConfigError, naming the loss, if cross-entropy is refused too: the loss then cannot be
    computed here either.
    """
    from tinker import types

    values = {"logprobs": -1.0, "advantages": 1.0, "weights": 1.0, SEQUENCE: 1.0}
    target = types.TensorData(data=[token], dtype="int64", shape=[1])

    async def forward(name: str, settings: Mapping[str, float]) -> None:
        """Run one forward pass of one token with the loss `name`. Raises BackendError if the
        service refuses or fails."""
        inputs = {
            field: types.TensorData(data=[values[field]], dtype="float32", shape=[1])
            for field in LOSSES[name].inputs
        }
        datum = types.Datum(
            model_input=types.ModelInput.from_ints([token]),
            loss_fn_inputs={"target_tokens": target, **inputs},
        )
        await trainer.forward([datum], name, settings)

    try:
        await forward(loss, settings)
        return True
    except BackendError as error:
        refusal = error
    try:
        await forward("cross_entropy", {})
        return False
    except BackendError:
        named = f"loss={loss}" + "".join(f" {key}={value:g}" for key, value in settings.items())
        raise ConfigError(f"{named} is not honoured by this back end: {refusal}") from refusal


async def probe_scaling(sampler: RemoteClient, token: int) -> bool:
    """Return True if sampled log-probabilities are at the sampling temperature, False if they are
    the policy's own, at temperature 1.

    A few tokens are sampled after `token`, at a high temperature, and scored at temperature 1.
    Raises BackendError if there is nothing to compare.
    """
    from tinker import types

    prompt = [token, token]
    parameters = types.SamplingParams(
        max_tokens=_PROBE_TOKENS, temperature=_PROBE_TEMPERATURE, seed=0
    )
    response = await sampler.sample(types.ModelInput.from_ints(prompt), 1, parameters)
    sequence = response.sequences[0]
    logprobs = sequence.logprobs or []
    gaps = await gaps_to(cast(Any, sampler), prompt, sequence.tokens, logprobs, 1.0)
    if not gaps:
        raise BackendError(
            "the back end returned no log-probabilities to compare; train at temperature=1"
        )
    return sum(gaps) / len(gaps) > _APART


async def probe_narrowing(sampler: RemoteClient, token: int, top_p: float, top_k: int) -> None:
    """Raise ConfigError for a back end that refuses top_p or top_k, or samples beyond it. Each is
    tested only if the run sets it (top_p below 1, top_k not −1).

    The setting is narrowed to the one likeliest token; several samples at a high temperature must
    then be equal.
    """
    from tinker import types

    for name, value, off, narrowest in (("top_p", top_p, 1.0, 1e-6), ("top_k", top_k, -1, 1)):
        if value == off:
            continue
        how: dict[str, Any] = {
            name: narrowest,
            "max_tokens": 2,
            "temperature": _PROBE_TEMPERATURE,
            "seed": 0,
        }
        prompt = types.ModelInput.from_ints([token, token])
        try:
            drawn = (
                await sampler.sample(prompt, _PROBE_TOKENS, types.SamplingParams(**how))
            ).sequences
        except BackendError as error:
            raise ConfigError(
                f"{name}={value:g} is not honoured by this back end: {error}"
            ) from error
        if len({tuple(sequence.tokens) for sequence in drawn}) > 1:
            raise ConfigError(
                f"{name}={value:g} is not honoured by this back end: it draws from all tokens; "
                "leave it out"
            )
