"""What `code-rl prepare strengthen=true` finds on problems with programs of which the truth is known: wrong ones newly caught, right ones lost.

`programs` (as for `code-rl judge`) are judged by the tests of `dataset`; those that pass are right or wrong by the tests of `truth`. Without `programs` they are
the rows' own: `solutions` and `meta.wrong_solutions`. Two right ones stand beside the reference, as in prepare; no others, and no wrong ones, have a say in the
new tests: those kept are chosen by mutants of the reference alone.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import Counter, defaultdict
from collections.abc import Sequence

import chz

from code_rl.cli import run_script
from code_rl.commands.judge import read_programs
from code_rl.concurrency import together
from code_rl.judging.judge import judge
from code_rl.loading.dataset import open_dataset
from code_rl.loading.load import load_problems
from code_rl.loading.on_disk import Store
from code_rl.preparation.overlap.deduplicate import program_shape
from code_rl.preparation.settings import PrepareConfig
from code_rl.preparation.verification.independence import independent
from code_rl.preparation.verification.strengthen import LEAST_OTHERS, MUTANTS_FACTOR, agreed_tests, chosen, failed
from code_rl.preparation.verification.trials import attempt
from code_rl.preparation.verification.verify import calibrated_limit, mutants_of, wrong_solutions
from code_rl.problems.problem import Problem
from code_rl.sandbox.connect import connect_executor
from code_rl.sandbox.executor import Executor


@chz.chz
class StrengthenBenchmark:
    """Settings of the benchmark."""

    dataset: str = chz.field(doc="Problems with weak tests, as train's dataset=.")
    truth: str | None = chz.field(
        default=None, doc="The same problems with strong tests (None: the rows know their wrong solutions)."
    )
    programs: str | None = chz.field(default=None, doc="Programs, as for code-rl judge (None: the rows' own).")
    problems: int = chz.field(default=200, doc="Problems at most.")
    passing: int = chz.field(
        default=12, doc="Programs of different shapes that pass the weak tests to look at, a problem."
    )
    keep_tests: int | None = chz.field(default=None, doc="Tests that a problem keeps, the first ones (None: all).")
    new_inputs: int = chz.field(default=64, doc="As prepare's.")
    new_tests: int = chz.field(default=8, doc="As prepare's.")
    mutants: int = chz.field(default=6, doc="As prepare's.")
    seconds: float = chz.field(default=270.0, doc="Begin no further problem after so many seconds.")


async def measure(config: StrengthenBenchmark) -> Counter[str]:
    """All counts."""
    executor = connect_executor("embedded")
    try:
        weak = await load_problems(open_dataset(config.dataset), executor)
        truth = await load_problems(open_dataset(config.truth), executor) if config.truth else None
        programs: dict[str, list[str]] = defaultdict(list)
        for program in read_programs(config.programs, weak) if config.programs else ():
            if program.code is not None:
                programs[program.problem_id].append(program.code)
        counts, until, turns = Counter[str](), time.monotonic() + config.seconds, asyncio.Semaphore(4)

        async def one(index: int) -> None:
            async with turns:
                if time.monotonic() < until:
                    counts.update(await look(weak[index], truth, programs, config, executor))

        await together(one(index) for index in range(min(config.problems, len(weak))))
        return counts
    finally:
        await executor.aclose()


async def look(
    problem: Problem,
    truth: Store | None,
    programs: dict[str, list[str]],
    config: StrengthenBenchmark,
    executor: Executor,
) -> Counter[str]:
    """The counts of one problem."""
    strong = problem
    problem = dataclasses.replace(problem, tests=problem.tests[: config.keep_tests])
    if truth is not None:
        if not truth.has(problem.id):
            return Counter({"problems without a truth": 1})
        strong = truth.get(problem.id)
    trial = await attempt(problem, problem.solutions[0], executor) if problem.solutions else None
    if trial is None or not trial.verdict.correct:
        return Counter({"problems without a reference that passes": 1})
    problem = dataclasses.replace(problem, time_limit_s=calibrated_limit(problem.time_limit_s, trial.slowest_s))
    known_wrong = [] if config.programs else wrong_solutions(problem)
    given = programs[problem.id] if config.programs else [*problem.solutions[1:], *known_wrong]
    right: list[str] = []
    wrong: list[str] = []
    for code in await passing(problem, given, config.passing, executor):
        honest = code not in known_wrong and (await judge(strong, code, executor)).correct
        (right if honest else wrong).append(code)
    voters = independent([problem.solutions[0], *right])[: LEAST_OTHERS + 1]
    held_out = [code for code in right if code not in voters]
    agreed = await agreed_tests(problem, voters, executor, f"0/{problem.id}", config.new_inputs)
    settings = PrepareConfig(dataset="", out="", mutants=config.mutants)
    mutants = mutants_of(problem.solutions[0], settings, problem, MUTANTS_FACTOR) if agreed.tests else []
    failing = [
        await failed(problem, agreed.tests, code, executor)
        for code in mutants
        if (await judge(problem, code, executor)).correct
    ]
    kept = chosen([failing], config.new_tests)
    found = Counter(
        {
            "problems": 1,
            f"problems: {agreed.why or 'with new tests'}": 1,
            "tests added": len(kept),
            "inputs agreed": len(agreed.tests),
        }
    )
    if not agreed.tests:
        return found
    found["mutants that passed and fail an agreed input"] = sum(map(bool, failing))
    found["mutants caught by the tests kept"] = sum(bool(fails & set(kept)) for fails in failing)
    for what, codes in (("wrong", wrong), ("held-out right", held_out)):
        for code in codes:
            fails = await failed(problem, agreed.tests, code, executor)
            found.update(
                {
                    f"{what} programs that passed": 1,
                    f"{what}: fail the tests kept": bool(fails & set(kept)),
                    f"{what}: fail any agreed input": bool(fails),
                }
            )
            if what != "wrong" and fails:
                print(f"{problem.id}: a held-out right program fails {sorted(fails)}:\n{code}", flush=True)
    return found


async def passing(problem: Problem, programs: Sequence[str], most: int, executor: Executor) -> list[str]:
    """The first programs of different shapes that pass."""
    shapes = {program_shape(problem.solutions[0])}
    found: list[str] = []
    for code in programs:
        shape = program_shape(code)
        if len(found) < most and shape is not None and shape not in shapes:
            shapes.add(shape)
            if (await judge(problem, code, executor)).correct:
                found.append(code)
    return found


def main(config: StrengthenBenchmark) -> int:
    """Measure and print."""
    started = time.monotonic()
    for name, count in sorted(asyncio.run(measure(config)).items()):
        print(f"{count:>7}  {name}")
    print(f"{time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    run_script(StrengthenBenchmark, main, __doc__ or "")
