"""The built-in splits: fixed forever, and apart from the problems of reinforcement learning."""

import hashlib
import json
import re
from functools import cache

import pytest

from code_rl.data.builtin import SPLITS, TEST_SIZE, TRAIN_SIZE, BuiltinTrainSet, draw_problem, test_split
from code_rl.grading import CallTest
from tests.refusals import refused

TRAIN = "train"
PINNED = {
    "constants": "f7e425870ecac6c6b8b02ae484baaa81011b255fcaaf2734ad85bcbd409dd4a5",
    "compositions": "866f52bd6941f52109d33b1d996a5b94af1d6307c475c2ddcad9cc6be9951a4d",
    "primitives": "25250d0d2027e0c366a05bad7a4280378e8edfe788f76d4a372928877548b2e3",
    "train": "9285cea20d3b6cf65d5761a6df234acb2795570c67440303c9897e030f41d759",
}
"""Changing one of these changes the benchmark: earlier figures are then no longer comparable."""


@cache
def training():
    return [draw_problem(TRAIN, 0, index) for index in range(TRAIN_SIZE)]


def drawn(name):
    """The problems of a test split with their specs."""
    return [draw_problem(name, 0, int(problem.id.rpartition("/")[2])) for problem in test_split(name)]


def digest(problems):
    """A hash over everything that decides a verdict or a prompt."""
    rows = [
        [problem.id, problem.statement, problem.starter_code, problem.fn_name]
        + [
            [test.args, test.expected] if isinstance(test, CallTest) else [test.input, test.expected]
            for test in problem.tests
        ]
        for problem in problems
    ]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def held_out(const):
    """Constants that occur in the split `constants` alone."""
    return (const if isinstance(const, int) else ord(const) - ord("a")) % 7 == 3


def pairs(spec):
    """The combinations of a problem, some of which occur in the split `compositions` alone."""
    filt, mapping, reduction = (part.group for part in spec.parts)
    kind = spec.source if spec.source == "word" else "numbers"
    return {(kind, 0, filt, reduction), (kind, 1, mapping, reduction), (kind, 2, spec.source, mapping)}


def normalised(statement):
    return re.sub(r"\W+", " ", statement.lower()).strip()


@pytest.mark.parametrize("name", SPLITS)
def test_split_is_fixed_forever(name):
    assert digest(test_split(name)) == PINNED[name]


def test_first_training_problems_are_fixed():
    assert digest(BuiltinTrainSet()[:256]) == PINNED[TRAIN]


@pytest.mark.parametrize("name", SPLITS)
def test_split_has_distinct_problems_and_enough_of_them(name):
    problems = test_split(name)
    assert len(problems) == TEST_SIZE >= 200
    assert len({problem.id for problem in problems}) == TEST_SIZE
    assert len({spec.key for spec, _ in drawn(name)}) == TEST_SIZE


@pytest.mark.parametrize("name", SPLITS)
def test_no_test_problem_is_a_training_problem(name):
    statements = {normalised(problem.statement) for _, problem in training()}
    meanings = {spec.key for spec, _ in training()}
    assert not statements & {normalised(problem.statement) for problem in test_split(name)}
    assert not meanings & {spec.key for spec, _ in drawn(name)}


def test_splits_share_no_problem():
    meanings = [spec.key for name in SPLITS for spec, _ in drawn(name)]
    assert len(set(meanings)) == len(meanings)


def test_training_statements_and_solutions_have_no_held_out_constant():
    for spec, problem in training():
        assert not any(map(held_out, spec.constants))
        numbers = {int(number) for number in re.findall(r"\d+", problem.statement)} - {0}
        assert not any(map(held_out, numbers)), (spec, problem.statement)


def test_training_asks_nothing_held_out_in_other_words():
    """`> 9` is `>= 10`: a training threshold whose synonym has a held-out constant would give the constant away."""
    meanings = {spec.key[:3] for spec, _ in drawn("constants") if isinstance(spec.key[2], int)}
    assert not meanings & {spec.key[:3] for spec, _ in training()}


@pytest.mark.parametrize("name", SPLITS)
def test_each_test_problem_is_held_out_on_its_own_count_only(name):
    known_parts = {part for spec, _ in training() for part in enumerate(part.name for part in spec.parts)}
    known_pairs = {pair for spec, _ in training() for pair in pairs(spec)}
    for spec, _ in drawn(name):
        constants = [held_out(const) for const in spec.constants]
        assert (constants != [] and all(constants)) if name == "constants" else not any(constants)
        unknown = {*enumerate(part.name for part in spec.parts)} - known_parts
        assert len(unknown) == (name == "primitives")
        assert unknown or pairs(spec) <= known_pairs or name == "compositions"
        assert name != "compositions" or not pairs(spec) <= known_pairs


def test_unknown_split_is_one_clear_error():
    with refused(*SPLITS):
        test_split("hard")
