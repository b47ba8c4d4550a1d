"""Stage `verify`: each problem is proved in the same sandbox and by the same judge that give the
reward.

A reference must pass repeatedly. Trivial programs and known wrong solutions must fail. Mutants of
the reference measure how strong the tests are. If no reference passes and one ran out of time, all
are tried again under a larger limit.
"""

from __future__ import annotations

import contextlib
import math
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from operator import itemgetter
from typing import Any

from code_rl.data.preparation.decisions import (
    BROKEN_CHECKER,
    MISSING_LIBRARY,
    SANDBOX_ERROR,
    UNSETTLED,
    Decision,
    OnItem,
    Verdicts,
    at_once,
)
from code_rl.data.preparation.settings import PrepareConfig
from code_rl.data.preparation.verification.attempts import (
    is_unsteady,
    mutants,
    perturbed,
    trivial_pass,
)
from code_rl.data.preparation.verification.nearby import nearby_problem
from code_rl.data.preparation.verification.programs import (
    MUTANTS,
    RIGHT,
    TRIVIAL,
    UNKNOWN,
    WRONG,
    at_least,
)
from code_rl.data.preparation.workspace import Candidate, Workspace
from code_rl.grading import Problem, Verdict, VerdictKind, judge_async
from code_rl.grading.sandbox import Executor, Limits
from code_rl.grading.submission import limits_of
from code_rl.util.concurrency import default_concurrency
from code_rl.util.data_files import sources_digest
from code_rl.util.errors import SandboxError
from code_rl.util.files import KeyedLog, digest

UNSTEADY_REPEATS = 10
MOST_WRONG_SOLUTIONS = 5
IMPOSSIBLE_FACTOR = 4.0
"""If the reference exceeds a stated limit by more than this factor, the problem is defective; below
it, the limit was set for another language."""
Programs = defaultdict[str, Counter[str]]
"""Counts by verdict of each kind of program."""
_NOT_IMPORTED = re.compile(
    r"ModuleNotFoundError: No module named '([^']+)'|ImportError: (?:cannot import name .* "
    r"from '([^']+)'|(\S+\.so\S*): )"
)


# The code and the settings on which a stored decision depends, beside the problem.
_CODE = (__package__, "code_rl.data.preparation.decisions", "code_rl.grading")
_DECIDING = ("mutants", "seed", "max_references", "repeats", "patient_limit_s", "unverified")


async def run_verify(
    workspace: Workspace, candidates: Sequence[Candidate], on_item: OnItem
) -> list[Decision]:
    """Verify many problems at once, except those that an earlier run has decided."""
    config = workspace.config
    shared = [sources_digest(*_CODE), *(getattr(config, name) for name in _DECIDING)]
    keys = {one.entry.id: digest(shared, one.entry.digest) for one in candidates}
    log = KeyedLog[str](workspace.work / "verify.jsonl", itemgetter("key"))
    with contextlib.closing(log):
        rows = {name: log.get(key) for name, key in keys.items()}
        made = {name: Decision(**row["decision"]) for name, row in rows.items() if row}
        for _ in made:
            on_item()

        async def decide(one: Candidate) -> None:
            name, verifier = one.entry.id, Verifier(config, workspace.executor())
            try:
                made[name] = await verifier.verify(workspace.store[one.entry.place])
            except SandboxError as error:
                made[name] = Decision(SANDBOX_ERROR, str(error))
            if made[name].reason not in UNSETTLED:
                log.put({"key": keys[name], "decision": asdict(made[name])})
            on_item()

        if waiting := [one for one in candidates if one.entry.id not in made]:
            await at_once(waiting, decide, default_concurrency(workspace.executor().slots))
        log.rewrite(keys.values())
    return [at_least(made[name], config.min_j) for name in keys]


