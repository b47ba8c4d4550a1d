"""Stage `strengthen`: hidden tests on new inputs, where the tests of a problem let wrong programs pass.

Agreement of solutions does not prove an input valid: they may have one idea, and answer alike where the statement promises otherwise. So no input is made where
the statement or the inputs' form tell of conditions that no change keeps; and where one new input is answered differently, or not at all, by the reference or one
of the other solutions that pass the problem's own tests, at least two of them with ideas of their own, no other new input is believed either. Which of the tests stay is
for wrong programs to say: a test stays where one fails it that passed before.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from code_rl.concurrency import default_concurrency
from code_rl.errors import SandboxError
from code_rl.judging.judge import judge
from code_rl.judging.submission import executions_of, limits_of, program_job
from code_rl.judging.verdict import VerdictKind
from code_rl.preparation.bench import Bench, Survivor, measure
from code_rl.preparation.ledger import Decision, OnItem, drop
from code_rl.preparation.overlap.deduplicate import program_shape
from code_rl.preparation.settings import PrepareConfig
from code_rl.preparation.verification.independence import independent
from code_rl.preparation.verification.inputs import conditioned, mutated, mutated_texts
from code_rl.preparation.verification.trials import accepts, answer_to, elsewhere
from code_rl.preparation.verification.verify import mutants_of, wrong_solutions
from code_rl.problems.native import test_to_json
from code_rl.problems.problem import CallTest, Problem, SequenceTest, StdinTest, TestCase
from code_rl.problems.values import ValueCodecError, loads
from code_rl.sandbox.executor import Execution, Executor, Status, closing

LEAST_OTHERS = 2
"""Solutions beside the reference, each with an idea of its own (`independence`), that must agree with it."""
MAX_SAMPLES, MAX_SAMPLE_CHARS = 48, 4_000
MAX_ANSWER_BYTES = 1 << 16
MAX_TIMEOUTS = 3
FEW, NO_INPUTS, MANY = "too few solutions", "no new inputs", "many valid answers"
CONDITIONED, DOUBTED, NOTHING = "conditions on the input", "solutions disagree", "no wrong program newly caught"
MUTANTS_FACTOR = 4
"""So many times the mutants of verify say which tests stay: most of those fail the problem's own tests, and are no evidence here."""


@dataclass(frozen=True, slots=True)
class Agreed:
    """Tests that all solutions pass; `disputed` counts inputs that not all of them answer alike, `why` says why there are no tests."""

    tests: tuple[TestCase, ...] = ()
    tried: int = 0
    disputed: int = 0
    why: str = ""


async def run_strengthen(bench: Bench, survivors: Sequence[Survivor], on_item: OnItem) -> list[Decision]:
    """One decision a survivor: a problem that a known wrong solution passes even then, or whose tests stay weak, goes."""
    modules = ("verification", "overlap.deduplicate", "code_rl.judging")
    with bench.deciding(
        "strengthen", modules, survivors, on_item, lambda s: (s.entry.digest, s.card.get("reference"), s.notes)
    ) as decisions:
        if decisions.waiting:
            places = bench.config.concurrency or default_concurrency(bench.executor())
            await decisions.at_once(lambda one: _decide(bench.load(one), one, bench.config, bench.executor()), places)
        return decisions.made


async def _decide(problem: Problem, survivor: Survivor, config: PrepareConfig, executor: Executor) -> Decision:
    first = int(survivor.card.get("reference", 1)) - 1
    solutions = [*problem.solutions[first : first + 1], *problem.solutions[:first], *problem.solutions[first + 1 :]]
    proved = solutions if survivor.card.get("verified") else []
    agreed = await agreed_tests(problem, proved, executor, f"{config.seed}/{problem.id}", config.new_inputs)
    known = wrong_solutions(problem)
    programs = [*known, *(mutants_of(solutions[0], config, problem, MUTANTS_FACTOR) if agreed.tests else [])]
    failing: dict[int, set[int]] = {}
    for number, code in enumerate(programs):
        if await _passes(problem, code, executor):
            failing[number] = await failed(problem, agreed.tests, code, executor)
    rows = [[each for number, each in failing.items() if (number < len(known)) is first] for first in (True, False)]
    kept = chosen(rows, config.new_tests)
    caught = [number for number, each in failing.items() if each & set(kept)]
    missed = [number for number in failing if number < len(known) and number not in caught]
    if missed:
        return drop("wrong_solution_passes", f"wrong solution {missed[0]} passes all {len(problem.tests)} tests and {len(kept)} new ones")  # fmt: skip
    of_known = sum(number < len(known) for number in caught)
    counted = sum(len(known) <= number < len(known) + config.mutants for number in caught)  # those of verify
    made, killed = survivor.card.get("mutants", 0), survivor.card.get("mutants_killed", 0) + counted
    if made and killed / made < config.min_strength:
        return drop("weak_tests", f"{killed} of {made} mutants of the reference are killed, {counted} of them by new tests")  # fmt: skip
    about: dict[str, Any] = {"inputs": agreed.tried, "disputed": agreed.disputed, "tests": len(kept)}
    about |= {} if kept else {"why": agreed.why or NOTHING}
    about |= {"caught": of_known, "mutants_caught": len(caught) - of_known}
    card: dict[str, Any] = {"strengthened": about}
    card |= {"mutants_killed": killed, "strength": round(killed / made, 3)} if made else {}
    if not kept:
        return Decision(keep=True, card=card)
    tests = [agreed.tests[index] for index in kept]
    kills = {str(len(problem.tests) + place): sum(index in each for each in failing.values()) for place, index in enumerate(kept)}  # fmt: skip
    notes = {"added": [test_to_json(test) for test in tests], "added_sizes": [measure(test, hashed=False)[0] for test in tests]}  # fmt: skip
    return Decision(keep=True, card=card, notes={**notes, "kills": {**survivor.notes.get("kills", {}), **kills}})


