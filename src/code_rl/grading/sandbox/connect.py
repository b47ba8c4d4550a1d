"""From the setting `executor=` to an Executor."""

from __future__ import annotations

import asyncio
import os

from code_rl.grading.languages import PYTHON
from code_rl.grading.sandbox.blame import EMBEDDED_OUTAGE_TIMEOUT_S, REMOTE_OUTAGE_TIMEOUT_S
from code_rl.grading.sandbox.executor import Executor, Job, StdinInput, require_linux
from code_rl.grading.sandbox.fusion.protocol import run_urls
from code_rl.util.concurrency import closing
from code_rl.util.errors import ConfigError, SandboxError


def resolve_executor(executor: str) -> str:
    """Return `executor=` with `auto` resolved: SANDBOX_URL if set, else `embedded`. Other values
    are returned unchecked."""
    return (os.environ.get("SANDBOX_URL") or "embedded") if executor == "auto" else executor


async def check_executor(executor: Executor, language: str | None = None) -> None:
    """Raise ConfigError if a sandbox cannot be used: it does not answer, refuses programs, or
    `language` is not installed there (None: not checked). It starts the sandbox and may run a
    program.

    It is called at the start, where this is a wrong setting and nothing has been spent.
    IsolationError passes.
    """
    try:
        await executor.check()
        if language not in (None, PYTHON):
            empty = Job(code="", cases=(StdinInput(b""),), language=language)
            async with closing(executor.run(empty)) as executions:
                await anext(executions)
    except SandboxError as error:
        raise ConfigError(f"executor= cannot be used: {error}") from error


def connect_executor(
    executor: str = "embedded",
    *,
    isolation: str = "auto",
    concurrency: int | None = None,
    outage_timeout_s: float | None = None,
    stop: asyncio.Event | None = None,
) -> Executor:
    """Return the executor that `executor` names: `auto`, `embedded`, `ray`, or one or several
    comma-separated Sandbox Fusion URLs. No program runs yet; the caller closes it. `concurrency`
    None is the executor's default.

    It waits out outages of up to `outage_timeout_s` seconds (None: 10 embedded, 600 remote), unless
    `stop` is set meanwhile. Raises ConfigError for anything else, and for an `isolation` that a
    remote server would ignore; SandboxError if no Ray cluster answers.
    """
    name = resolve_executor(executor.strip())
    if outage_timeout_s is None:
        outage_timeout_s = (
            EMBEDDED_OUTAGE_TIMEOUT_S if name == "embedded" else REMOTE_OUTAGE_TIMEOUT_S
        )
    if name == "embedded":
        require_linux("executor=embedded")
        from code_rl.grading.sandbox.local.pool import EmbeddedSandbox

        return EmbeddedSandbox(concurrency, isolation, outage_timeout_s=outage_timeout_s, stop=stop)
    if name == "ray":
        from code_rl.grading.sandbox.cluster import RayNodes

        return RayNodes(concurrency, isolation, outage_timeout_s, stop)
    urls = run_urls(name, "SANDBOX_URL" if executor.strip() == "auto" else "executor")
    if isolation != "auto":
        raise ConfigError(
            f"isolation={isolation!r} has no effect on executor={executor!r}: the server chooses "
            "its own; leave it out"
        )
    from code_rl.grading.sandbox.fusion.client import FusionServers

    return FusionServers(urls, concurrency, outage_timeout_s=outage_timeout_s, stop=stop)
