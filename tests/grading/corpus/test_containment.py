"""A program cannot reach past its sandbox, and nothing of it outlives it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from code_rl.grading.sandbox import Executor
from code_rl.grading.sandbox.executor import Execution
from tests.grading.corpus.canary import (
    FIND,
    PLANT,
    PROBES,
    Canary,
    Guarded,
    guarded,
    probe_source,
    processes_named,
)
from tests.grading.corpus.rooms import CONFINED, FUSION, room
from tests.grading.jobs import collect, stdin_job

LIMITS = {"cpu_s": 5.0, "memory_mb": 256}


def _breaches(execution: Execution, canary: Canary) -> list[str]:
    text = execution.stdout.decode("utf-8", "replace")
    found = [line for line in text.splitlines() if line.startswith("BREACH")]
    if canary.secret in text:
        found.append("the secret was printed")
    if execution.stderr and b"Traceback" in execution.stderr:
        found.append("the probe is broken: " + execution.stderr.decode("utf-8", "replace")[-300:])
    written = [line.split(maxsplit=1)[1] for line in text.splitlines() if line.startswith("wrote")]
    return found + [f"host file {path}" for path in written if Path(path).exists()]


@dataclass(frozen=True, slots=True)
class Arena:
    """A canary on the host, and a room that was opened when it was there."""

    runner: asyncio.Runner
    host: Guarded
    executor: Executor

    def breaches(self, *probes: str) -> list[str]:
        """The breaches of programs that run these probes one after the other."""

        async def attack() -> list[str]:
            jobs = [stdin_job(probe_source(probe, self.host.canary), **LIMITS) for probe in probes]
            done = [(await collect(self.executor, job))[0] for job in jobs]
            await asyncio.sleep(0.05)
            assert PLANT not in probes or b"looked" in done[-1].stdout
            return [
                breach for execution in done for breach in _breaches(execution, self.host.canary)
            ] + self.host.damage()

        return self.runner.run(attack())


@pytest.fixture(scope="module", params=[*CONFINED, FUSION])
def arena(request, tmp_path_factory) -> Iterator[Arena]:
    async def enter() -> tuple[Guarded, Executor]:
        host = await stack.enter_async_context(guarded(tmp_path_factory.mktemp("host")))
        return host, await stack.enter_async_context(room(request.param, 1, own=True))

    stack = contextlib.AsyncExitStack()
    with asyncio.Runner() as runner:
        yield Arena(runner, *runner.run(enter()))
        runner.run(stack.aclose())


@pytest.mark.parametrize("probe", PROBES)
def test_a_program(arena: Arena, probe: str) -> None:
    assert arena.breaches(PROBES[probe]) == []


def test_nothing_left_by_a_submission_is_found_by_the_next_or_stays_alive(arena: Arena) -> None:
    assert arena.breaches(PLANT, FIND) == []
    assert processes_named("left" + arena.host.canary.marker[:8]) == []
