"""The settings of `code-rl prepare`, checked before anything runs."""

from __future__ import annotations

from typing import Any, Literal

import chz

from code_rl.util.errors import ConfigError
from code_rl.util.options import (
    ABOVE_0,
    AT_LEAST_0,
    AT_LEAST_1,
    SEED,
    SHARE,
    LanguageOptions,
    check_that,
    option,
)
from code_rl.util.suggestion import suggestion

STAGES = (
    "normalise",
    "filter",
    "deduplicate",
    "decontaminate",
    "verify",
    "difficulty",
    "write",
)
"""The stages, in order: `normalise` makes problems of rows, the others decide on problems."""

NO_DATA = (
    "out",
    "stop_after",
    "executor",
    "isolation",
    "sandbox_concurrency",
    "outage_timeout",
)
"""Settings that do not affect any problem."""


PART = check_that(lambda share: 0 <= share < 1, "in [0, 1)")


def _stage(settings: Any, name: str) -> None:
    """Raise ConfigError unless the setting `name` is None or names a stage."""
    stage = getattr(settings, name)
    if stage is not None and stage not in STAGES:
        raise ConfigError(
            f"stop_after={stage!r} is no stage{suggestion(stage, STAGES)}; there are: "
            f"{', '.join(STAGES)}"
        )


@chz.chz
class PrepareConfig(LanguageOptions):
    """Check problems before anyone trains on them. Each stage drops unfit problems and says why. A
    rerun resumes."""

    dataset: str = chz.field(doc="Problems: a file, folder or hub name, as train's dataset=.")
    out: str = chz.field(
        doc="Folder for the result, the card and the state; the same folder resumes."
    )
    decontaminate: str | None = option(
        None,
        "Evaluation sets, comma-separated names or paths; overlapping problems are dropped.",
        check_that(
            lambda names: not names or names.strip(", ") != "", "names or paths of evaluation sets"
        ),
    )
    stop_after: str | None = option(None, f"Last stage to run: {', '.join(STAGES)}.", _stage)
    min_tests: int = option(2, "filter: minimum number of tests. DeepCoder uses 5.", AT_LEAST_1)
    min_statement_chars: int = option(
        20, "filter: minimum length of statement and starter code.", AT_LEAST_0
    )
    max_statement_chars: int = option(
        20000, "filter: maximum length of statement and starter code.", AT_LEAST_1
    )
    max_row_mb: float = option(100.0, "filter: maximum test data per problem, in MB.", ABOVE_0)

    similarity: float = option(
        0.8,
        "deduplicate: Jaccard similarity of two statements' 8-grams that makes one a copy.",
        SHARE,
    )
    containment: float = option(
        0.35,
        "decontaminate: share of an evaluation problem's 8-grams that makes a problem a copy.",
        SHARE,
    )

    max_references: int = option(
        3, "verify: reference solutions to try until one passes.", AT_LEAST_1
    )
    repeats: int = option(
        1,
        "verify: further runs of a passing reference; 10 more if it uses randomness or the clock.",
        AT_LEAST_0,
    )
    patient_limit_s: float = option(
        90.0,
        "verify: CPU seconds per test when references are tried again because one ran out of time.",
        ABOVE_0,
    )
    mutants: int = option(
        6,
        "verify: mutants of the reference, to measure the tests' strength. 0: none.",
        AT_LEAST_0,
    )
    min_j: float | None = option(
        None,
        "verify: minimum J of a problem's tests (docs/prepare.md). None: not filtered.",
        check_that(lambda j: -1 <= j <= 1, "from -1 to 1"),
    )
    unverified: Literal["drop", "keep"] = option(
        "drop", "verify: problems without a reference solution."
    )

    pass_rates: str | None = option(
        None,
        "difficulty: verdicts of a model's samples, from `code-rl eval` or `code-rl judge`.",
    )
    solved: Literal["drop", "keep"] = option(
        "drop", "difficulty: problems that no sample or every sample solves."
    )

    test_share: float = option(
        0.0, "write: share of problems in the split 'test', chosen by id.", PART
    )
    max_tests: int = option(
        64,
        "write: maximum tests kept per problem, as train's max_tests=. DeepCoder uses 15.",
        AT_LEAST_1,
    )
    format: Literal["jsonl", "jsonl.gz"] = option("jsonl", "write: file format of the splits.")
    seed: int = option(0, "Seed of mutants and the split.", SEED)

    @chz.validate
    def _belongs(self) -> None:
        """Raise ConfigError for settings of a stage that does not run: they would silently do
        nothing."""
        fields = chz.chz_fields(type(self))
        for name, switch in (("containment", "decontaminate"), ("solved", "pass_rates")):
            value = getattr(self, name)
            if not getattr(self, switch) and value != fields[name]._default:
                raise ConfigError(f"{name}={value} does nothing without {switch}=")

    @property
    def stages(self) -> tuple[str, ...]:
        """The names of the stages to run, in order, up to `stop_after`. Stages without their
        setting are left out."""
        last = STAGES.index(self.stop_after) if self.stop_after else len(STAGES)
        idle = {
            "decontaminate": not self.evaluation_sets,
            "difficulty": self.pass_rates is None,
        }
        return tuple(name for name in STAGES[: last + 1] if not idle.get(name))

    @property
    def evaluation_sets(self) -> tuple[str, ...]:
        """The sets to decontaminate against, in order; none without `decontaminate`."""
        return tuple(name.strip() for name in (self.decontaminate or "").split(",") if name.strip())
