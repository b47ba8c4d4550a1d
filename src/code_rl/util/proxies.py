"""Proxies: loopback addresses are reached without, others as the environment says (`HTTP_PROXY`,
`HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY`), by every HTTP client of this process."""

from __future__ import annotations

import os
from importlib.util import find_spec
from urllib.parse import urlsplit
from urllib.request import getproxies, getproxies_environment, proxy_bypass

from code_rl.util.errors import ConfigError
from code_rl.util.redaction import redacted

LOOPBACK = ("localhost", "127.0.0.1", "::1")


def settle_proxies(url: str) -> None:
    """Write the environment's exceptions (`NO_PROXY`) so that all clients read them alike, with the
    loopback addresses among them. It changes `os.environ`, before the first connection to `url`.

    Raises ConfigError if the environment names a proxy to `url` that the clients cannot use; such a
    proxy is removed from the environment if `url` needs none.
    """
    asked = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    spared = [name.strip().strip("[]") for name in asked.split(",")]
    for kind, proxy in getproxies_environment().items():
        if kind != "no" and "*" in spared:
            _drop(kind)
        elif kind != "no" and not _usable(proxy):
            if not (_host(url) in LOOPBACK or proxy_bypass(_host(url))):
                raise ConfigError(
                    f"{kind.upper()}_PROXY={redacted(proxy)} in the environment is no proxy that "
                    "can be used; give http://HOST:PORT, or unset it"
                )
            _drop(kind)
    # A network of IPv6 addresses ends one of the clients.
    readable = [name for name in spared if name and not (":" in name and "/" in name)]
    text = ",".join(dict.fromkeys([*readable, *LOOPBACK]))
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = text


def via_proxy(url: str) -> str:
    """Return the words that name the proxy to a URL in a message, without its password, or an empty
    text without one."""
    known = getproxies()
    proxy = known.get(urlsplit(url).scheme, known.get("all"))
    if proxy is None or proxy_bypass(_host(url)):
        return ""
    return f" (through the proxy {redacted(proxy)} of the environment)"


def _host(url: str) -> str:
    return urlsplit(url).hostname or ""


def _usable(proxy: str) -> bool:
    """Return True for a proxy that every client can use: HTTP, HTTPS, or SOCKS 5 if its library is
    installed."""
    parts = urlsplit(proxy)
    socks = parts.scheme in ("socks5", "socks5h") and find_spec("socksio") is not None
    return bool(parts.hostname) and (parts.scheme in ("http", "https") or socks)


def _drop(kind: str) -> None:
    """Remove a kind of proxy (`http`, `all`, …) from this process's environment."""
    for name in (f"{kind}_proxy", f"{kind}_proxy".upper()):
        os.environ.pop(name, None)
