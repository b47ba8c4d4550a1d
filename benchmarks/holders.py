"""The cost of hostile programs to the others: throughput beside idle holders, and a long mixed stream that may leave nothing behind.

    python benchmarks/holders.py [seconds=20] [rounds=3] [concurrency=4] [share=0.01] [isolation=full]
    python benchmarks/holders.py soak=10000 [concurrency=64] [hostile=0.05] [isolation=full] [seed=0]

Without `soak`: honest jobs of 20 ms, limit 1 CPU second, in turns with and without a share of programs that use little processor time and want to
keep a worker; the ratio of the two rates is printed. With `soak`: the corpus of `code-rl audit`, so many submissions, of which the share `hostile` is
hostile, judged at once. Printed are verdicts, those that a program does not deserve, verdicts that differ from a program's first, and
processes, descriptors, mounts, files and control groups that were not there before (other users of the same temporary directory show as leaks).
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from code_rl.grading.audit.programs import HOLDING, HONEST, OWNER, CorpusProgram
from code_rl.grading.judging import judge_async
from code_rl.grading.sandbox.executor import Job, Limits, Status, StdinInput
from code_rl.grading.sandbox.local.pool import EmbeddedSandbox
from code_rl.grading.verdict import VerdictKind
from tests.grading.corpus.programs import deserved, of_class, of_kind
from tests.grading.corpus.test_programs import NOT_AT_LANDLOCK

SETTINGS = {
    "seconds": "20",
    "rounds": "3",
    "concurrency": "",
    "share": "0.01",
    "isolation": "full",
    "soak": "0",
    "hostile": "0.05",
    "seed": "0",
}
LIMITS = Limits(cpu_s=1.0)
IN_FLIGHT_PER_PLACE = 8
"""As a run or `judge` has them: who waits for a place can take that of an idle one."""
HONEST_20_MS = """
import time
end = time.process_time() + 0.02
while time.process_time() < end:
    pass
print(input())
"""
IDLE = (
    "thread_births",
    "fork_births",
    "sleeping_tree",
    "fork_relay",
    "duty_one_percent",
    "duty_three_percent",
    "nanosleep_threads",
)
HOSTILE = ("searches memory for others", "makes trouble", HOLDING, "remembers between tests")


def main() -> None:
    if "--help" in sys.argv or "-h" in sys.argv:
        print(__doc__)
        return
    settings = dict(SETTINGS)
    for argument in sys.argv[1:]:
        name, _, value = argument.lstrip("-").partition("=")
        if name not in settings:
            sys.exit(f"unknown setting {name!r}; known: {', '.join(settings)}")
        settings[name] = value
    soak = int(settings["soak"])
    settings["concurrency"] = settings["concurrency"] or ("64" if soak else "4")
    print(
        " ".join(f"{name}={value}" for name, value in settings.items()),
        f"cpus={len(os.sched_getaffinity(0))} load={os.getloadavg()[0]:.1f}",
    )
    asyncio.run(stream(settings) if soak else compare(settings))


async def compare(settings: dict[str, str]) -> None:
    """Print the rates of honest jobs alone and beside holders, and their ratio."""
    seconds, lanes, share = float(settings["seconds"]), int(settings["concurrency"]), float(settings["share"])
    rates: dict[bool, list[float]] = {False: [], True: []}
    held: list[float] = []
    async with EmbeddedSandbox(lanes, settings["isolation"]) as box:
        for turn in range(2 * int(settings["rounds"])):
            beside = turn % 2 == 1
            rates[beside].append(await rate(box, seconds, lanes, share if beside else 0.0, held))
            print(f"  {'with' if beside else 'without'} holders: {rates[beside][-1]:.1f} honest jobs/s", flush=True)
    alone, beside_them = (statistics.median(rates[which]) for which in (False, True))
    print(f"without {alone:.1f}/s, with {share:.1%} holders {beside_them:.1f}/s: {beside_them / alone:.2f}x")
    if held:
        print(f"holders: {len(held)}, held for {statistics.median(held):.1f} s (median), {max(held):.1f} s (longest)")


async def rate(box: EmbeddedSandbox, seconds: float, lanes: int, share: float, held: list[float]) -> float:
    """Honest jobs a second that end within `seconds`, in a stream that always has more submissions in flight than the sandbox has places."""
    honest = Job(HONEST_20_MS, (StdinInput(b"1\n"),), limits=LIMITS)
    holders = itertools.cycle([entry.code for entry in of_class(HOLDING) if entry.name in IDLE])
    done = begun = 0
    start = time.perf_counter()

    async def lane() -> None:
        nonlocal done, begun
        while time.perf_counter() - start < seconds:
            begun += 1
            if share and begun % round(1 / share) == round(0.5 / share):
                began = time.perf_counter()
                async for _ in box.run(Job(next(holders), (StdinInput(b""),), limits=LIMITS)):
                    pass
                held.append(time.perf_counter() - began)
                continue
            async for execution in box.run(honest):
                if execution.status is not Status.OK or execution.stdout != b"1\n":
                    sys.exit(f"an honest job ended with {execution}")
            done += time.perf_counter() - start < seconds

    await asyncio.gather(*(lane() for _ in range(IN_FLIGHT_PER_PLACE * lanes)))
    return done / seconds


@dataclass(frozen=True, slots=True)
class Trace:
    """This machine's objects of this user, by name; those that are new afterwards have leaked."""

    found: dict[str, frozenset[str]]

    @classmethod
    def take(cls) -> Trace:
        """A look at processes below this one, descriptors, mounts, temporary files, control groups, and System V objects."""
        groups = [str(path) for path in Path("/sys/fs/cgroup").glob(f"**/code-rl-{os.getpid()}-*") if path.is_dir()]
        tables = [f"{n}: {line}" for n in ("shm", "sem", "msg") for line in _lines(f"/proc/sysvipc/{n}")]
        places = [str(path) for place in ("/tmp", "/dev/shm", "/var/tmp") for path in Path(place).glob("*")]
        return cls(
            {
                "processes": frozenset(_below(os.getpid())),
                "descriptors": frozenset(f"{fd}" for fd in os.listdir("/proc/self/fd")),
                "mounts": frozenset(_lines("/proc/self/mountinfo")),
                "files": frozenset(places),
                "control groups": frozenset(groups),
                "shared objects": frozenset(tables),
            }
        )

    def since(self, before: Trace) -> dict[str, list[str]]:
        """The objects that came since `before`."""
        return {name: sorted(now - before.found[name]) for name, now in self.found.items() if now - before.found[name]}


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _below(root: int) -> list[str]:
    parents = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        text = _lines(f"/proc/{entry}/stat")
        if text:
            parents[entry] = text[0].rsplit(")", 1)[1].split()[1]
    below, grown = {str(root)}, True
    while grown:
        new = {pid for pid, parent in parents.items() if parent in below} - below
        below, grown = below | new, bool(new)
    return sorted(below - {str(root)})


