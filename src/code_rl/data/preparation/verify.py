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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from operator import itemgetter

from code_rl.data.preparation.generated_tests import nearby_problem
from code_rl.data.preparation.settings import PrepareConfig
from code_rl.data.preparation.workspace import (
    Candidate,
    Decision,
    OnItem,
    Verdicts,
    Workspace,
    at_once,
)
from code_rl.data.preparation.wrong_programs import is_unsteady, mutants, perturbed, trivial_pass
from code_rl.grading import Problem, Verdict, VerdictKind, judge_async
from code_rl.grading.sandbox import Executor, Limits
from code_rl.grading.submission import limits_of
from code_rl.util.concurrency import default_concurrency
from code_rl.util.data_files import sources_digest
from code_rl.util.errors import SandboxError
from code_rl.util.files import KeyedLog, digest
from code_rl.util.rates import Rate, RewardQuality

SANDBOX_ERROR = "sandbox_error"
BROKEN_CHECKER = "broken_checker"
MISSING_LIBRARY = "missing_library"
UNSETTLED = frozenset({SANDBOX_ERROR, MISSING_LIBRARY})
"""Reasons that depend on this machine and not on the problem. They are never stored, so that a
rerun decides again."""
RIGHT, TRIVIAL, WRONG, MUTANTS = "right", "trivial", "wrong_solutions", "mutants"
# The count of mutants that pass and are not known to differ from the reference.
UNKNOWN = "unknown"
PASSED = VerdictKind.PASSED.value
UNSTEADY_REPEATS = 10
MOST_WRONG_SOLUTIONS = 5
IMPOSSIBLE_FACTOR = 4.0
"""If the reference exceeds a stated limit by more than this factor, the problem is defective; below
it, the limit was set for another language."""
Programs = dict[str, dict[str, int]]
"""Counts by verdict of each kind of program."""
_NOT_IMPORTED = re.compile(r"ModuleNotFoundError: No module named '([^'.]+)")

# The code and the settings on which a stored decision depends, beside the problem.
_OWN = ("verify", "wrong_programs", "generated_tests", "workspace")
_CODE = (*(f"{__package__}.{name}" for name in _OWN), "code_rl.grading")
_DECIDING = ("mutants", "seed", "max_references", "repeats", "patient_limit_s", "unverified")


async def run_verify(
    workspace: Workspace, candidates: Sequence[Candidate], on_item: OnItem
) -> list[Decision]:
    """Return a decision on each candidate, in order. Many are verified at once, except those that
    an earlier run has decided with the same code, settings and problem. Decisions are stored in
    `work/verify.jsonl` as they are made.

    A failure of the executor is a decision, `sandbox_error`, that is not stored, so that a rerun
    tries again.
    """
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
            """Verify one problem and keep its decision on disk, unless it may change when tried
            again. A SandboxError becomes a decision."""
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
    return [_at_least(made[name], config.min_j) for name in keys]


