"""`code-rl prepare` at scale: minutes a stage, peak memory, and verify against `code-rl judge` on the same programs.

The set is generated: `problems` problems of many families, a median of 20 tests, one row in a hundred over 5 MB, some duplicates, some
overlap with a generated evaluation set. Every problem has a reference that passes. Everything runs as a user would run it, in processes of
its own.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import chz
import numpy as np

from code_rl.cli.main import run_script
from code_rl.data.preparation.wrong_programs import mutants
from code_rl.grading.native import write_problems
from code_rl.grading.problem import Problem, StdinTest

FAMILIES = (
    ("the sum of all values", "print(sum(v))", lambda v: sum(v)),
    ("the largest value", "print(max(v))", lambda v: max(v)),
    ("how many different values there are", "print(len(set(v)))", lambda v: len(set(v))),
    ("the sum of the even values", "print(sum(x for x in v if x % 2 == 0))", lambda v: sum(x for x in v if x % 2 == 0)),
    (
        "how often neighbours differ",
        "print(sum(a != b for a, b in zip(v, v[1:])))",
        lambda v: sum(a != b for a, b in itertools.pairwise(v)),
    ),
    ("the difference of the largest and the smallest value", "print(max(v) - min(v))", lambda v: max(v) - min(v)),
)
SYLLABLES = ["ba", "ce", "di", "fo", "gu", "ha", "ke", "li", "mo", "nu", "pa", "re", "si", "to", "vu", "wa", "xe", "zi"]
DUPLICATES = 0.02
LEAKS = 0.01
LARGE_BYTES = 5_200_000


@chz.chz
class PrepareBenchmark:
    """Settings of the benchmark."""

    problems: int = chz.field(default=24000, doc="Problems to generate.")
    compared: int = chz.field(default=300, doc="Problems on which verify is compared with judge; 0: none.")
    stop_after: str = chz.field(default="write", doc="Last stage of the large run.")
    references: bool = chz.field(
        default=True,
        doc="Problems of the large run have references; without, verify has nothing to run and the static stages remain.",
    )
    mutants: int = chz.field(default=2, doc="Mutants per reference.")
    repeats: int = chz.field(default=1, doc="Further runs of each reference.")
    large_share: float = chz.field(default=0.01, doc="Share of rows over 5 MB.")
    seed: int = chz.field(default=0, doc="Seed of the generated set.")
    folder: str | None = chz.field(default=None, doc="Where to work (None: a temporary folder, removed afterwards).")


def generated(config: PrepareBenchmark) -> Iterator[Problem]:
    """The problems, one at a time; a few repeat an earlier statement, tests and all."""
    rng = random.Random(config.seed)
    earlier: list[int] = []
    for number in range(config.problems):
        if earlier and rng.random() < DUPLICATES:
            yield one_problem(config, rng.choice(earlier), f"copy-{number}")
        else:
            earlier.append(number)
            yield one_problem(config, number, f"problem-{number}")


def one_problem(config: PrepareBenchmark, number: int, name: str) -> Problem:
    """The problem that `number` stands for: its text, tests and reference depend on it and the seed alone."""
    rng = random.Random(f"{config.seed}/{number}")
    what, code, answer = FAMILIES[number % len(FAMILIES)]
    story = " ".join(_word(rng) for _ in range(int(rng.lognormvariate(math.log(110), 0.5))))
    statement = (
        f"{story}.\n\nA list of n values is given. Print {what}, as {_word(rng)} would do it.\n\nInput\n\n"
        f"The first line contains a single integer n (1 <= n <= {rng.randint(10, 10**6)}). The second line contains n integers.\n\n"
        "Output\n\nPrint a single integer."
    )
    count = min(200, max(5, int(rng.lognormvariate(math.log(20), 0.6))))
    large = rng.random() < config.large_share
    tests = []
    for index in range(count):
        length = max(2, int(rng.lognormvariate(math.log(30), 1.0)))
        if large and index >= count - 4:
            length = LARGE_BYTES // 4 // 7
        v = np.random.default_rng([config.seed, number, index]).integers(100_000, 999_999, length).tolist()
        tests.append(StdinTest(f"{length}\n{' '.join(map(str, v))}\n", f"{answer(v)}\n", public=index < 2))
    reference = f"n = int(input())\nv = list(map(int, input().split()))\n{code}\n"
    solutions = (reference,) if config.references else ()
    return Problem(name, statement, tuple(tests), solutions=solutions, source="generated")


def _word(rng: random.Random) -> str:
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(2, 4)))


def eval_problems(config: PrepareBenchmark) -> list[Problem]:
    """An evaluation set of which a part leaked into the training set."""
    rng = random.Random(f"{config.seed}/exams")
    leaked = [rng.randrange(config.problems) for _ in range(int(LEAKS * config.problems))]
    fresh = [config.problems + index for index in range(200)]
    return [one_problem(config, number, f"exam-{place}") for place, number in enumerate([*leaked, *fresh])]


def command(*words: str) -> float:
    """Run `code-rl` with these words; returns wall seconds."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "code_rl.cli", *words], check=True)
    return time.perf_counter() - started


