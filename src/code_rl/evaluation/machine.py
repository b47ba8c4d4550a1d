"""How fast this machine runs Python in this sandbox: CPU limits follow it, so that a slow machine fails no program for its slowness."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Any

from code_rl.errors import SandboxError
from code_rl.sandbox.executor import Executor, Job, Limits, Status, StdinInput, closing

REFERENCE_CPU_S = 0.20
"""What a second of a limit means, by definition: the time in which a machine runs the yardstick five times. No data set says for which
machine its limits were set, so this is a convention and no measurement. An AMD EPYC of 2026 under CPython 3.11 takes 0.13 s and is thus
faster than the reference: it gets no extra time, and a machine half as fast as that gets a quarter more."""

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


@dataclass(frozen=True, slots=True)
class Speed:
    """`cpu_s`: the yardstick's least CPU seconds of several runs. `factor` multiplies CPU limits; it is never below 1."""

    cpu_s: float

    @property
    def factor(self) -> float:
        """How much slower than the reference, in steps of a quarter, so that noise does not change it; at least 1."""
        return max(1.0, round(4.0 * self.cpu_s / REFERENCE_CPU_S) / 4.0)

    def facts(self) -> dict[str, Any]:
        """For the manifest."""
        return {
            "yardstick_cpu_s": round(self.cpu_s, 4),
            "reference_cpu_s": REFERENCE_CPU_S,
            "cpu_limit_factor": self.factor,
            "machine": platform.machine(),
            "system": platform.platform(),
        }


async def measure(executor: Executor) -> Speed:
    """Run the yardstick a few times. Raises SandboxError when the sandbox cannot run it."""
    job = Job(code=YARDSTICK, cases=(StdinInput(b""),) * RUNS, limits=Limits(cpu_s=60.0))
    seconds = []
    async with closing(executor.run(job)) as executions:
        async for execution in executions:
            if execution.status is not Status.OK:
                raise SandboxError(f"the sandbox cannot run a simple program: {execution.status} {execution.detail}")
            seconds.append(execution.cpu_s)
    return Speed(min(seconds))
