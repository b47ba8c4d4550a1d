"""A program cannot reach past its sandbox, and nothing of it outlives it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from code_rl.sandbox.executor import Execution, Executor, Job, Limits, StdinInput
from tests.corpus.canary import guarded, processes_named
from tests.corpus.probes import FIND, PLANT, PROBES, Canary, probe_source
from tests.corpus.rooms import CONFINED, FUSION, room

LIMITS = Limits(cpu_s=5.0, memory_mb=256)


async def _run(executor: Executor, source: str, limits: Limits = LIMITS) -> Execution:
    job = Job(code=source, cases=(StdinInput(b""),), limits=limits)
    executions = [execution async for execution in executor.run(job)]
    return executions[0]


def _breaches(execution: Execution, canary: Canary) -> list[str]:
    text = execution.stdout.decode("utf-8", "replace")
    found = [line for line in text.splitlines() if line.startswith("BREACH")]
    if canary.secret in text:
        found.append("the secret was printed")
    if execution.stderr and b"Traceback" in execution.stderr:
        found.append("the probe is broken: " + execution.stderr.decode("utf-8", "replace")[-300:])
    written = [line.split(maxsplit=1)[1] for line in text.splitlines() if line.startswith("wrote")]
    return found + [f"host file {path}" for path in written if Path(path).exists()]


@pytest.mark.parametrize("name", [*CONFINED, FUSION])
@pytest.mark.parametrize("probe", PROBES)
def test_a_program(probe: str, name: str, tmp_path: Path) -> None:
    async def attack() -> list[str]:
        async with guarded(tmp_path) as host, room(name, concurrency=1) as executor:
            execution = await _run(executor, probe_source(PROBES[probe], host.canary))
            await asyncio.sleep(0.05)
            return _breaches(execution, host.canary) + host.damage()

    assert asyncio.run(attack()) == []


@pytest.mark.parametrize("name", [*CONFINED, FUSION])
def test_nothing_left_by_a_submission_is_found_by_the_next_or_stays_alive(name: str, tmp_path: Path) -> None:
    async def attack() -> list[str]:
        async with guarded(tmp_path) as host, room(name, concurrency=1) as executor:
            planted = await _run(executor, probe_source(PLANT, host.canary))
            looked = await _run(executor, probe_source(FIND, host.canary))
            found = _breaches(planted, host.canary) + _breaches(looked, host.canary) + host.damage()
            assert b"looked" in looked.stdout
            return found + [f"process {pid}" for pid in processes_named("left" + host.canary.marker[:8])]

    assert asyncio.run(attack()) == []
