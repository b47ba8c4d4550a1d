"""The verb `audit`: from settings to a grader, a scorecard, and an exit code."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import chz

from code_rl.grading.audit import (
    AuditedGrader,
    Function,
    Ours,
    Scorecard,
    audit_grader,
    load_corpus,
    render,
)
from code_rl.grading.sandbox import connect_executor
from code_rl.util.errors import ConfigError
from code_rl.util.files import make_folder, write_atomically, writes
from code_rl.util.options import AT_LEAST_1, ExecutorOptions, check_that, option
from code_rl.util.settings import make_settings

SHARES = {"quick": 0.2, "full": 1.0}
OURS = "ours"
OF_OURS = ("executor", "isolation", "sandbox_concurrency", "outage_timeout")
OF_FUNCTIONS = ("timeout", "pays_at", "takes", "python", "confine")


@chz.chz
class AuditConfig(ExecutorOptions):
    """Check a grader with cheating programs, honest programs and mutants.

    Exit code 0: no error was found; 1: errors were found; 2: the grader cannot be called.
    """

    grader: str = chz.field(doc="ours, package.module:function or file.py:function.")
    corpus: Literal["full", "quick"] = option(
        "full", "All programs, or about a fifth of each class."
    )
    out: str | None = option(None, "Folder for audit.json and audit.html. None: the table only.")
    concurrency: int = option(4, "Programs at once.", AT_LEAST_1)
    timeout: float = option(
        120.0,
        "Functions: seconds per call.",
        check_that(lambda seconds: seconds >= 1, "at least 1"),
    )
    pays_at: float = option(
        1.0,
        "Functions: lowest score that counts as paid.",
        check_that(math.isfinite, "a finite number"),
    )
    takes: Literal["all", "stdin", "call"] = option(
        "all",
        "Functions: problems that they accept; others are skipped and counted.",
    )
    python: str | None = option(
        None, "Functions: Python interpreter to run them in (None: this one)."
    )
    confine: bool = option(
        True,
        "Functions: run without network and with a read-only file system. false: hostile "
        "programs may do whatever you may.",
    )
    executor: str = option("embedded", "ours: as judge's executor=.")

    @chz.validate
    def _belongs(self) -> None:
        """Raise ConfigError for settings of the other kind of grader: they would silently do
        nothing."""
        fields = chz.chz_fields(type(self))
        for name in OF_FUNCTIONS if self.grader == OURS else OF_OURS:
            if getattr(self, name) != fields[name]._default:
                raise ConfigError(
                    f"{name}={getattr(self, name)} does nothing with grader={self.grader}; leave "
                    "it out"
                )


def audit_command(given: Mapping[str, str]) -> int:
    """Run `code-rl audit` with its settings as text, print the findings, write `out=` if it is
    given, and return the exit code: 0, or 1 if errors were found. Raises ConfigError for a wrong
    setting, or if the grader cannot be called."""
    config = make_settings(AuditConfig, given)
    out = None if config.out is None else make_folder(Path(config.out).expanduser())
    card = _audit_grader(config)
    print()
    for finding in card.findings() or ["nothing was found"]:
        print(f"- {finding}")
    print(card.summary())
    if out is not None:
        _write(card, out)
    return 0 if card.clean else 1


def _audit_grader(config: AuditConfig) -> Scorecard:
    """Grade the corpus with the grader, which is closed at the end, and print how it is confined
    and what was skipped. Raises ConfigError if the grader cannot be called."""
    corpus = load_corpus().share(SHARES[config.corpus])
    grader = open_grader(config)
    print(f"{grader.name}: {len(corpus.entries)} programs of corpus {corpus.version}")
    if config.grader != OURS:
        where = (
            "without network, on a file system that it cannot write"
            if config.confine
            else "WITH YOUR RIGHTS"
        )
        print(f"this grader is code that will run hostile programs, {where}")
    say = functools.partial(print, flush=True)

    async def audited() -> Scorecard:
        """Grade the corpus, and close the grader in the same event loop."""
        async with contextlib.aclosing(grader):
            return await audit_grader(grader, corpus, config.concurrency, say)

    card = asyncio.run(audited())
    if card.skipped:
        print(
            f"{card.skipped} programs were not put to it: their problems have forms that it does "
            "not take"
        )
    return card


def open_grader(config: AuditConfig) -> AuditedGrader:
    """Return the grader that the settings name; the caller closes it. Raises ConfigError for a name
    without a function, and for a sandbox that cannot be used."""
    if config.grader == OURS:
        return Ours(connect_executor(**config.connection))

    if not config.grader.partition(":")[2]:
        raise ConfigError(f"grader={config.grader} is none; use ours or package.module:function")
    return Function(
        str(Path(config.grader).expanduser()),
        config.python or sys.executable,
        config.pays_at,
        config.timeout,
        config.confine,
        config.takes,
    )


def _write(card: Scorecard, out: Path) -> None:
    """Write the card as `audit.json` and as the page `audit.html` into the existing folder `out`,
    replacing earlier ones, and print their paths. Raises ConfigError if they cannot be written."""
    with writes(out):
        write_atomically(out / "audit.json", json.dumps(card.to_json(), indent=1) + "\n")
        write_atomically(out / "audit.html", render(card))
    print(f"card: {out / 'audit.html'}, {out / 'audit.json'}")
