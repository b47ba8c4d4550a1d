"""Proxies: loopback addresses are reached without, others as the environment says (`HTTP_PROXY`,
`HTTPS_PROXY`, `NO_PROXY`), by every HTTP client of this process."""

from __future__ import annotations

import os
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from code_rl.util.redaction import redacted

LOOPBACK = "localhost,127.0.0.1,::1"


def spare_loopback() -> None:
    """Add the loopback addresses to the environment's `no_proxy`, which all clients read."""
    spared = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if spared != "*" and LOOPBACK not in spared:
        os.environ["no_proxy"] = f"{spared},{LOOPBACK}".lstrip(",")


def via_proxy(url: str) -> str:
    """Return the words that name the proxy to a URL in a message, or none without one."""
    parts, known = urlsplit(url), getproxies()
    proxy = known.get(parts.scheme, known.get("all"))
    if proxy is None or proxy_bypass(parts.hostname or ""):
        return ""
    return f" (through the proxy {redacted(proxy)} of the environment)"