def scale(config: PrepareBenchmark, folder: Path) -> None:
    """The large run, stage by stage."""
    noisy, exam_file = folder / "set.jsonl", folder / "exams.jsonl"
    if not noisy.exists():
        write_problems(noisy, generated(config))
        write_problems(exam_file, eval_problems(config))
    print(f"{config.problems} problems, {noisy.stat().st_size / 1e6:.0f} MB", flush=True)
    out = folder / "out"
    before = cpu_s()
    seconds = command(
        "prepare", f"dataset={noisy}", f"out={out}", f"decontaminate={exam_file}", f"stop_after={config.stop_after}",
        f"mutants={config.mutants}", f"repeats={config.repeats}", f"unverified={'drop' if config.references else 'keep'}",
    )  # fmt: skip
    report = json.loads((out / "card.json").read_text())
    for stage in report["stages"]:
        print(
            f"{stage['stage']:>13} {stage['seconds'] / 60:7.2f} min  {stage['in']} -> {stage['out']}  {stage['dropped']}"
        )
    static = sum(stage["seconds"] for stage in report["stages"] if stage["stage"] not in ("verify", "difficulty"))
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(
        f"all {seconds / 60:.2f} min; all but verify {static / 60:.2f} min; peak memory {peak:.0f} MiB; "
        f"CPU time of the command, without the sandbox, {(cpu_s() - before) / 60:.2f} min",
        flush=True,
    )


def cpu_s() -> float:
    """CPU seconds of all children that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def compare(config: PrepareBenchmark, folder: Path) -> None:
    """Verify against judge on the programs that verify runs: the reference 1 + `repeats` times, and the mutants."""
    problems = folder / "compared.jsonl"
    smaller = chz.replace(config, problems=config.compared)
    made = [one_problem(smaller, number, f"problem-{number}") for number in range(config.compared)]
    write_problems(problems, made)
    programs = folder / "programs.jsonl"
    with programs.open("w") as stream:
        for problem in made:
            reference = problem.solutions[0]
            wrong = mutants(reference, config.mutants, f"0/{problem.id}")
            for index, code in enumerate([reference] * (1 + config.repeats) + wrong):
                stream.write(json.dumps({"problem_id": problem.id, "program_id": index, "code": code}) + "\n")
    count = sum(1 for _ in programs.open())
    times: dict[str, list[float]] = {"verify": [], "judge": []}
    for turn in range(2):
        out = folder / f"compared-{turn}"
        command(
            "prepare",
            f"dataset={problems}",
            f"out={out}",
            "stop_after=verify",
            f"mutants={config.mutants}",
            f"repeats={config.repeats}",
        )
        report = json.loads((out / "card.json").read_text())
        times["verify"].append(next(stage["seconds"] for stage in report["stages"] if stage["stage"] == "verify"))
        times["judge"].append(
            command(
                "judge",
                f"problems={problems}",
                f"programs={programs}",
                f"out={folder / 'verdicts.jsonl'}",
                "reward_timeout=0.5",
            )
        )
    verify, judge = min(times["verify"]), min(times["judge"])
    print(
        f"{count} programs: verify {verify:.1f} s, judge {judge:.1f} s (its start included): {verify / judge:.2f} of judge's time {times}"
    )


def run(config: PrepareBenchmark) -> int:
    """Both parts."""
    if config.folder is not None:
        folder = Path(config.folder)
        folder.mkdir(parents=True, exist_ok=True)
        return _run(config, folder)
    with tempfile.TemporaryDirectory() as name:
        return _run(config, Path(name))


def _run(config: PrepareBenchmark, folder: Path) -> int:
    if config.compared:
        compare(config, folder)
    if config.problems:
        scale(config, folder)
    return 0


if __name__ == "__main__":
    run_script(PrepareBenchmark, run, __doc__ or "")
