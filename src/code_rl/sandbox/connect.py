"""From the setting `executor=` to an Executor."""

from __future__ import annotations

from code_rl.errors import ConfigError
from code_rl.sandbox.executor import Executor

SHORT_PAUSE_S = 1.0
"""Whoever bridges outages wants to hear of one within seconds."""


def connect_executor(
    executor: str = "embedded", *, isolation: str = "auto", concurrency: int | None = None, attempts: int | None = None
) -> Executor:
    """The executor that `executor` names: `embedded`, or one or several comma-separated Sandbox Fusion URLs.

    `attempts` (None: the client's own) is how often a remote sandbox is tried before SandboxError; whoever bridges outages wants few, and gets them
    with pauses of a second at most.
    Raises ConfigError for anything else, and for an `isolation` that a remote server would not hear of.
    """
    name = executor.strip()
    if name == "embedded":
        from code_rl.sandbox.embedded.pool import EmbeddedSandbox

        return EmbeddedSandbox(concurrency=concurrency, isolation=isolation)
    urls = [url.strip() for url in name.split(",") if url.strip()]
    if not urls or not all(url.startswith(("http://", "https://")) for url in urls):
        raise ConfigError(
            f"executor={executor!r}: use embedded, or one or several comma-separated http(s) URLs of Sandbox Fusion servers"
        )
    if isolation != "auto":
        raise ConfigError(
            f"isolation={isolation!r} has no effect on executor={executor!r}: the server chooses its own; leave it out"
        )
    from code_rl.sandbox.fusion import FusionClient
    from code_rl.sandbox.fusion.attempts import RetryPolicy

    policy = None if attempts is None else RetryPolicy(attempts=attempts, longest_pause_s=SHORT_PAUSE_S)
    return FusionClient(urls=urls, concurrency=concurrency, policy=policy)
