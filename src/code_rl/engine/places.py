"""Where the model runs: the meaning of `backend=`, its URL, its key, and its capabilities.

Keys are read from the environment (and `.env`, which the command line loads into it), never from
settings, so no file of a run contains one. Each key is sent to one place only. `TINKER_API_KEY`
goes to hosted Tinker or to `TINKER_BASE_URL`; `CODE_RL_SERVER_KEY` goes to a server given as
`backend=http://…` or `sampler=http://…`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from code_rl.engine.losses import POLICY_LOSSES
from code_rl.util.errors import ConfigError
from code_rl.util.proxies import settle_proxies

BUILT_IN = "tiny"
"""The built-in model, and its recipe."""
HOSTED = "https://tinker.thinkingmachines.dev/services/tinker-prod"
HOSTED_DOMAIN = "thinkingmachines.dev"
KEYLESS = "tml-dummy"
_KEY = re.compile(r"(tml-|eyJ)[A-Za-z0-9._~+/=-]+")
_CREDENTIALS = Path("~/.tinker/credentials.json")


class BackendKind(StrEnum):
    """The kinds of back end."""

    EMBEDDED = "embedded"
    TINKER = "tinker"
    SERVER = "server"


def kind_of(backend: str) -> BackendKind:
    """Return the kind of a resolved `backend=` (`resolve_backend`). Any text but `embedded` and
    `tinker` is a server's URL."""
    return (
        BackendKind(backend)
        if backend in (BackendKind.EMBEDDED, BackendKind.TINKER)
        else BackendKind.SERVER
    )


@dataclass(frozen=True, slots=True)
class Place:
    """A remote back end. `key` is None if the SDK finds the credential itself (a stored login or a
    command)."""

    kind: BackendKind
    url: str
    key: str | None = field(repr=False)

    @property
    def paid(self) -> bool:
        """True for the hosted service, whose requests cost money."""
        return f".{urlsplit(self.url).hostname}".endswith(f".{HOSTED_DOMAIN}")

    def redacted(self, text: str) -> str:
        """Return `text` on one line, with this place's key replaced by ***. The placeholder of
        servers without keys is left."""
        line = " ".join(text.split())
        return line.replace(self.key, "***") if self.key and self.key != KEYLESS else line


def resolve_backend(backend: str) -> str:
    """Resolve `backend=` to `embedded`, `tinker`, or a server's URL. `auto` is `tinker` if
    TINKER_API_KEY or TINKER_BASE_URL is set, else `embedded`. Nothing is sent.

    Raises ConfigError for anything else, for a URL that holds a user, a password, a query or a
    fragment, and for a key that is missing or malformed.
    """
    if backend == "auto":
        given = os.environ.get("TINKER_API_KEY") or os.environ.get("TINKER_BASE_URL")
        backend = BackendKind.TINKER if given else BackendKind.EMBEDDED
    if backend == BackendKind.EMBEDDED:
        return str(BackendKind.EMBEDDED)
    if backend != BackendKind.TINKER and not backend.startswith(("http://", "https://")):
        raise ConfigError(
            f"backend={backend!r} must be auto, embedded, tinker, or a server's http://host:port"
        )
    return str(backend) if place_of(backend).kind is BackendKind.TINKER else backend.rstrip("/")


def place_of(
    backend: str, environment: Mapping[str, str] = os.environ, setting: str = "backend"
) -> Place:
    """Return URL and key of a resolved `backend=` that is not embedded, or of a server in another
    setting, named by `setting`. Keys come from `environment`; `NO_PROXY` in this process's own is
    settled. Nothing is sent. Raises ConfigError as `resolve_backend` does."""
    if backend == BackendKind.TINKER:
        url = _checked_url("TINKER_BASE_URL", environment.get("TINKER_BASE_URL") or HOSTED)
        settle_proxies(url)
        key = _checked_key("TINKER_API_KEY", environment.get("TINKER_API_KEY"))
        if (
            key is None
            and not environment.get("TINKER_CREDENTIAL_CMD")
            and not _CREDENTIALS.expanduser().is_file()
        ):
            if url == HOSTED:
                raise ConfigError(
                    "backend=tinker needs a key and TINKER_API_KEY is not set; export "
                    "TINKER_API_KEY=tml-… (or write it into "
                    ".env), or train without one: backend=embedded"
                )
            key = KEYLESS
        return Place(BackendKind.TINKER, url, key)
    url = _checked_url(setting, backend)
    settle_proxies(url)
    key = _checked_key("CODE_RL_SERVER_KEY", environment.get("CODE_RL_SERVER_KEY"))
    return Place(BackendKind.SERVER, url, key or KEYLESS)


def _checked_key(name: str, key: str | None) -> str | None:
    """Return the key, or None if it is empty. Raises ConfigError, which names the variable `name`
    but does not quote the key, if it is malformed."""
    if not key:
        return None
    if not _KEY.fullmatch(key):
        raise ConfigError(
            f"{name} is malformed: a key starts with tml- (or is a token that starts with eyJ) and "
            "has no spaces or quotes; copy it again from the console"
        )
    return key