@dataclass(frozen=True, slots=True)
class Verifier:
    """Verifies problems one by one; many calls may run at once."""

    config: PrepareConfig
    executor: Executor

    async def verify(self, problem: Problem) -> Decision:
        """Return the decision on a problem, with the verdicts on all programs that were judged for
        it. Nothing is stored.

        Raises SandboxError if the executor fails at a point where no verdict can report it.
        """
        programs: Programs = {}
        return replace(await self._decide(problem, programs), programs=programs)

    async def _decide(self, problem: Problem, programs: Programs) -> Decision:
        """Return the decision on a problem: it is kept if a reference passes, at its own limit or
        else at the patient one, and the other checks hold. Verdicts are counted in `programs`."""
        stated = problem.time_limit_s
        if (trivial := trivial_pass(problem)) is not None:
            _count(programs, TRIVIAL, PASSED)
            await self._others(problem, 0, stated, programs)
            await self._wrong_ones(problem, stated, programs)
            return Decision(*trivial)
        if not problem.solutions:
            if self.config.unverified == "keep":
                return Decision(metadata={"verified": False})
            return Decision(
                "no_reference", "no reference solution: nothing shows that the tests are right"
            )
        for limit in (stated, self.config.patient_limit_s):
            failed: list[tuple[str, Verdict]] = []
            programs.clear()
            for number, code in enumerate(problem.solutions[: self.config.max_references], start=1):
                seconds: list[float] = []
                verdict = await self._judge(problem, code, limit, seconds)
                _count(programs, RIGHT, verdict)
                if verdict.correct:
                    slowest = max(seconds, default=0.0)
                    return await self._proved(problem, code, slowest, number, programs)
                failed.append((code, verdict))
            if not any(verdict.kind is VerdictKind.TIME_LIMIT for _, verdict in failed):
                break
        failures = [await self._failure(problem, *each, limit) for each in failed]
        # Prefer a broken checker, then a failure of this machine, then the first failure.
        broken = [each for each in failures if each.reason == BROKEN_CHECKER]
        return (broken or [one for one in failures if one.reason in UNSETTLED] or failures)[0]

    async def _judge(
        self, problem: Problem, code: str, limit: float, seconds: list[float] | None = None
    ) -> Verdict:
        """Judge a program under a CPU limit in seconds, in place of the problem's; `seconds` gets
        the CPU seconds of each test (None: they are not kept)."""
        limited = replace(problem, time_limit_s=limit)
        return await judge_async(limited, code, self.executor, seconds=seconds)

    async def _failure(
        self, problem: Problem, code: str, verdict: Verdict, limit: float
    ) -> Decision:
        """Return the decision for a reference that failed under a CPU limit in seconds. One that
        lacks a library is judged again, to learn its name."""
        message = verdict.failure.message if verdict.failure else ""
        if verdict.undecided:
            return _no_verdict(verdict)
        if message.startswith("ModuleNotFoundError"):
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
        """Return the decision for a reference, the `number`th, that passed once with `slowest` CPU
        seconds on its slowest test, after the rest of the proof. If it keeps the problem, it has
        the calibrated limit and the reference in its metadata."""
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
        generous_s = max(stated, 4 * bucket(slowest))
        decision = await self._repeated(problem, code, generous_s)
        limit = calibrated_limit(stated, slowest)
        if decision is None:
            await self._others(problem, number, limit, programs)
            decision = await self._wrong_ones(problem, generous_s, programs)
        if decision is not None:
            return decision
        await self._mutants(problem, code, 2 * bucket(slowest), programs)
        metadata = {"verified": True, "reference": number, "reference_cpu_s": bucket(slowest)}
        return Decision(metadata=metadata, time_limit_s=limit)

    async def _repeated(self, problem: Problem, code: str, limit: float) -> Decision | None:
        """Run a passing reference again, each time as a perturbed run, under a CPU limit in
        seconds. Return the decision of the first failure, which makes the problem flaky, or
        None."""
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
        """Judge the accepted solutions after the `number`th (from 1), up to `max_references`, and
        count their verdicts in `programs`. They decide nothing."""
        for code in problem.solutions[number : self.config.max_references]:
            _count(programs, RIGHT, await self._judge(problem, code, limit))

    async def _wrong_ones(
        self, problem: Problem, limit: float, programs: Programs
    ) -> Decision | None:
        """Check that solutions known to be wrong fail, the first five. Return the decision against
        the problem if one passes or has no verdict, else None. Verdicts are counted in
        `programs`."""
        known = problem.meta.get("wrong_solutions")
        wrong = [one for one in known if isinstance(one, str)] if isinstance(known, list) else []
        found = None
        for number, code in enumerate(wrong[:MOST_WRONG_SOLUTIONS]):
            verdict = await self._judge(problem, code, limit)
            if verdict.undecided:
                return _no_verdict(verdict)
            _count(programs, WRONG, verdict)
            if verdict.correct:
                said = f"wrong solution {number} passes all {verdict.total} tests"
                found = found or Decision("wrong_solution_passes", said)
        return found

    async def _mutants(self, problem: Problem, code: str, limit: float, programs: Programs) -> None:
        """Count the verdicts on mutants in `programs`. Those that pass are judged on generated
        inputs too: `passed` if they differ from the reference there, else `unknown`."""
        seed = f"{self.config.seed}/{problem.id}"
        alive: list[str] = []
        count = self.config.mutants if problem.language == "python" else 0
        for mutant in mutants(code, count, seed):
            verdict = await self._judge(problem, mutant, limit)
            if verdict.correct:
                alive.append(mutant)
            else:
                _count(programs, MUTANTS, verdict)
        limits = limits_of(problem, limit)
        nearby = await nearby_problem(problem, code, self.executor, limits, seed) if alive else None
        for mutant in alive:
            found = nearby and (await self._judge(nearby, mutant, limit)).kind
            differs = found in (VerdictKind.WRONG_ANSWER, VerdictKind.RUNTIME_ERROR)
            _count(programs, MUTANTS, PASSED if differs else UNKNOWN)


