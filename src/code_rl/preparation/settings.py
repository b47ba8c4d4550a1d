"""The settings of `code-rl prepare`, checked before anything runs."""

from __future__ import annotations

import math
from typing import Any, Literal

import chz

from code_rl.errors import ConfigError
from code_rl.sandbox.connect import EXECUTOR_DOC
from code_rl.settings import suggestion
from code_rl.shards import SHARD_DOC, check_sharding

STAGES = ("normalise", "filter", "deduplicate", "decontaminate", "verify", "strengthen", "cap", "difficulty", "write")

NEEDS = {
    "model_name": ("samples", "temperature", "backend", "max_tokens", "solved"),
    "decontaminate": ("containment",),
    "strengthen": ("new_inputs", "new_tests"),
}
"""Settings that do nothing without another."""
NO_DATA = ("out", "stop_after", "dry_run", "shard", "merge", "executor", "isolation", "concurrency")
"""Settings on which no problem depends."""


def _setting(default: Any, doc: str) -> Any:
    return chz.field(default=default, doc=doc)


@chz.chz
class PrepareConfig:
    """Prove problems before anyone trains on them: stages that each drop what is unfit and say why. A rerun resumes."""

    dataset: str = chz.field(doc="Problems: a file or folder, 'builtin', or a name on the hub; as train's dataset=.")
    out: str = chz.field(
        doc="Folder for the result, the report and the work in progress. The same folder again resumes."
    )
    decontaminate: str | None = _setting(
        None, "Evaluation sets, comma-separated names or paths; problems that overlap with one are dropped."
    )
    stop_after: str | None = _setting(None, f"Last stage to run: {', '.join(STAGES)}.")
    dry_run: bool = _setting(False, "Check settings and inputs, say what would run, and stop.")
    shard: str | None = _setting(
        None,
        f"{SHARD_DOC} Shards divide what the stages up to decontaminate keep: run those first, with stop_after=decontaminate.",
    )
    merge: bool = _setting(False, "Take over what all shards under out= decided, and write the result.")

    min_tests: int = _setting(2, "filter: fewer tests than this drop a problem. DeepCoder uses 5.")
    min_statement_chars: int = _setting(20, "filter: shorter statements (with starter code) are dropped.")
    max_statement_chars: int = _setting(20000, "filter: longer statements (with starter code) are dropped.")
    max_row_mb: float = _setting(100.0, "filter: problems with more test data than this are dropped, in MB.")

    similarity: float = _setting(
        0.8, "deduplicate: exact Jaccard similarity of statements from which they may be duplicates."
    )
    containment: float = _setting(
        0.5, "decontaminate: share of 13-grams found in an evaluation problem from which a problem is dropped."
    )

    executor: str = _setting(
        "auto",
        EXECUTOR_DOC,
    )
    isolation: Literal["auto", "full", "landlock", "none"] = _setting(
        "auto", "Isolation level of the embedded sandbox; auto takes the strongest that this machine allows."
    )
    concurrency: int | None = _setting(None, "Problems in flight at once (None: 16, or twice what the executor takes).")
    max_references: int = _setting(3, "verify: reference solutions to try until one passes.")
    repeats: int = _setting(
        1,
        "verify: further runs of a passing reference, to find flaky ones. One that uses randomness or the clock runs 10 times more.",
    )
    patient_limit_s: float = _setting(
        90.0,
        "verify: CPU seconds a test when references of which one ran out of time, and none passed, are tried again at the end.",
    )
    mutants: int = _setting(6, "verify: mutants of the reference, to measure how strong the tests are. 0: none.")
    min_strength: float = _setting(0.0, "verify: problems whose tests kill a smaller share of mutants are dropped.")
    unverified: Literal["drop", "keep"] = _setting(
        "drop", "verify: what to do with problems that have no reference solution."
    )
    checkers: Literal["stated", "keep", "drop"] = _setting(
        "stated",
        "verify: problems with many valid answers, which only a checker can judge. stated: keep those whose data brings the checker,\n"
        "drop those where a reader had to supply one; keep: keep both; drop: drop both.",
    )

    strengthen: bool = _setting(
        False,
        "strengthen: add hidden tests, made of the problem's own inputs, where a reference and at least two other solutions give one answer.",
    )
    new_inputs: int = _setting(64, "strengthen: inputs to try for a problem.")
    new_tests: int = _setting(
        8, "strengthen: tests to add to a problem at most; those that wrong programs fail come first."
    )

    max_test_mb: float = _setting(4.0, "cap: test data a problem may keep, in MB.")
    max_test_cpu_s: float = _setting(30.0, "cap: CPU seconds that the reference may need for all kept tests.")
    max_tests: int = _setting(64, "cap: tests a problem may keep. DeepCoder uses 15.")

    model_name: str | None = _setting(
        None, "difficulty: model whose pass rate is measured ('tiny', a folder, a hub id). None: stage skipped."
    )
    backend: str = _setting("auto", "difficulty: where the model lives, as train's backend=.")
    samples: int = _setting(8, "difficulty: completions per problem.")
    max_tokens: int = _setting(4096, "difficulty: tokens per completion at most.")
    temperature: float = _setting(1.0, "difficulty: sampling temperature.")
    solved: Literal["drop", "keep"] = _setting(
        "drop", "difficulty: what to do with problems that no sample or every sample solves."
    )

    test_share: float = _setting(0.0, "write: share of problems that go to the split 'test', by their ids.")
    format: Literal["jsonl", "jsonl.gz", "parquet"] = _setting("jsonl", "write: file format of the splits.")
    seed: int = _setting(0, "Seed of mutants, sampling and the split.")

    @chz.validate
    def _ranges(self) -> None:
        for name in (
            "min_tests",
            "max_references",
            "max_tests",
            "new_inputs",
            "new_tests",
            "samples",
            "max_tokens",
            "max_statement_chars",
        ):
            _require(self, name, getattr(self, name) >= 1, "at least 1")
        for name in ("min_statement_chars", "repeats", "mutants"):
            _require(self, name, getattr(self, name) >= 0, "0 or above")
        for name in ("max_row_mb", "patient_limit_s", "max_test_mb", "max_test_cpu_s"):
            _require(
                self, name, math.isfinite(getattr(self, name)) and getattr(self, name) > 0, "a finite number above 0"
            )
        for name in ("similarity", "containment"):
            _require(self, name, 0 < getattr(self, name) <= 1, "in (0, 1]")
        for name in ("min_strength", "test_share"):
            _require(self, name, 0 <= getattr(self, name) < 1, "in [0, 1)")
        _require(self, "temperature", math.isfinite(self.temperature) and self.temperature >= 0, "0 or above")
        _require(self, "concurrency", self.concurrency is None or self.concurrency >= 1, "at least 1")
        _require(self, "seed", 0 <= self.seed < 2**31, "in [0, 2**31)")

    @chz.validate
    def _stage(self) -> None:
        if self.stop_after is not None and self.stop_after not in STAGES:
            raise ConfigError(
                f"stop_after={self.stop_after!r} is no stage{suggestion(self.stop_after, STAGES)}; there are: {', '.join(STAGES)}"
            )

    @chz.validate
    def _belongs(self) -> None:
        """A setting of a stage that does not run would silently do nothing."""
        fields = chz.chz_fields(type(self))
        for needed, names in NEEDS.items():
            for name in () if getattr(self, needed) else names:
                if getattr(self, name) != fields[name]._default:
                    raise ConfigError(f"{name}={getattr(self, name)} does nothing without {needed}=")

    @chz.validate
    def _shards(self) -> None:
        check_sharding(self.shard, self.merge)
        if self.stop_after is not None and (self.shard or self.merge):
            raise ConfigError(
                f"stop_after={self.stop_after} and {'shard' if self.shard else 'merge'}= exclude each other: a shard ends before the stage write"
            )

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages to run, in order."""
        if self.shard is not None:
            return STAGES[:-1]
        return STAGES[: STAGES.index(self.stop_after) + 1] if self.stop_after else STAGES

    @property
    def evaluation_sets(self) -> tuple[str, ...]:
        """The sets to decontaminate against."""
        return tuple(name.strip() for name in (self.decontaminate or "").split(",") if name.strip())


def _require(config: Any, name: str, condition: bool, wanted: str) -> None:
    if not condition:
        raise ConfigError(f"{name}={getattr(config, name)} must be {wanted}")


def skip_note(stage: str, config: PrepareConfig) -> str:
    """Why a stage has nothing to do under these settings, or nothing."""
    if stage == "decontaminate" and not config.evaluation_sets:
        return "no evaluation set named (decontaminate=)"
    if stage == "strengthen" and not config.strengthen:
        return "not asked for (strengthen=true)"
    if stage == "difficulty" and config.model_name is None:
        return "no model named (model_name=)"
    return ""