def _checked_url(name: str, url: str) -> str:
    """Return the URL without its final slash. Raises ConfigError, with the setting `name`, if it is
    not an HTTP URL or has a user, password, query or fragment."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host, parts = None, urlsplit("")
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError(f"{name}={url!r} is no URL like http://host:port")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigError(
            f"{name} must be a plain URL like http://host:port, without user, password or query; a "
            "key goes into the environment as CODE_RL_SERVER_KEY or TINKER_API_KEY"
        )
    return url.rstrip("/")


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """The settings that only training has, by the names of the run's; the defaults suit an
    evaluation. `loss` is None if nothing is trained."""

    loss: str | None = None
    loss_config: Mapping[str, float] = field(default_factory=dict)
    lora_rank: int = 32
    longest_completion: int = 0
    checkpoint_ttl_days: float | None = None
    sampler: str | None = None
    sampler_dir: str | None = None
    vllm_command: str | None = None

    @property
    def starts_vllm(self) -> bool:
        """True if the run starts a vLLM server itself."""
        return self.sampler == "vllm"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The capabilities of a run's back end. None means unknown until it is probed; `connect` probes
    if it matters.

    `losses` maps each loss to its settings (None: unknown; the run's own loss is probed).
    `scaled_logprobs` is True if the log-probabilities of sampled tokens are at the sampling
    temperature, False if they are at temperature 1. `safe_repeats` means that a request whose
    answer was lost can be sent again and is carried out only once. `refused_losses` were refused in
    a probe.
    """

    kind: BackendKind
    losses: Mapping[str, frozenset[str]] | None
    scaled_logprobs: bool | None = None
    safe_repeats: bool = True
    refused_losses: frozenset[str] = frozenset()

    def has_loss(self, name: str, settings: Mapping[str, float] | None = None) -> bool:
        """Return True unless this back end is known to lack the loss or one of the given settings
        (None: no settings). An unknown back end has every loss that it has not refused."""
        if name in self.refused_losses:
            return False
        if self.losses is None:
            return True
        return name in self.losses and self.losses[name] >= set(settings or {})

    def require_temperature(self, temperature: float, *, custom_loss: bool = False) -> None:
        """Raise ConfigError for a temperature at which the trained policy would differ from the
        sampled one. `custom_loss` means that the loss is computed in this process. Unknown scaling
        passes."""
        if (
            custom_loss
            and self.kind != BackendKind.EMBEDDED
            and self.pass_temperature(temperature) != 1
        ):
            raise ConfigError(
                f"temperature={temperature:g} cannot be trained with by a loss that is "
                f"computed here for backend={self.kind}: the SDK's forward_backward_custom has "
                "none; use temperature=1, a loss of the server's, or backend=embedded"
            )
        if not _unscaled(temperature) and self.scaled_logprobs and not self.trains_at_temperature:
            raise ConfigError(
                f"temperature={temperature:g} cannot be trained with on this back end: the "
                "log-probabilities that it samples with are scaled by the temperature, and those "
                "that it trains with are not; use temperature=1"
            )

    @property
    def trains_at_temperature(self) -> bool:
        """True if passes accept a temperature, so that the trained policy is the one that was
        sampled from."""
        return self.losses is not None and all(
            "temperature" in keys for keys in self.losses.values()
        )

    def pass_temperature(self, temperature: float) -> float:
        """Return the temperature of passes over samples drawn at `temperature`: the same, if the
        back end samples scaled log-probabilities and trains at temperatures, else 1."""
        return (
            temperature
            if not _unscaled(temperature) and self.scaled_logprobs and self.trains_at_temperature
            else 1.0
        )

    def pass_settings(self, temperature: float) -> dict[str, float]:
        """Return the entries that `loss_fn_config` needs besides the loss's own, for samples drawn
        at `temperature`."""
        scale = self.pass_temperature(temperature)
        return {} if scale == 1 else {"temperature": scale}

    def temperature_notice(self, temperature: float) -> str | None:
        """Return a notice for a run whose gradient is biased by its temperature, or None."""
        if _unscaled(temperature) or self.scaled_logprobs is not False:
            return None
        return (
            f"temperature={temperature:g}: this back end reports and trains log-probabilities at "
            "temperature 1 whatever completions "
            "are drawn at; nothing corrects the difference, and gradients are biased by it"
        )

    def describe(self) -> str:
        """Return the capabilities as one line for the header of a run."""
        scaled = {None: "not known", True: "scaled by temperature", False: "the policy's own"}[
            self.scaled_logprobs
        ]
        known = "probed"
        if self.losses is not None:  # those that `loss=` accepts
            accepted = sorted(self.losses.keys() & POLICY_LOSSES.keys())
            known = ", ".join(accepted) or "none that loss= takes"
        facts = [f"losses {known}", f"sampled logprobs {scaled}"]
        if self.trains_at_temperature:
            facts.append("trained at the same temperature")
        if not self.safe_repeats:
            facts.append("a request whose answer is lost may be carried out twice")
        return "; ".join(facts)


def _unscaled(temperature: float) -> bool:
    """Return True for a temperature, 0 or 1, at which scaled and unscaled log-probabilities are the
    same; greedy ones are reported at temperature 1."""
    return temperature in (0.0, 1.0)
