"""Runs the stages in order. Each gets the candidates that the previous one kept; the card is
written after each."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from code_rl.data.dataset import Dataset, read_prepared
from code_rl.data.preparation.copies import evaluation_problems, run_decontaminate, run_deduplicate
from code_rl.data.preparation.filter import read_pass_rates, run_difficulty, run_filter
from code_rl.data.preparation.normalise import normalise, open_source, store_key
from code_rl.data.preparation.report import CARD, DROPPED, Dropped, Report, write_card
from code_rl.data.preparation.settings import PrepareConfig
from code_rl.data.preparation.verify import MISSING_LIBRARY, SANDBOX_ERROR, run_verify
from code_rl.data.preparation.workspace import WORK, Candidate, Decision, OnItem, Workspace
from code_rl.data.preparation.write import check_replaced, run_write
from code_rl.grading.sandbox import check_executor
from code_rl.util.errors import ConfigError, install_command, require
from code_rl.util.files import check_out
from code_rl.util.outage import noted
from code_rl.util.progress import View, progress

Runner = Callable[[Workspace, Sequence[Candidate], OnItem], Awaitable[list[Decision]]]
"""A stage's function: from the remaining candidates to one decision each. Stored decisions are
reused."""
RUNNERS: dict[str, Runner] = {
    "filter": run_filter,
    "deduplicate": run_deduplicate,
    "decontaminate": run_decontaminate,
    "verify": run_verify,
    "difficulty": run_difficulty,
    "write": run_write,
}
"""The function of each stage after `normalise`."""


def prepare(config: PrepareConfig) -> int:
    """Run `code-rl prepare` and return its exit code: 0 if every problem was decided, 1 if a
    failure of this machine left some undecided. An interrupted run in the same `out` is continued.

    Raises ConfigError and DataError for unusable settings and data, SandboxError if the sandbox
    fails altogether, and OutageError if it stays unreachable.
    """
    source = _check(config)
    with Workspace(config, source, store_key(source, config.language)) as workspace:
        kept = f"what was decided is kept in {workspace.out}; the same command goes on"
        with noted(lambda: kept):
            return asyncio.run(_run_stages(workspace, View()))


def _check(config: PrepareConfig) -> Dataset:
    """Raise ConfigError or DataError for unusable settings before anything runs or is written:
    unknown data, evaluation sets, pass rates, folders. Return the opened data set."""
    if "deduplicate" in config.stages:
        require("data", "the stage deduplicate", "rensa")
    out = Path(config.out).expanduser()
    check_out(out, _is_prepare, "earlier prepare")
    parent = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not os.access(parent, os.W_OK):
        raise ConfigError(
            f"out={out} cannot be written: {parent} is read-only; choose another folder"
        )
    if "difficulty" in config.stages:
        read_pass_rates(config)
    if "decontaminate" in config.stages:
        for name in config.evaluation_sets:
            evaluation_problems(name)
    source = open_source(config.dataset)
    check_replaced(config, source)
    return source


def _is_prepare(out: Path) -> bool:
    """Return True if a folder has the work or the splits of an earlier prepare."""
    return (out / WORK / "lock").is_file() or read_prepared(out) is not None


async def _run_stages(workspace: Workspace, view: View) -> int:
    """Run the stages in order and write the card after each; return the exit code. The executor is
    stopped at the end, also after an error."""
    config, report, summary = workspace.config, Report(), ""
    candidates: list[Candidate] = []
    try:
        # An executor that does not answer is refused before time is spent.
        if config.language is not None or "verify" in config.stages:
            await check_executor(workspace.executor(), config.language)
        for name in config.stages:
            started = time.perf_counter()
            if name == "normalise":
                view.say(f"reading {config.dataset} (solutions that give expected values run once)")
                with progress(view.console, name, None) as on_row:
                    candidates = await normalise(workspace, on_row)
                went_in, skipped = workspace.store.rows, workspace.store.skipped
                dropped = [Dropped(one.row_id, name, one.reason, one.detail) for one in skipped]
            else:
                went_in = len(candidates)
                with progress(view.console, name, went_in) as on_item:
                    decisions = await RUNNERS[name](workspace, candidates, on_item)
                candidates, dropped = _sorted_out(report, name, candidates, decisions)
            seconds = time.perf_counter() - started
            view.say(report.add(name, went_in, len(candidates), dropped, seconds))
            summary = write_card(report, candidates, workspace)
    finally:
        await workspace.aclose()
    view.say(summary)
    view.say(f"card: {workspace.out / CARD}; every dropped row: {workspace.out / DROPPED}")
    manifest = read_prepared(workspace.out) if "write" in config.stages else None
    splits = manifest["splits"] if manifest else {}
    if splits:
        counts = ", ".join(f"{split['problems']} in {name}" for name, split in splits.items())
        view.say(f"read it back with dataset={workspace.out}: {counts}")
    return _exit_code(report, view)


def _sorted_out(
    report: Report, stage: str, candidates: Sequence[Candidate], decisions: Sequence[Decision]
) -> tuple[list[Candidate], list[Dropped]]:
    """Return the candidates that a stage kept, in order, with its metadata and time limits, and the
    dropped ones. The verdicts on their programs are added to `report`. There is one decision for
    each candidate."""
    kept: list[Candidate] = []
    dropped: list[Dropped] = []
    for candidate, made in zip(candidates, decisions, strict=True):
        name = candidate.entry.id
        if made.programs:
            report.programs[name] = made.programs
        if made.keep:
            passed = [*candidate.metadata.get("passed", ("normalise",)), stage]
            metadata = {**candidate.metadata, **made.metadata, "passed": passed}
            limit = made.time_limit_s or candidate.time_limit_s
            kept.append(Candidate(candidate.entry, metadata, limit))
        else:
            dropped.append(Dropped(name, stage, made.reason, made.detail, made.overlap))
    return kept, dropped


def _exit_code(report: Report, view: View) -> int:
    """Print what the user must do next, and return 1 if problems lack a verdict, else 0."""
    reasons = [one.reason for one in report.dropped]
    if missing := reasons.count(MISSING_LIBRARY):
        view.say(
            f"{missing} problems were left out because the sandbox lacks a library that their "
            f"reference imports (named in {DROPPED}); install it beside this package "
            f"({install_command('solutions')}) and run again"
        )
    if failed := reasons.count(SANDBOX_ERROR):
        view.say(f"{failed} problems got no verdict ({SANDBOX_ERROR}); run again to try them again")
        return 1
    if not report.stages[-1]["out"]:
        view.say(f"nothing is left: every row was dropped; {DROPPED} has each reason")
    return 0
