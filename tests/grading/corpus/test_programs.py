"""Every program of the corpus gets the verdict that it deserves.

Programs that would hurt the machine outside a sandbox run only where harmless probes have shown that the level holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from code_rl.grading import Compare, Problem, StdinTest
from code_rl.grading.audit import CorpusProgram
from code_rl.grading.sandbox import Job, Limits, StdinInput
from tests.grading.corpus.canary import PROBES, guarded, probe_source
from tests.grading.corpus.programs import (
    BY_NAME,
    WALKS,
    cheat,
    misjudged,
    named,
    of_class,
    of_kind,
    undeserved,
    verdicts,
)
from tests.grading.corpus.rooms import CONFINING, FUSION, SAMPLES, room

SLOW = pytest.mark.slow
FULL = pytest.param("full", 1, id="full")
REST = [pytest.param(name, 1, id=name, marks=SLOW) for name in ("landlock", FUSION)]
MOST = [FULL, pytest.param(FUSION, 6, id="fusion-sixth"), *REST]
"""The strongest level runs everything, the server a sixth; all else is in the slow run."""
SAMPLE = frozenset(
    [
        "alarms_to_init",
        "kills_group",
        "forged_sigusr1",
        "forged_sigusr2",
        "alarms_from_orphans",
        "chmod_tmp",
        "chmod_here",
        "odd_names",
        "null_byte",
        "many_small_processes",
        "pipes",
        "exit_17",
        "exit_98",
        "seals_streams",
        "giant_exception",
        "nested_finally_18",
        "nested_lambdas",
        "file",
        "directory_mode",
        "stream_modes",
        "stream_flags",
        "background_process",
        "called_state",
        "called_mapping",
        "maps_string_at",
        "sweep_write",
        "near_objects",
        "fresh_bytes",
        "fresh_objects",
        "collector",
        "descriptors",
        "files",
        "thread_births",
        "fork_relay",
        "spins_beside_sleeper",
        "duty_three_percent",
    ]
)
LIES = ("early exit", "patched grader", "reads the expected output", "forged results", "returned objects", "missing")
BOMBS = ("output tricks", "other submissions", "resources", "attacks on the supervisor")
FORMS = pytest.mark.parametrize("calls", [False, True], ids=["stdin", "call"])
NOT_AT_LANDLOCK = ("shelve_and_dbm", "pool", "process_and_queue", "shared_value", "process_pool", "pool_of_threads", "changes_modes")  # fmt: skip


def run(name: str, entries: Sequence[CorpusProgram]) -> dict[str, str]:
    async def go() -> dict[str, str]:
        async with room(name) as executor:
            return await misjudged(entries, executor)

    return asyncio.run(go())


def sampled(entries: Sequence[CorpusProgram], sample: bool) -> list[CorpusProgram]:
    return [entry for entry in entries if not sample or entry.name in SAMPLE]


def run_contained(name: str, entries: Sequence[CorpusProgram], folder: Path) -> dict[str, str]:
    async def gate() -> None:
        async with room(name) as executor, guarded(folder) as host:
            for probe in ("signals no host process", "writes no host file"):
                job = Job(probe_source(PROBES[probe], host.canary), (StdinInput(b""),))
                printed = b"".join([execution.stdout async for execution in executor.run(job)])
                assert b"BREACH" not in printed, f"not contained, hostile programs were not run: {printed!r}"
            assert host.damage() == []

    asyncio.run(gate())
    return run(name, entries)


@FORMS
@pytest.mark.parametrize(("name", "step"), [*MOST, pytest.param("none", 3, id="none-third")])
def test_honest_programs_pass(name: str, step: int, calls: bool) -> None:
    entries = [entry for entry in of_kind("honest") if bool(entry.problem.calls) is calls]
    kept = [entry for entry in entries if name != "landlock" or entry.name not in NOT_AT_LANDLOCK]
    assert run(name, kept[::step]) == {}


@FORMS
@pytest.mark.parametrize(("name", "step"), MOST)
def test_no_cheat_is_paid(name: str, step: int, calls: bool, tmp_path: Path) -> None:
    entries = [entry for entry in of_class(*LIES) if bool(entry.problem.calls) is calls]
    assert run_contained(name, entries[::step], tmp_path) == {}


@pytest.mark.long
def test_cheats_that_only_lie_are_not_paid_without_isolation() -> None:
    assert run("none", of_class("early exit", "returned objects", "missing")[::3]) == {}


@pytest.mark.long
def test_bombs_and_attacks_on_the_supervisor_are_not_paid(tmp_path: Path) -> None:
    names = "fork_bomb memory_bomb disk_fill kills_everything kills_parent_and_init flood spin_in_children"
    assert run_contained("full", named(names), tmp_path) == {}


@SLOW
@pytest.mark.parametrize("name", CONFINING)
def test_no_bomb_flood_or_attack_on_the_supervisor_is_paid(name: str, tmp_path: Path) -> None:
    assert run_contained(name, of_class(*BOMBS), tmp_path) == {}


@pytest.mark.long
@pytest.mark.parametrize(("name", "sample"), SAMPLES)
def test_no_program_turns_its_own_doing_into_a_fault_of_the_sandbox(name: str, sample: bool) -> None:
    entries = sampled(of_kind("trouble"), sample)
    assert run(name, [e for e in entries if name == "full" or not e.name.startswith("forged_sig")]) == {}


@pytest.mark.parametrize(("name", "sample"), SAMPLES)
def test_nothing_that_a_test_leaves_reaches_the_next(name: str, sample: bool) -> None:
    assert run(name, sampled(of_class("remembers between tests"), sample)) == {}


LONG = {
    "terms": "x = " + "x+" * 90_000 + "1\n",
    "minus signs": "x = " + "-" * 90_000 + "1\n",
    "statements": "a = b + 1\n" * 200_000,
    "names": "".join(f"n{n} = {n}\n" for n in range(100_000)),
    "lists": "x = [" + "[]," * 300_000 + "]\n",
    "decorators": "@f\n" * 60_000 + "def f(): pass\n",
    "classes in classes": "".join(f"{' ' * n}class {'C' * 3000}:\n" for n in range(98)) + " " * 98 + "pass\n",
    "alternatives": "match x:\n case " + "|".join(map(str, range(60_000))) + ": pass\n",
    "digits": f"x = {'7' * 1_000_000}\n",
    "characters": f"x = '{'a' * 20_000_000}'\n",
    "warnings": "x = '\\d' is 1\n" * 50_000,
}


@pytest.mark.long
@pytest.mark.parametrize("name", ["full", *(pytest.param(name, marks=SLOW) for name in ("landlock", FUSION))])
def test_a_source_that_is_large_to_compile_is_the_programs_fault(name: str) -> None:
    problem = BY_NAME["null_byte"].problem
    sources = LONG if name != "full" else {"warnings": LONG["warnings"]}
    entries = [CorpusProgram(kind, "trouble", "", code, problem) for kind, code in sources.items()]
    assert run(name, entries) == {}


FRAGILE = """
import sys