@dataclass(frozen=True, slots=True)
class Verifier:
    """Verifies problems one by one; many calls may run at once."""

    config: PrepareConfig
    executor: Executor

    async def verify(self, problem: Problem) -> Decision:
        """Return the decision on a problem.

        Raises SandboxError if the executor fails at a point where no verdict can report it.
        """
        if (trivial := trivial_pass(problem)) is not None:
            known: Programs = defaultdict(
                Counter, {TRIVIAL: Counter({VerdictKind.PASSED.value: 1})}
            )
            await self._others(problem, 0, problem.time_limit_s, known)
            await self._wrong_ones(problem, problem.time_limit_s, known)
            return Decision(*trivial, programs=_plain(known))
        if not problem.solutions:
            if self.config.unverified == "drop":
                return Decision(
                    "no_reference", "no reference solution: nothing shows that the tests are right"
                )
            return Decision(metadata={"verified": False})
        for limit in (problem.time_limit_s, self.config.patient_limit_s):
            failed: list[tuple[str, Verdict]] = []
            programs: Programs = defaultdict(Counter)
            for number, code in enumerate(problem.solutions[: self.config.max_references], start=1):
                seconds: list[float] = []
                verdict = await self._judge(problem, code, limit, programs[RIGHT], seconds)
                if verdict.correct:
                    slowest = max(seconds, default=0.0)
                    decision = await self._proved(problem, code, slowest, number, programs)
                    return replace(decision, programs=_plain(programs))
                failed.append((code, verdict))
            if not any(verdict.kind is VerdictKind.TIME_LIMIT for _, verdict in failed):
                break
        failures = [await self._failure(problem, *each, limit) for each in failed]
        # Prefer a broken checker, then a failure of this machine, then the first failure.
        broken = [each for each in failures if each.reason == BROKEN_CHECKER]
        chosen = (broken or [one for one in failures if one.reason in UNSETTLED] or failures)[0]
        return replace(chosen, programs=_plain(programs))

    async def _judge(
        self,
        problem: Problem,
        code: str,
        limit: float,
        counts: Counter[str] | None = None,
        seconds: list[float] | None = None,
    ) -> Verdict:
        """Judge a program under a CPU limit in seconds. `counts` counts its verdict, unless that
        says nothing about the program; `seconds` gets the CPU seconds of each test."""
        limited = replace(problem, time_limit_s=limit)
        verdict = await judge_async(limited, code, self.executor, seconds=seconds)
        if counts is not None and not verdict.undecided:
            counts[verdict.kind.value] += 1
        return verdict

    async def _failure(
        self, problem: Problem, code: str, verdict: Verdict, limit: float
    ) -> Decision:
        """Return the decision for a reference that failed."""
        message = verdict.failure.message if verdict.failure else ""
        if verdict.undecided:
            return _no_verdict(verdict)
        if message.startswith(("ModuleNotFoundError", "ImportError")):
            # Public tests show the whole error.
            open_tests = tuple(replace(test, public=True) for test in problem.tests)
            again = await self._judge(replace(problem, tests=open_tests), code, limit)
            if again.failure and (library := missing_library(again.failure.message)):
                return Decision(MISSING_LIBRARY, f"the sandbox lacks {library}")
        at = f"{verdict.kind.value} at test {verdict.passed} of {verdict.total}"
        return Decision("reference_fails", f"{at}: {message.partition(':')[0]}")

    async def _proved(
        self, problem: Problem, code: str, slowest: float, number: int, programs: Programs
    ) -> Decision:
        """Return the decision for a reference that passed once, with `slowest` CPU seconds on its
        slowest test, after the rest of the proof."""
        stated = problem.time_limit_s
        if (
            slowest > stated
            and stated != Limits().cpu_s  # the default limit, which the data did not state
            and (slowest > IMPOSSIBLE_FACTOR * stated or stated < 1)
        ):
            return Decision(
                "impossible_time_limit",
                f"the limit is {stated:g} s of CPU time, the reference needs more",
            )
        patience = max(stated, 4 * bucket(slowest))
        decision = await self._repeated(problem, code, patience)
        limit = calibrated_limit(stated, slowest)
        if decision is None:
            await self._others(problem, number, limit, programs)
            decision = await self._wrong_ones(problem, patience, programs)
        if decision is not None:
            return decision
        await self._mutants(problem, code, 2 * bucket(slowest), programs[MUTANTS])
        metadata: dict[str, Any] = {
            "verified": True,
            "reference": number,
            "reference_cpu_s": bucket(slowest),
        }
        return Decision(metadata=metadata, time_limit_s=limit)

    async def _repeated(self, problem: Problem, code: str, limit: float) -> Decision | None:
        """Run a passing reference again, each time as a perturbed run. One failure makes the
        problem flaky."""
        more = UNSTEADY_REPEATS if self.config.repeats and is_unsteady(code) else 0
        for number in range(1, 1 + self.config.repeats + more):
            verdict = await self._judge(perturbed(problem, number), code, limit)
            if verdict.undecided:
                return _no_verdict(verdict)
            if not verdict.correct:
                how = f"fails when it is run again ({verdict.kind.value})"
                return Decision("flaky", f"the reference passes once and {how}")
        return None

    async def _others(
        self, problem: Problem, number: int, limit: float, programs: Programs
    ) -> None:
        """Judge the accepted solutions after the `number`th."""
        for code in problem.solutions[number : self.config.max_references]:
            await self._judge(problem, code, limit, programs[RIGHT])

    async def _wrong_ones(
        self, problem: Problem, limit: float, programs: Programs
    ) -> Decision | None:
        """Check that solutions known to be wrong fail."""
        known = problem.meta.get("wrong_solutions")
        wrong = [one for one in known if isinstance(one, str)] if isinstance(known, list) else []
        passing: list[Decision] = []
        for number, code in enumerate(wrong[:MOST_WRONG_SOLUTIONS]):
            verdict = await self._judge(problem, code, limit, programs[WRONG])
            if verdict.undecided:
                return _no_verdict(verdict)
            if verdict.correct:
                said = f"wrong solution {number} passes all {verdict.total} tests"
                passing.append(Decision("wrong_solution_passes", said))
        return passing[0] if passing else None

    async def _mutants(
        self, problem: Problem, code: str, limit: float, counts: Counter[str]
    ) -> None:
        """Count the verdicts on mutants. Those that pass are judged on generated inputs too."""
        seed = f"{self.config.seed}/{problem.id}"
        alive: list[str] = []
        count = self.config.mutants if problem.language == "python" else 0
        for mutant in mutants(code, count, seed):
            verdict = await self._judge(problem, mutant, limit)
            if verdict.correct:
                alive.append(mutant)
            elif not verdict.undecided:
                counts[verdict.kind.value] += 1
        limits = limits_of(problem, limit)
        nearby = await nearby_problem(problem, code, self.executor, limits, seed) if alive else None
        for mutant in alive:
            found = nearby and (await self._judge(nearby, mutant, limit)).kind
            differs = found in (VerdictKind.WRONG_ANSWER, VerdictKind.RUNTIME_ERROR)
            counts[VerdictKind.PASSED.value if differs else UNKNOWN] += 1


