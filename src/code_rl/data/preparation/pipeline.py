"""Runs the stages in order. Each gets the candidates that the previous one kept; the card is
written after each."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from code_rl.data.dataset import Dataset, read_prepared
from code_rl.data.preparation.card import write_card
from code_rl.data.preparation.decisions import (
    MISSING_LIBRARY,
    SANDBOX_ERROR,
    Decision,
    OnItem,
)
from code_rl.data.preparation.decontaminate import run_decontaminate
from code_rl.data.preparation.deduplicate import run_deduplicate
from code_rl.data.preparation.difficulty import read_pass_rates, run_difficulty, verdicts_file
from code_rl.data.preparation.evaluation_sets import evaluation_problems
from code_rl.data.preparation.filter import run_filter
from code_rl.data.preparation.normalise import normalise, open_source, store_key
from code_rl.data.preparation.report import Dropped, PrepareView, Report, StageReport
from code_rl.data.preparation.settings import PrepareConfig
from code_rl.data.preparation.verification.verify import run_verify
from code_rl.data.preparation.workspace import Candidate, Workspace, check_folder
from code_rl.data.preparation.write import check_replaced, run_write
from code_rl.util.errors import ConfigError, install_command
from code_rl.util.progress import progress

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


def check(config: PrepareConfig) -> Dataset:
    """Refuse unusable settings before anything runs: unknown data, evaluation sets, models,
    folders. Return the opened data set."""
    if "deduplicate" in config.stages and importlib.util.find_spec("rensa") is None:
        raise ConfigError(
            f"the stage deduplicate needs rensa: {install_command('data')}, or stop_after=filter"
        )
    check_folder(config)
    if "difficulty" in config.stages:
        read_pass_rates(verdicts_file(str(config.pass_rates)))
    if "decontaminate" in config.stages:
        for name in config.evaluation_sets:
            evaluation_problems(name)
    source = open_source(config.dataset)
    check_replaced(config, source)
    return source


async def prepare(config: PrepareConfig, source: Dataset, view: PrepareView) -> int:
    """Run `code-rl prepare` on `source`, which `check` opened, and return the exit code."""
    with Workspace(config, source, store_key(source, config.language)) as workspace:
        return await run_stages(workspace, view)


async def run_stages(workspace: Workspace, view: PrepareView) -> int:
    """Run the configured stages. Return 0 if every problem was decided, 1 if a failure of this
    machine left some undecided.

    Raises DataError for unreadable data, and SandboxError if the sandbox fails altogether.
    """
    from code_rl.grading.sandbox import check_executor

    report, line = Report(), ""
    candidates: list[Candidate] = []
    try:
        # An executor that does not answer is refused before time is spent.
        language = workspace.config.language
        if language is not None or "verify" in workspace.config.stages:
            await check_executor(workspace.executor(), language)
        for name in workspace.config.stages:
            started = time.perf_counter()
            stage = (
                _normalise(workspace, view)
                if name == "normalise"
                else _run(workspace, view, report, name, candidates)
            )
            done, candidates = await stage
            report.stages.append(replace(done, seconds=time.perf_counter() - started))
            line = write_card(report, candidates, workspace)
            view.stage_done(report.stages[-1])
    finally:
        await workspace.aclose()
    view.say(line)
    written = None
    if "write" in workspace.config.stages:
        splits = (read_prepared(workspace.out) or {"splits": {}})["splits"]
        written = {name: split["problems"] for name, split in splits.items()}
    view.farewell(workspace.out, written)
    share = workspace.config.test_share
    if 0 < share < 1 and written is not None and len(written) == 1:
        view.say(
            f"test_share={share:g} put every problem into {', '.join(written)}: a problem's id "
            "decides its split; prepare more problems, or give another seed="
        )
    return _exit_code(report, view)


async def _normalise(
    workspace: Workspace, view: PrepareView
) -> tuple[StageReport, list[Candidate]]:
    view.say(f"reading {workspace.config.dataset} (solutions that give expected values run once)")
    with progress(view.console, "normalise", None) as on_row:
        candidates = await normalise(workspace, on_row)
    dropped = [
        Dropped(one.row_id, "normalise", one.reason, one.detail) for one in workspace.store.skipped
    ]
    return StageReport("normalise", workspace.store.rows, len(workspace.store), dropped), candidates


async def _run(
    workspace: Workspace,
    view: PrepareView,
    report: Report,
    name: str,
    candidates: Sequence[Candidate],
) -> tuple[StageReport, list[Candidate]]:
    with progress(view.console, name, len(candidates)) as on_item:
        decisions = await RUNNERS[name](workspace, candidates, on_item)
    kept: list[Candidate] = []
    dropped = []
    for candidate, decision in zip(candidates, decisions, strict=True):
        if decision.programs:
            report.programs[candidate.entry.id] = decision.programs
        if decision.keep:
            kept.append(_after(candidate, name, decision))
        else:
            dropped.append(
                Dropped(
                    candidate.entry.id, name, decision.reason, decision.detail, decision.overlap
                )
            )
    return StageReport(name, len(candidates), len(kept), dropped), kept


def _after(candidate: Candidate, stage: str, decision: Decision) -> Candidate:
    """Return the candidate with the stage's metadata and time limit."""
    passed = [*candidate.metadata.get("passed", ("normalise",)), stage]
    metadata = {**candidate.metadata, **decision.metadata, "passed": passed}
    return Candidate(candidate.entry, metadata, decision.time_limit_s or candidate.time_limit_s)


def _exit_code(report: Report, view: PrepareView) -> int:
    reasons = {reason: count for stage in report.stages for reason, count in stage.reasons.items()}
    if reasons.get(MISSING_LIBRARY):
        view.say(
            f"{reasons[MISSING_LIBRARY]} problems were left out because the sandbox lacks a "
            "library that their reference imports (named in dropped.jsonl); install it beside "
            f"this package ({install_command('solutions')}) and run again"
        )
    if reasons.get(SANDBOX_ERROR):
        view.say(
            f"{reasons[SANDBOX_ERROR]} problems got no verdict (sandbox_error); run again to try "
            "them once more"
        )
        return 1
    if not report.stages[-1].came_out:
        view.say("nothing is left: every row was dropped; dropped.jsonl has each reason")
    return 0
