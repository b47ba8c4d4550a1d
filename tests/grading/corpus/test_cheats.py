"""No cheat is paid, and none reaches a verdict that would hide it.

Programs that would hurt the machine outside a sandbox run only where a first, harmless probe has shown that the level holds.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from code_rl.grading.sandbox.executor import Executor, Job, StdinInput
from tests.grading.corpus.canary import guarded
from tests.grading.corpus.cheats_call import CHEATS_CALL
from tests.grading.corpus.cheats_stdin import CHEATS_STDIN
from tests.grading.corpus.entries import Entry
from tests.grading.corpus.leaks import LEAKS
from tests.grading.corpus.probes import PROBES, probe_source
from tests.grading.corpus.rooms import CONFINED, FUSION, SHARES, room
from tests.grading.corpus.verdicts import misjudged

HARMLESS_KINDS = ("early exit", "returned objects", "missing")
GATES = ("signals no host process", "writes no host file")
QUICK_KINDS = (
    "early exit",
    "patched grader",
    "reads the expected output",
    "forged results",
    "returned objects",
    "missing",
)


def test_the_corpus_has_at_least_sixty_programs_and_no_name_twice() -> None:
    names = [entry.name for entry in (*CHEATS_STDIN, *CHEATS_CALL, *LEAKS)]
    assert len(names) == len(set(names)) >= 60


def _quick(entries: tuple[Entry, ...]) -> list[Entry]:
    return [entry for entry in entries if entry.kind in QUICK_KINDS]


def _rest(entries: tuple[Entry, ...]) -> list[Entry]:
    return [entry for entry in entries if entry.kind not in QUICK_KINDS]


async def _stop_unless_contained(executor: Executor, folder: Path) -> None:
    async with guarded(folder) as host:
        for name in GATES:
            job = Job(code=probe_source(PROBES[name], host.canary), cases=(StdinInput(b""),))
            printed = b"".join([execution.stdout async for execution in executor.run(job)])
            assert b"BREACH" not in printed, f"not contained, hostile programs were not run: {printed!r}"
        assert host.damage() == []


async def _paid(name: str, entries: list[Entry], folder: Path) -> dict[str, str]:
    async with room(name) as executor:
        await _stop_unless_contained(executor, folder)
        return await misjudged(entries, executor)


@pytest.mark.parametrize(("name", "step"), SHARES)
def test_no_cheat_on_a_stdin_problem_is_paid(name: str, step: int, tmp_path: Path) -> None:
    assert asyncio.run(_paid(name, _quick((*CHEATS_STDIN, *LEAKS))[::step], tmp_path)) == {}


@pytest.mark.parametrize(("name", "step"), SHARES)
def test_no_cheat_on_a_call_problem_is_paid(name: str, step: int, tmp_path: Path) -> None:
    assert asyncio.run(_paid(name, _quick(CHEATS_CALL)[::step], tmp_path)) == {}


@pytest.mark.parametrize("name", [*CONFINED, FUSION])
@pytest.mark.slow
def test_no_bomb_flood_or_attack_on_the_supervisor_is_paid(name: str, tmp_path: Path) -> None:
    assert asyncio.run(_paid(name, [*_rest(CHEATS_STDIN), *_rest(CHEATS_CALL)], tmp_path)) == {}


def test_bombs_and_attacks_on_the_supervisor_are_not_paid_at_the_strongest_level(tmp_path: Path) -> None:
    names = {
        "fork_bomb",
        "memory_bomb",
        "disk_fill",
        "kills_everything",
        "kills_parent_and_init",
        "flood",
        "spin_in_children",
    }
    entries = [entry for entry in _rest(CHEATS_STDIN) if entry.name in names]
    assert asyncio.run(_paid("full", entries, tmp_path)) == {}


def test_verdicts_without_isolation_are_still_right_for_cheats_that_only_lie() -> None:
    async def run() -> dict[str, str]:
        async with room("none") as executor:
            entries = [entry for entry in (*CHEATS_STDIN, *CHEATS_CALL) if entry.kind in HARMLESS_KINDS][::3]
            return await misjudged(entries, executor)

    assert asyncio.run(run()) == {}