def check(input, output, expected):
    words = output.split()
    number = int(words[0])
    while number == 10**6:
        pass
    if number == 10**7:
        words *= 10**9
    if number == 10**8:
        sys.exit(3)
    if number < 0:
        return number
    return 1 / number == 1 or "not one" + " ok" * (len(words) - 1)
"""
"""A checker that decides on the expected outputs, and not on every other one."""
UNREADABLE = {
    "no output": "pass",
    "a word": "print('abc')",
    "zero, by which it divides": "print(0)",
    "a number for which it returns no decision": "print(-1)",
    "a number at which it does not end": "print(10**6)",
    "a number at which its memory runs out": "print(10**7)",
    "a number at which it exits": "print(10**8)",
    "more digits than int takes": "print('1' * 5000)",
    "bytes that are no text": "import os\nos.write(1, b'\\xed\\xa0\\x80')",
    "quotes and brackets": 'print(\'"}, "expected": "\')',
    "lines that look like its own": "print('2 ok\\nok')",
    "ten megabytes": "print('2 ' * 5000000)",
}


@pytest.mark.parametrize("name", ["full", *(pytest.param(name, marks=SLOW) for name in ("landlock", FUSION))])
def test_an_output_that_a_checker_cannot_read_is_a_wrong_answer(name: str) -> None:
    tests = (StdinTest("6\n", "1\n"), StdinTest("9\n", "1\n"))
    problem = Problem("fragile", "", tests, compare=Compare("checker", checker=FRAGILE))
    quick = ("a word", "a number for which it returns no decision", "a number at which it exits")
    codes = UNREADABLE if name != "full" else {kind: UNREADABLE[kind] for kind in quick}
    assert run(name, [cheat(kind, code, problem) for kind, code in codes.items()]) == {}


AT_ONCE = 4
ID, TOKEN = "ID-77a43ff06b1ae2", "TOK-5f9c3d51e8a2b4c6d7e8f901"
ASKED = Problem(
    "asked",
    "",
    (StdinTest("".join(f"{n * n} {n**3 % 1009}\n" for n in range(30)) + f"{ID}\n", f"{TOKEN}\n"),),
    compare=Compare(
        "checker", checker="def check(input, output, expected):\n    return output.split()[:1] == expected.split()"
    ),
)
KNOWS_IT = f"print({TOKEN[::-1]!r}[::-1], '. ' * 20000)\n"
"""Holds the token backwards, so that only the checker's question shows it; a long answer leaves more behind."""
SEEKS_IT = """
given = sys.stdin.read().split()[-1].encode()
token = re.compile(b"TOK" + b"-[0-9a-f]{24}")
for blob in blobs():
    for match in re.finditer(re.escape(given), blob):
        near = token.search(blob, match.end(), match.end() + 200)
        if near:
            print(near.group().decode(), ". " * 20000, flush=True)
            os._exit(0)
print("nothing", ". " * 20000, flush=True)
os._exit(0)
"""