def mixed(count: int, hostile: float, level: str, rng: random.Random) -> Iterator[CorpusProgram]:
    """`count` programs: every hostile one in turn among honest ones and owners."""
    turns = itertools.cycle([e for e in of_class(*HOSTILE) if level == "full" or not e.name.startswith("forged_sig")])
    honest = [
        e for kind in (HONEST, OWNER) for e in of_kind(kind) if level != "landlock" or e.name not in NOT_AT_LANDLOCK
    ]
    for _ in range(count):
        yield next(turns) if rng.random() < hostile else rng.choice(honest)


async def stream(settings: dict[str, str]) -> None:
    """Judge a mixed stream and print the faults."""
    level, rng = settings["isolation"], random.Random(int(settings["seed"]))
    before, began = Trace.take(), time.perf_counter()
    counts: Counter[tuple[str, str]] = Counter()
    first: dict[str, VerdictKind] = {}
    wrong: Counter[str] = Counter()
    flips: Counter[str] = Counter()
    work = mixed(int(settings["soak"]), float(settings["hostile"]), level, rng)
    async with EmbeddedSandbox(int(settings["concurrency"]), level) as box:

        async def lane() -> None:
            for entry in work:
                verdict = (await judge_async(entry.problem, entry.code, box)).kind
                counts[entry.kind, verdict.value] += 1
                name = f"{entry.kind}/{entry.name}"
                if verdict not in deserved(entry):
                    wrong[f"{name}: {verdict.value}"] += 1
                if first.setdefault(name, verdict) is not verdict:
                    flips[f"{name}: {first[name].value}, then {verdict.value}"] += 1
                done = sum(counts.values())
                if done % 500 == 0:
                    print(
                        f"  {done} in {time.perf_counter() - began:.0f} s, {sum(wrong.values())} undeserved", flush=True
                    )

        await asyncio.gather(*(lane() for _ in range(int(settings["concurrency"]))))
    await asyncio.sleep(1)
    print(f"{sum(counts.values())} submissions in {time.perf_counter() - began:.0f} s")
    for (kind, verdict), number in sorted(counts.items()):
        print(f"  {kind:<18}{verdict:<16}{number:6d}")
    honest_flips = Counter({name: n for name, n in flips.items() if name.startswith("honest/")})
    for title, found in (("undeserved", wrong), ("honest flips", honest_flips), ("other flips", flips - honest_flips)):
        print(f"{title}: {sum(found.values())}")
        for line, number in sorted(found.items()):
            print(f"  {number} x {line}")
    leaks = Trace.take().since(before)
    print("leaks:", leaks or "none")


if __name__ == "__main__":
    main()
