"""The settings of `code-rl prepare`, checked before anything runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

import chz

from code_rl.util.errors import ConfigError
from code_rl.util.options import (
    ABOVE_0,
    AT_LEAST_0,
    AT_LEAST_1,
    SEED,
    ExecutorOptions,
    check_that,
    option,
)
from code_rl.util.suggestion import suggestion


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage: its runner (imported when used), the settings that it reads, and the setting without
    which it is skipped, with the reason."""

    runner: str
    settings: tuple[str, ...] = ()
    switch: str = ""
    skipped: str = ""


STAGES = {
    "filter": Stage(
        "code_rl.data.preparation.filter:run_filter",
        ("min_tests", "min_statement_chars", "max_statement_chars", "max_row_mb"),
    ),
    "deduplicate": Stage(
        "code_rl.data.preparation.deduplicate:run_deduplicate", ("similarity", "numbers")
    ),
    "decontaminate": Stage(
        "code_rl.data.preparation.decontaminate:run_decontaminate",
        ("containment", "numbers"),
        "decontaminate",
        "no evaluation set named (decontaminate=)",
    ),
    "verify": Stage(
        "code_rl.data.preparation.verification.verify:run_verify",
        (
            "mutants",
            "min_strength",
            "seed",
            "max_references",
            "repeats",
            "patient_limit_s",
            "unverified",
            "checkers",
        ),
    ),
    "cap": Stage(
        "code_rl.data.preparation.cap:run_cap",
        ("max_test_mb", "max_test_cpu_s", "max_tests", "min_tests"),
    ),
    "difficulty": Stage(
        "code_rl.data.preparation.difficulty:run_difficulty",
        ("pass_rates", "solved"),
        "pass_rates",
        "no verdicts named (pass_rates=)",
    ),
    "write": Stage("code_rl.data.preparation.write:run_write"),
}
"""The stages, in order; each has a line here and a runner (`pipeline.Runner`)."""


def stage_names() -> tuple[str, ...]:
    """Return all stages: `normalise`, which makes problems of rows, then the stages that decide on
    problems."""
    return ("normalise", *STAGES)


NO_DATA = (
    "out",
    "stop_after",
    "dry_run",
    "executor",
    "isolation",
    "sandbox_concurrency",
    "outage_timeout",
)
"""Settings that do not affect any problem."""


SHARE = check_that(lambda share: 0 < share <= 1, "in (0, 1]")
PART = check_that(lambda share: 0 <= share < 1, "in [0, 1)")


def _stage(settings: Any, name: str) -> None:
    stage = getattr(settings, name)
    if stage is not None and stage not in (names := stage_names()):
        raise ConfigError(
            f"stop_after={stage!r} is no stage{suggestion(stage, names)}; there are: "
            f"{', '.join(names)}"
        )


@chz.chz
class PrepareConfig(ExecutorOptions):
    """Check problems before anyone trains on them. Each stage drops unfit problems and says why. A
    rerun resumes."""

    dataset: str = chz.field(doc="Problems: a file, folder or hub name, as train's dataset=.")
    out: str = chz.field(
        doc="Folder for the result, the report and the state; the same folder resumes."
    )
    decontaminate: str | None = option(
        None,
        "Evaluation sets, comma-separated names or paths; overlapping problems are dropped.",
        check_that(
            lambda names: not names or names.strip(", ") != "", "names or paths of evaluation sets"
        ),
    )
    stop_after: str | None = option(None, f"Last stage to run: {', '.join(stage_names())}.", _stage)
    dry_run: bool = option(False, "Check settings and inputs, print the plan, and stop.")
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
    numbers: Literal["count", "ignore"] = option(
        "count",
        "deduplicate, decontaminate: whether different numbers make different problems.",
    )

    max_references: int = option(
        3, "verify: reference solutions to try until one passes.", AT_LEAST_1
    )
    repeats: int = option(
        1,
        "verify: further runs of a passing reference, to find flaky ones; 10 more if it uses "
        "randomness or the clock.",
        AT_LEAST_0,
    )
    patient_limit_s: float = option(
        90.0,
        "verify: CPU seconds per test when references that ran out of time are retried at the end.",
        ABOVE_0,
    )
    mutants: int = option(
        6,
        "verify: mutants of the reference, to measure the tests' strength. 0: none.",
        AT_LEAST_0,
    )
    min_strength: float = option(
        0.0, "verify: minimum share of mutants that the tests must kill.", PART
    )
    min_j: float | None = option(
        None,
        "verify: minimum J (share of right programs that pass, minus that of wrong ones) of a "
        "problem's tests. None: not filtered.",
        check_that(lambda j: -1 <= j <= 1, "from -1 to 1"),
    )
    unverified: Literal["drop", "keep"] = option(
        "drop", "verify: problems without a reference solution."
    )
    checkers: Literal["stated", "keep", "drop"] = option(
        "stated",
        "verify: problems that need a checker. stated: keep those whose data includes it; keep: "
        "also those with a checker of ours; drop: none.",
    )

    max_test_mb: float = option(4.0, "cap: maximum test data kept per problem, in MB.", ABOVE_0)
    max_test_cpu_s: float = option(
        30.0, "cap: maximum CPU seconds of the reference on all kept tests.", ABOVE_0
    )
    max_tests: int = option(
        64, "cap: maximum tests kept per problem. DeepCoder uses 15.", AT_LEAST_1
    )

    pass_rates: str | None = option(
        None,
        "difficulty: verdicts of a model's samples, out= of `code-rl eval` or `code-rl judge`. "
        "None: skipped.",
    )
    solved: Literal["drop", "keep"] = option(
        "drop", "difficulty: problems that no sample or every sample solves."
    )

    test_share: float = option(
        0.0, "write: share of problems in the split 'test', chosen by id.", PART
    )
    format: Literal["jsonl", "jsonl.gz", "parquet"] = option(
        "jsonl", "write: file format of the splits."
    )
    seed: int = option(0, "Seed of mutants and the split.", SEED)

    @chz.validate
    def _belongs(self) -> None:
        """Refuse settings of a stage that does not run: they would silently do nothing."""
        fields = chz.chz_fields(type(self))
        users = Counter(name for stage in STAGES.values() for name in stage.settings)
        for stage_name, stage in STAGES.items():
            for name in stage.settings if skip_note(stage_name, self) else ():
                value = getattr(self, name)
                if users[name] == 1 and value != fields[name]._default:
                    raise ConfigError(f"{name}={value} does nothing without {stage.switch}=")

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages to run, in order."""
        names = stage_names()
        return names[: names.index(self.stop_after) + 1] if self.stop_after else names

    @property
    def evaluation_sets(self) -> tuple[str, ...]:
        """The sets to decontaminate against."""
        return tuple(name.strip() for name in (self.decontaminate or "").split(",") if name.strip())


def skip_note(name: str, config: PrepareConfig) -> str:
    """Return why a stage has nothing to do under these settings, or an empty text."""
    stage = STAGES.get(name)
    return stage.skipped if stage and stage.switch and not getattr(config, stage.switch) else ""
