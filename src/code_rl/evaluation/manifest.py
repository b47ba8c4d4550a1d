"""The manifest of an evaluation: enough to repeat it, and to refuse another evaluation in the same
folder."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from code_rl.grading.sandbox import Executor, Job, Limits, Status, StdinInput
from code_rl.util.data_files import sources_digest
from code_rl.util.errors import ConfigError, SandboxError
from code_rl.util.files import write_atomically
from code_rl.util.version import __version__

MANIFEST = "manifest.json"


@cache
def code_version() -> dict[str, Any]:
    """Return the version, a hash of the package's source, and (in a checkout) the commit; computed
    once per process."""
    return {
        "code_rl": __version__,
        "source_sha256": sources_digest("code_rl"),
        "commit": _commit(Path(__file__).parent),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
    }


def _commit(root: Path) -> str | None:
    """Return the commit of the source tree, or None outside one, without git, or after ten
    seconds."""
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    try:
        return (
            subprocess.run(
                command, capture_output=True, text=True, timeout=10, check=True
            ).stdout.strip()
            or None
        )
    except (OSError, subprocess.SubprocessError):
        return None


def read_manifest(out: Path) -> dict[str, Any]:
    """Return the manifest in `out`, empty if there is none. Raises ConfigError if it cannot be
    read."""
    path = out / MANIFEST
    if not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; choose another out") from error


def check_same(earlier: Mapping[str, Any], now: Mapping[str, Any], out: Path) -> None:
    """Raise ConfigError, naming the first difference, if the `earlier` evaluation in `out` (empty:
    none) is another one. Only `identity` counts."""
    if not earlier:
        return
    before, after = _flat(earlier.get("identity", {})), _flat(now["identity"])
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            raise ConfigError(
                f"out={out} holds another evaluation: {name} was {before.get(name)!r}, is "
                f"{after.get(name)!r}; an evaluation goes on only as it began: choose another out"
            )


def _flat(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return an identity with JSON's types (a tuple becomes a list), and its settings beside the
    rest; `identity` is not changed."""
    flat: dict[str, Any] = json.loads(json.dumps(identity))
    return {**flat.pop("settings", {}), **flat.pop("asked", {}), **flat}


def write_manifest(out: Path, manifest: Mapping[str, Any]) -> None:
    """Replace the manifest in `out` atomically. Raises OSError."""
    write_atomically(out / MANIFEST, json.dumps(manifest, indent=2, ensure_ascii=True) + "\n")


REFERENCE_CPU_S = 0.20
"""The CPU seconds of one yardstick on the reference machine, whose speed defines a second of a CPU
limit. No data set says for which machine its limits were set, so this is a convention and not a
measurement. An AMD EPYC of 2026 under CPython 3.11 takes 0.13 s, so it is faster than the reference
and gets no extra time. A machine half as fast as that gets a quarter more."""

RUNS = 3
YARDSTICK = """
table = {}
total = 0
for number in range(400000):
    key = number * 2654435761 % 65537
    total += table.get(key, 0)
    table[key] = number & 255
print(sorted(table)[total % 97])
"""


async def measure(executor: Executor) -> dict[str, Any]:
    """Return the machine's speed for the manifest: the yardstick's least CPU seconds of several
    runs.

    CPU limits are multiplied by `cpu_limit_factor`: how many times slower the machine is than the
    reference, at least 1, in steps of a quarter so that noise does not change it. Raises
    SandboxError if the sandbox cannot run the yardstick.
    """
    job = Job(code=YARDSTICK, cases=(StdinInput(b""),) * RUNS, limits=Limits(cpu_s=60.0))
    executions = [execution async for execution in executor.run(job)]
    for execution in executions:
        if execution.status is not Status.OK:
            raise SandboxError(
                f"the sandbox cannot run a simple program: {execution.status} {execution.detail}"
            )
    least_s = min(execution.cpu_s for execution in executions)
    return {
        "yardstick_cpu_s": round(least_s, 4),
        "reference_cpu_s": REFERENCE_CPU_S,
        "cpu_limit_factor": max(1.0, round(4.0 * least_s / REFERENCE_CPU_S) / 4.0),
        "machine": platform.machine(),
        "system": platform.platform(),
    }