async def _passes(problem: Problem, code: str, executor: Executor) -> bool:
    """Whether a program passes the problem's own tests. Raises SandboxError where that cannot be told."""
    verdict = await judge(problem, code, executor)
    if verdict.kind is VerdictKind.SANDBOX_ERROR:
        raise SandboxError(verdict.failure.message if verdict.failure else "no verdict")
    return verdict.correct


async def agreed_tests(problem: Problem, solutions: Sequence[str], executor: Executor, seed: str, count: int) -> Agreed:
    """Tests on up to `count` new inputs with the answers of the reference, the first of `solutions`. Raises SandboxError."""
    if problem.interactor is not None or problem.compare.rule == "checker":
        return Agreed(why=MANY)
    samples = [_given(test) for test in _samples(problem) if not isinstance(test, SequenceTest)]
    if conditioned(samples, problem.statement):
        return Agreed(why=CONDITIONED)
    by_shape: dict[str, str] = {}
    for code in solutions:
        by_shape.setdefault(program_shape(code) or code, code)
    reference, *others = by_shape.values() or [""]
    if len(independent((reference, *others))) > LEAST_OTHERS:  # before any is run
        others = [code for code in others if await _passes(problem, code, executor)]
    if len(independent((reference, *others))) <= LEAST_OTHERS:
        return Agreed(why=FEW)
    sound, tried = await reference_tests(problem, reference, executor, seed, count)
    disputed: set[int] = set()
    for code in others:
        disputed |= await failed(problem, sound, code, executor, slow=True)
    if doubts := tried - len(sound) + len(disputed):
        return Agreed((), tried, doubts, DOUBTED)
    return Agreed(tuple(sound), tried, why="" if sound else NO_INPUTS)


async def reference_tests(
    problem: Problem, reference: str, executor: Executor, seed: str, count: int
) -> tuple[list[TestCase], int]:
    """Tests on new inputs that the reference answers in time and always alike, and how many inputs were tried. Raises SandboxError."""
    inputs = list(islice(new_inputs(problem, random.Random(seed), count), count))
    answers = await _answers(problem, inputs, reference, executor)
    tests = [answered(problem, test, execution) for test, execution in zip(inputs, answers, strict=False)]
    sound = [test for test in tests if test is not None]
    for again in (problem, elsewhere(problem, reference)):
        unsteady = await failed(again, sound, reference, executor, slow=True)
        sound = [test for index, test in enumerate(sound) if index not in unsteady]
    return sound, len(inputs)


def new_inputs(problem: Problem, rng: random.Random, count: int) -> Iterator[TestCase]:
    """Hidden tests with new inputs, made of those of the problem that are not long; what they expect is still that of another test."""
    short = _samples(problem)
    if not short:
        return
    given, wording = [_given(test) for test in short], f"{problem.statement}\n{problem.starter_code}"
    base: Any = replace(short[0], public=False)
    if isinstance(base, StdinTest):
        for text in mutated_texts(given, count, rng, wording):
            yield replace(base, input=text)
        return
    for sample in mutated(given, count, rng, wording, int(isinstance(base, SequenceTest))):
        if isinstance(base, SequenceTest):
            calls = tuple((name.decode(), tuple(args)) for name, args in (sample[0], *sample[1]))
            yield replace(base, calls=calls)
        else:
            kwargs = dict(zip(base.kwargs, sample[len(base.args) :], strict=True))
            yield replace(base, args=tuple(sample[: len(base.args)]), kwargs=kwargs)