def _plain(programs: Programs) -> Verdicts:
    """Return the counts as dicts, which `asdict` copies."""
    return {kind: dict(counts) for kind, counts in programs.items() if counts}


def missing_library(message: str) -> str:
    """Return the library that a program's error calls missing. A name inside the standard library
    does not count: the program made it up."""
    named = _NOT_IMPORTED.match(message)
    library = next(filter(None, named.groups())).partition(".")[0] if named else ""
    return "" if library in sys.stdlib_module_names else library


def _no_verdict(verdict: Verdict) -> Decision:
    """Return the decision for a verdict that is not about the program: a broken checker, or a
    failed sandbox."""
    broken = verdict.kind is VerdictKind.CHECKER_ERROR
    return Decision(
        BROKEN_CHECKER if broken else SANDBOX_ERROR,
        verdict.failure.message if verdict.failure else "",
    )


STEP_S = 0.25
LEAST_LIMIT_S = 2.0
HEADROOM = 8.0
"""The limit as a multiple of the reference's time, unless a smaller stated limit suffices."""

LEAST_ROOM = 1.25


def bucket(cpu_s: float) -> float:
    """Return the smallest of 0.25, 0.5, 1, 2, 4, … seconds that is not below `cpu_s`."""
    if cpu_s <= STEP_S:
        return STEP_S
    return float(STEP_S * 2 ** math.ceil(math.log2(cpu_s / STEP_S)))


def calibrated_limit(stated_s: float, slowest_s: float) -> float:
    """Return the CPU limit of a problem whose reference needs `slowest_s` on its slowest test.

    The stated limit is lowered toward 8 buckets (at least 2 s) and never raised, unless it leaves
    no room: then it is 2 buckets.
    """
    needed = bucket(slowest_s)
    if stated_s < LEAST_ROOM * slowest_s:
        return 2 * needed
    return min(stated_s, max(LEAST_LIMIT_S, HEADROOM * needed))
