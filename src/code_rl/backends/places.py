"""Where a model lives: what `backend=` means here, which URL that is and which key goes there.

Keys are read from the environment (and `.env`, which the command line loads into it), never from settings: no file of a
run can hold one. A key is only ever sent to the place that it is meant for: `TINKER_API_KEY` to hosted Tinker or to
`TINKER_BASE_URL`, `CODE_RL_SERVER_KEY` to a server given as `backend=http://…`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from code_rl.backends.capabilities import BackendKind
from code_rl.errors import ConfigError

HOSTED = "https://tinker.thinkingmachines.dev/services/tinker-prod"
HOSTED_DOMAIN = "thinkingmachines.dev"
KEYLESS = "tml-dummy"
_KEY = re.compile(r"(tml-|eyJ)[A-Za-z0-9._~+/=-]+")
_CREDENTIALS = Path("~/.tinker/credentials.json")


@dataclass(frozen=True, slots=True)
class Place:
    """A remote back end. `key` is None when the SDK finds the credential itself (a stored login or a command)."""

    kind: BackendKind
    url: str
    key: str | None = field(repr=False)

    @property
    def paid(self) -> bool:
        """True for the hosted service: what is asked of it costs money."""
        return (urlsplit(self.url).hostname or "").endswith(HOSTED_DOMAIN)

    def redacted(self, text: str) -> str:
        """`text` on one line, without this place's key."""
        line = " ".join(text.split())
        return line.replace(self.key, "***") if self.key and self.key != KEYLESS else line


def resolve_backend(backend: str, environment: Mapping[str, str] = os.environ) -> str:
    """What `backend=` means here: `embedded`, `tinker`, or a server's URL.

    Raises ConfigError for anything else, for a URL that holds a password, a query or a fragment, and for a key that is missing or
    malformed.
    """
    if backend == "auto":
        given = environment.get("TINKER_API_KEY") or environment.get("TINKER_BASE_URL")
        backend = BackendKind.TINKER if given else BackendKind.EMBEDDED
    if backend == BackendKind.EMBEDDED:
        return str(BackendKind.EMBEDDED)
    if backend != BackendKind.TINKER and not backend.startswith(("http://", "https://")):
        raise ConfigError(f"backend={backend!r} must be auto, embedded, tinker, or a server's http://host:port")
    return str(backend) if place_of(backend, environment).kind is BackendKind.TINKER else backend.rstrip("/")


def place_of(backend: str, environment: Mapping[str, str] = os.environ) -> Place:
    """URL and key of a resolved `backend=` that is not embedded. Raises ConfigError as `resolve_backend` does."""
    if backend == BackendKind.TINKER:
        url = _checked_url("TINKER_BASE_URL", environment.get("TINKER_BASE_URL") or HOSTED)
        key = _checked_key("TINKER_API_KEY", environment.get("TINKER_API_KEY"))
        if key is None and not _sdk_has_credential(environment):
            if url == HOSTED:
                raise ConfigError(
                    "backend=tinker needs a key and TINKER_API_KEY is not set; export TINKER_API_KEY=tml-… (or write it into "
                    ".env), or train without one: backend=embedded"
                )
            key = KEYLESS
        return Place(BackendKind.TINKER, url, key)
    url = _checked_url("backend", backend)
    key = _checked_key("CODE_RL_SERVER_KEY", environment.get("CODE_RL_SERVER_KEY"))
    return Place(BackendKind.SERVER, url, key or KEYLESS)


def _checked_key(name: str, key: str | None) -> str | None:
    if not key:
        return None
    if not _KEY.fullmatch(key):
        raise ConfigError(
            f"{name} is malformed: a key starts with tml- (or is a token that starts with eyJ) and has no spaces or quotes; "
            "copy it again from the console"
        )
    return key


def _checked_url(name: str, url: str) -> str:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host, parts = None, urlsplit("")
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError(f"{name}={url!r} is no URL like http://host:port")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigError(
            f"{name} must be a plain URL like http://host:port, without user, password or query; a key goes into the "
            "environment as CODE_RL_SERVER_KEY or TINKER_API_KEY"
        )
    return url.rstrip("/")


def _sdk_has_credential(environment: Mapping[str, str]) -> bool:
    return bool(environment.get("TINKER_CREDENTIAL_CMD")) or _CREDENTIALS.expanduser().is_file()
