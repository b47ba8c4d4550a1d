"""The built-in problems: small generated pipelines over numbers and words, with three kinds of
held-out tests.

`constants` holds out parameter values, `compositions` holds out combinations of parts, and
`primitives` holds out parts that reinforcement learning never sees (the shipped model met them,
rarely, in pretraining). Every problem is a pure function of (split, seed, index); nothing is
stored. Other packages import from here.
"""

from __future__ import annotations

import random
from functools import cache
from itertools import count

from code_rl.data.builtin import specs
from code_rl.data.builtin.cases import DegenerateError, build_tests
from code_rl.data.builtin.specs import SPLITS, TRAIN, Spec
from code_rl.data.order import Indexed
from code_rl.grading import Problem
from code_rl.util.errors import ConfigError

__all__ = [
    "SPLITS",
    "TEST_SIZE",
    "TRAIN_SIZE",
    "BuiltinTrainSet",
    "draw_problem",
    "test_split",
]

TRAIN_SIZE = 4096
TEST_SIZE = 256
TEST_SEED = 0
SOURCE = "builtin"


def draw_problem(split: str, seed: int, index: int) -> tuple[Spec, Problem]:
    """Return the problem at `index` of the endless stream (`split`, `seed`), with its spec: always
    the same for these three. `split` is train, or one of SPLITS. Raises ConfigError for any
    other."""
    if split != TRAIN and split not in SPLITS:
        raise ConfigError(f"split={split!r} is not one of {', '.join((TRAIN, *SPLITS))}")
    rng = random.Random(f"{SOURCE}/{split}/{seed}/{index}")
    while True:
        spec = specs.draw_spec(rng, split)
        try:
            tests = build_tests(spec, rng)
        except DegenerateError:
            continue
        return spec, Problem(
            id=f"{SOURCE}/{split}/{seed}/{index}",
            statement=specs.statement(spec, rng),
            tests=tests,
            starter_code=specs.starter_code(spec),
            fn_name=specs.FN_NAME if spec.source == specs.FUNCTION else None,
            time_limit_s=2.0,
            memory_limit_mb=256,
            solutions=(specs.solution(spec),),
            source=SOURCE,
            meta={"split": split, "key": "|".join(map(str, spec.key))},
        )


class BuiltinTrainSet(Indexed[Problem]):
    """A finite training set whose problems are made on access, each in well under a millisecond."""

    def __init__(self, size: int = TRAIN_SIZE, seed: int = 0) -> None:
        """Make no problem yet. `size` is the number of problems."""
        self._size = size
        self._seed = seed

    def __len__(self) -> int:
        return self._size

    def at(self, position: int) -> Problem:
        """Return the problem at a position, made each time."""
        return draw_problem(TRAIN, self._seed, position)[1]

    @property
    def fingerprint(self) -> str:
        """The arguments as text, which decide every problem: resumed runs compare it instead of
        reading all problems."""
        return f"{SOURCE}/{TRAIN}/{self._seed}/{self._size}"


@cache
def test_split(name: str) -> tuple[Problem, ...]:
    """Return the fixed test split `name`, one of SPLITS: TEST_SIZE problems with different
    meanings, made once per process. Raises ConfigError for another name."""
    chosen: dict[object, Problem] = {}
    for index in count():
        spec, problem = draw_problem(name, TEST_SEED, index)
        chosen.setdefault(spec.key, problem)
        if len(chosen) == TEST_SIZE:
            break
    return tuple(chosen.values())


test_split.__test__ = False  # type: ignore[attr-defined]