def _count(programs: Programs, kind: str, outcome: Verdict | str) -> None:
    """Count a program's verdict, or an outcome by name, in `programs`. An undecided verdict says
    nothing about the program and is left out."""
    if isinstance(outcome, Verdict):
        if outcome.undecided:
            return
        outcome = outcome.kind.value
    counts = programs.setdefault(kind, {})
    counts[outcome] = counts.get(outcome, 0) + 1


def wrong_kind(verdicts: Verdicts) -> str:
    """Return the kind of wrong programs that count for FPR: the set's own wrong solutions, else a
    trivial program that passes, else mutants."""
    return next((kind for kind in (WRONG, TRIVIAL) if kind in verdicts), MUTANTS)


def quality(problems: Iterable[Verdicts]) -> RewardQuality:
    """Return TPR, FPR and J over problems; without right or wrong programs J is None and the rate
    NaN. Mutants not known to be wrong do not count."""
    every = list(problems)
    right = _rate(one.get(RIGHT, {}) for one in every)
    return RewardQuality(right, _rate(one.get(wrong_kind(one), {}) for one in every))


def _rate(problems: Iterable[Mapping[str, int]]) -> Rate:
    """Return the pass rate over problems with counts by verdict. Mutants that pass and are not
    known to differ (`unknown`) do not count."""
    sizes = [(sum(one.values()) - one.get(UNKNOWN, 0), one) for one in problems]
    passed = sum(one.get(PASSED, 0) for _, one in sizes)
    return Rate(passed, sum(n for n, _ in sizes), sum(n > 0 for n, _ in sizes))


def _at_least(decision: Decision, min_j: float | None) -> Decision:
    """Return the decision, or a drop (`low_j`) for a kept problem whose J is below `min_j` (None:
    no bound). A problem of unknown J is kept."""
    found = quality([decision.programs])
    if not decision.keep or min_j is None or found.j is None or found.j >= min_j:
        return decision
    return Decision("low_j", str(found), programs=decision.programs)


def missing_library(message: str) -> str:
    """Return the library that a program's error calls missing, or an empty text. A name inside the
    standard library does not count: the program made it up."""
    named = _NOT_IMPORTED.match(message)
    return named[1] if named and named[1] not in sys.stdlib_module_names else ""


def _no_verdict(verdict: Verdict) -> Decision:
    """Return the decision to drop a problem after a verdict that is not about the program:
    `broken_checker`, or `sandbox_error`, which a rerun tries again."""
    broken = verdict.kind is VerdictKind.CHECKER_ERROR
    message = verdict.failure.message if verdict.failure else ""
    return Decision(BROKEN_CHECKER if broken else SANDBOX_ERROR, message)


STEP_S = 0.25
LEAST_LIMIT_S = 2.0
HEADROOM = 8.0
"""The limit as a multiple of the reference's time, unless a smaller stated limit suffices."""

LEAST_ROOM = 1.25


def bucket(cpu_s: float) -> float:
    """Return the smallest of 0.25, 0.5, 1, 2, 4, … seconds that is not below `cpu_s`, so that small
    differences of timing do not change results."""
    return float(STEP_S * 2 ** math.ceil(math.log2(max(cpu_s / STEP_S, 1))))


def calibrated_limit(stated_s: float, slowest_s: float) -> float:
    """Return the CPU limit, in seconds, of a problem whose reference needs `slowest_s` on its
    slowest test.

    The stated limit is lowered toward 8 buckets (at least 2 s) and never raised, unless it leaves
    no room: then it is 2 buckets.
    """
    needed = bucket(slowest_s)
    if stated_s < LEAST_ROOM * slowest_s:
        return 2 * needed
    return min(stated_s, max(LEAST_LIMIT_S, HEADROOM * needed))