def among(owners: Sequence[CorpusProgram], exfiltrators: Sequence[CorpusProgram]) -> list[CorpusProgram]:
    """Right programs in every worker before the first exfiltrator, and more of them between."""
    mixed = [*owners] * (3 * AT_ONCE // len(owners) + 1)
    for number, exfiltrator in enumerate(exfiltrators):
        mixed += [exfiltrator] if number % 2 else [owners[number // 2 % len(owners)], exfiltrator]
    return mixed


@pytest.mark.long
@pytest.mark.parametrize(("name", "sample"), SAMPLES)
def test_no_program_finds_the_program_of_another_submission(name: str, sample: bool) -> None:
    assert run(name, among(of_kind("owner"), sampled(of_class("searches memory for others"), sample))) == {}


@pytest.mark.long
@pytest.mark.parametrize(("name", "sample"), SAMPLES)
def test_no_program_finds_an_expected_output_that_a_checker_saw(name: str, sample: bool) -> None:
    owner = CorpusProgram("knows", "honest", "", KNOWS_IT, ASKED)
    seekers = [cheat(name, walk + SEEKS_IT, ASKED) for name, walk in WALKS.items() if name in SAMPLE or not sample]
    assert run(name, among([owner], seekers)) == {}


CEILING = 8
"""A test ends after at most this many times its wall cap, whatever the load (docs/sandbox.md)."""
NAP = "import time\ntime.sleep(.3)\ninput()\nprint(sum(map(int, input().split())))\n"


def budget_s(problem: Problem) -> float:
    limits = Limits(problem.time_limit_s)
    many = len(problem.tests) > 5
    return 1.25 * limits.submission_s(len(problem.tests)) if many else CEILING * (4 * problem.time_limit_s + 2)


@pytest.mark.long
@pytest.mark.parametrize(("name", "sample"), SAMPLES)
def test_no_program_holds_its_worker_beyond_the_ceiling(name: str, sample: bool) -> None:
    holders = sampled(of_class("holds the grader"), sample)
    honest = [CorpusProgram("naps", "honest", "", NAP, holders[0].problem)] * AT_ONCE

    async def go() -> tuple[dict[str, str], dict[str, float]]:
        async with room(name, AT_ONCE) as executor:
            found = await verdicts(holders, executor)
            held = {e.name: v.wall_s for e, v in zip(holders, found, strict=True) if v.wall_s > budget_s(e.problem)}
            return undeserved(holders, found) | await misjudged(honest, executor), held

    assert asyncio.run(go()) == ({}, {})


@SLOW
@pytest.mark.timeout(1800)
def test_a_crowd_of_holders_is_stopped_as_soon_as_a_single_one() -> None:
    """Sixty-four workers on few processors: the ceiling does not grow with the load."""

    async def go() -> list[float]:
        async with room("full", 64) as executor:
            return [verdict.wall_s for verdict in await verdicts(of_class("holds the grader")[:4] * 16, executor, 64)]

    assert max(asyncio.run(go())) <= budget_s(BY_NAME["thread_births"].problem)