def _samples(problem: Problem) -> list[TestCase]:
    """The tests of a problem, of one kind and not long, whose inputs are changed."""
    tests = [test for test in problem.tests if not (isinstance(test, CallTest) and test.raises is not None)]
    groups: dict[object, list[TestCase]] = {}
    for test in tests:
        groups.setdefault(_form(test), []).append(test)
    group = max(groups.values(), key=len, default=[])
    return [test for test in group if len(repr(_given(test))) <= MAX_SAMPLE_CHARS][:MAX_SAMPLES]


def _form(test: TestCase) -> object:
    """What two tests must share for their inputs to be of one kind."""
    if isinstance(test, CallTest):
        return test.fn_name, len(test.args), tuple(test.kwargs)
    return test.class_name if isinstance(test, SequenceTest) else None


def _given(test: TestCase) -> Any:
    """The input as one value. Names of methods are bytes: no change makes another name of one."""
    if isinstance(test, StdinTest):
        return test.input
    if isinstance(test, CallTest):
        return [*test.args, *test.kwargs.values()]
    first, *rest = [(name.encode(), args) for name, args in test.calls]
    return [first, rest]


def answered(problem: Problem, test: TestCase, execution: Execution) -> TestCase | None:
    """`test` with what a program answered as expected, or None where that is no answer to be held to."""
    raw = answer_to(test, execution)
    if raw is None or len(raw) > MAX_ANSWER_BYTES or _slow(problem, execution):
        return None
    try:
        if isinstance(test, StdinTest):
            return replace(test, expected=raw.decode()) if raw.strip() else None
        value = loads(raw)
        return replace(test, expected=tuple(value) if isinstance(test, SequenceTest) else value)
    except (UnicodeDecodeError, ValueCodecError):
        return None


async def failed(
    problem: Problem, tests: Sequence[TestCase], code: str, executor: Executor, *, slow: bool = False
) -> set[int]:
    """The tests that a program fails; with `slow` also those that it nearly has no time for. Raises SandboxError."""
    answers = await _answers(problem, tests, code, executor)
    wrong = set(range(len(answers), len(tests)))
    for index, (test, execution) in enumerate(zip(tests, answers, strict=False)):
        raw = answer_to(test, execution)
        if raw is None or not accepts(test, raw, problem.compare) or (slow and _slow(problem, execution)):
            wrong.add(index)
    return wrong


async def _answers(problem: Problem, tests: Sequence[TestCase], code: str, executor: Executor) -> list[Execution]:
    """What a program does on each test, until it does not compile or ran out of time too often."""
    if not tests:
        return []
    probe = replace(problem, tests=tuple(tests))
    answers: list[Execution] = []
    async with closing(executions_of(executor, program_job(probe, code, tests, limits_of(problem)))) as executions:
        async for execution in executions:
            answers.append(execution)
            if sum(each.status is Status.TIME_LIMIT for each in answers) == MAX_TIMEOUTS:
                break
    return answers


def _slow(problem: Problem, execution: Execution) -> bool:
    return execution.cpu_s > problem.time_limit_s / 2


def chosen(caught: Sequence[Sequence[set[int]]], most: int) -> list[int]:
    """Up to `most` tests, each of which some program of `caught` fails: those that between them catch most, row by row, then those that most fail."""
    picked: list[int] = []
    kills = Counter(index for row in caught for each in row for index in each)
    for row in caught:
        while len(picked) < most and any(left := [each for each in row if each and not each & set(picked)]):
            counts = Counter(index for each in left for index in each)
            picked.append(min(counts, key=lambda index: (-counts[index], -kills[index], index)))
    rest = sorted(kills, key=lambda index: (-kills[index], index))
    return sorted(list(dict.fromkeys([*picked, *rest]))[:most])


def strengthened(decisions: Sequence[Decision]) -> str:
    """What the stage did, in a line."""
    cards = [decision.card.get("strengthened", {}) for decision in decisions]
    got = [card["tests"] for card in cards if card.get("tests")]
    why = Counter(card["why"] for card in cards if "why" in card)
    caught, of_mutants = (sum(card.get(name, 0) for card in cards) for name in ("caught", "mutants_caught"))
    parts = [
        f"{sum(got)} tests added to {len(got)} problems, none that no program fails which passed before: {caught} known wrong solutions and {of_mutants} mutants are caught",
        *(f"{reason}: {count}" for reason, count in why.most_common()),
    ]
    return "; ".join(parts)
