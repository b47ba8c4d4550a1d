"""Asking a remote back end who it is, before the SDK (which retries for minutes) meets it: seconds, and nothing is spent.

Five small requests of Tinker's protocol: configuration, the key's exchange where the server wants one, the generation of the
protocol, and the models.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from code_rl.backends.places import Place
from code_rl.config import recipe_models
from code_rl.errors import ConfigError

CONNECT_S, ANSWER_S = 2.0, 15.0
# A server that is busy for a moment is asked again.
_PAUSES_S = (0.3, 0.7)
_API = "/api/v1/"
# Released servers of the older generation (SkyRL 0.3) were made for this line of the SDK.
OLDER_SDK = "0.24.1"


@dataclass(frozen=True, slots=True)
class Survey:
    """What a server said: its models with their context lengths (None where it does not say), and facts beyond the protocol.

    `losses` is None where it does not list them. `numbered_requests` means that it knows a repeated request by its number.
    """

    models: Mapping[str, int | None]
    losses: Mapping[str, frozenset[str]] | None
    numbered_requests: bool


@dataclass(frozen=True, slots=True)
class _Reply:
    status: int
    body: Any

    def said(self) -> str:
        """The server's own words, short, for an error line."""
        detail = self.body.get("detail") or self.body.get("message") if isinstance(self.body, dict) else None
        return f"status {self.status}" + (f": {str(detail)[:200]}" if detail else "")


async def survey(place: Place, model_name: str | None) -> Survey:
    """Ask the server what it is and has; check key, protocol and model.

    Raises:
        ConfigError: it cannot be reached, refuses the key, does not speak Tinker's protocol or not this SDK's generation of it,
            or does not have the model.
    """
    found = await asyncio.to_thread(_survey, place)
    if model_name is None:
        raise ConfigError(f"model_name is not set; {place.url} has: {_listed(found)}")
    if model_name not in found.models:
        raise ConfigError(f"model_name={model_name!r} is unknown to {place.url}; {_instead(model_name, found)}")
    return found


def _instead(model_name: str, found: Survey) -> str:
    """What the server has of a model's family, and the recipes for those; all its models where it has none. Models get retired."""
    family = re.match(r"([^/]*/)?[A-Za-z]+[0-9]*", model_name)
    alike = sorted(name for name in found.models if family and name.startswith(family.group()))
    if not alike:
        return f"it has: {_listed(found)}"
    recipes = [f"recipe={name} trains {model}" for name, model in recipe_models().items() if model in alike]
    return "; ".join([f"of that family it has: {', '.join(alike)}", *recipes])


def _listed(found: Survey) -> str:
    return ", ".join(sorted(found.models)) or "no models"


def _survey(place: Place) -> Survey:
    import httpx

    timeout = httpx.Timeout(ANSWER_S, connect=CONNECT_S)
    try:
        with httpx.Client(timeout=timeout) as client:
            asked = _Asked(client, place)
            asked.configure()
            reply = asked.ask("GET", "get_server_capabilities")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = place.redacted(str(error)) or type(error).__name__
        raise ConfigError(
            f"{place.url} cannot be reached ({reason}); check the address and that the server runs, or use backend=embedded"
        ) from None
    return _read(place, reply, asked.newer)


class _Asked:
    """One server being asked: the client, and the credential that it accepts."""

    def __init__(self, client: Any, place: Place) -> None:
        self._client = client
        self._place = place
        self._token = place.key
        self.newer = False

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> _Reply:
        headers = {"X-API-Key": self._token} if self._token else {}
        for pause in (*_PAUSES_S, None):
            answer = self._client.request(method, f"{self._place.url}{_API}{path}", headers=headers, json=body)
            if pause is None or not (answer.status_code == 429 or answer.status_code >= 500):
                break
            time.sleep(pause)
        try:
            reply = _Reply(answer.status_code, answer.json())
        except ValueError:
            reply = _Reply(answer.status_code, None)
        if reply.status in (401, 403):
            raise ConfigError(
                f"{self._place.url} refuses the key ({self._place.redacted(reply.said())}); "
                f"check {'TINKER_API_KEY' if self._place.kind == 'tinker' else 'CODE_RL_SERVER_KEY'}"
            )
        if reply.status == 402:
            raise ConfigError(f"{self._place.url} wants billing set up first ({self._place.redacted(reply.said())})")
        return reply

    def configure(self) -> None:
        """Introduce the SDK, exchange the key where that is wanted, and find out the protocol's generation."""
        version = {"sdk_version": importlib.metadata.version("tinker")}
        reply = self.ask("POST", "client/config", version)
        if reply.status == 404 or not isinstance(reply.body, dict):
            raise ConfigError(
                f"{self._place.url} does not speak Tinker's protocol ({reply.said()}); check the address, path included"
            )
        if reply.status != 200:
            raise ConfigError(
                f"{self._place.url} refuses SDK tinker=={version['sdk_version']} ({self._place.redacted(reply.said())})"
            )
        if reply.body.get("pjwt_auth_enabled") and self._token and not self._token.startswith("eyJ"):
            exchanged = self.ask("POST", "auth/token")
            if exchanged.status == 200 and isinstance(exchanged.body, dict):
                self._token = str(exchanged.body.get("jwt", self._token))
        self.newer = self.ask("POST", "client/dynamic_config", version).status != 404
        if sdk_is_newer() and not self.newer:
            raise ConfigError(
                f"{self._place.url} speaks an older generation of the protocol than SDK tinker=={version['sdk_version']}; "
                f"in an environment of its own, run: pip install tinker=={OLDER_SDK}"
            )


def sdk_is_newer() -> bool:
    """True for an SDK of the generation that samples in protobuf and refreshes its configuration (0.38), found without importing it."""
    spec = importlib.util.find_spec("tinker")
    if spec is None or spec.origin is None:
        raise ConfigError("the tinker SDK is not installed; run: pip install tinker")
    return (Path(spec.origin).parent / "types" / "client_dynamic_config_response.py").is_file()


def _read(place: Place, reply: _Reply, newer: bool) -> Survey:
    try:
        models = {
            str(model["model_name"]): None if (context := model.get("max_context_length")) is None else int(context)
            for model in reply.body["supported_models"]
            if model.get("trainable") is not False
        }
        losses = reply.body.get("losses")
        known = None if losses is None else {str(name): frozenset(map(str, keys)) for name, keys in losses.items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ConfigError(
            f"{place.url} does not say which models it has ({reply.said()}); is it a Tinker server?"
        ) from None
    return Survey(models, known, newer)
