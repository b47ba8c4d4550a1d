"""The stages one after the other: each gets what the one before kept; the report is written after
every one."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pkgutil import resolve_name

import chz

from code_rl.data.dataset import Dataset
from code_rl.data.preparation.bench import Bench, Survivor
from code_rl.data.preparation.ledger import KEEP, MISSING_LIBRARY, SANDBOX_ERROR, Decision, OnItem
from code_rl.data.preparation.normalise import normalise, store_key
from code_rl.data.preparation.report import EXCERPT, Dropped, PrepareView, Report, StageReport
from code_rl.data.preparation.settings import STAGES, PrepareConfig, skip_note
from code_rl.util.errors import install_command

Runner = Callable[[Bench, Sequence[Survivor], OnItem], Awaitable[list[Decision]]]
"""A stage at work: from the survivors so far to one decision for each, resumed from its ledger
(`Bench.verifying`)."""


async def prepare(config: PrepareConfig, source: Dataset, view: PrepareView) -> int:
    """Run `code-rl prepare` on `source`, which `plan.check` opened; returns the exit code."""
    with Bench(config, source, store_key(source)) as bench:
        return await run_stages(bench, view)


async def run_stages(bench: Bench, view: PrepareView) -> int:
    """Run the configured stages; 0 when every problem got a decision about itself, else 1.

    Raises DataError for unreadable data and SandboxError when the sandbox fails altogether.
    """
    from code_rl.grading.sandbox import check_executor

    report = Report(bench.config.dataset, chz.asdict(bench.config), bench.dataset.provenance())
    survivors: list[Survivor] = []
    try:
        if (
            "verify" in bench.config.stages
        ):  # an executor that does not answer is refused before time is spent
            await check_executor(bench.executor())
        for name in bench.config.stages:
            started = time.perf_counter()
            stage = (
                _normalise(bench, view)
                if name == "normalise"
                else _run(bench, view, report, name, survivors)
            )
            done, survivors = await stage
            report.stages.append(replace(done, seconds=time.perf_counter() - started))
            report.save(bench.out)
            view.stage_done(report.stages[-1])
    finally:
        await bench.aclose()
    report.finished = True
    report.save(bench.out)
    view.farewell(bench.out, len(survivors) if "write" in bench.config.stages else None)
    return _exit_code(report, view)


async def _normalise(bench: Bench, view: PrepareView) -> tuple[StageReport, list[Survivor]]:
    with view.progress("normalise", None) as on_row:
        survivors = await normalise(bench, on_row)
    dropped = [Dropped(one.row_id, one.reason, one.detail) for one in bench.store.skipped]
    return StageReport("normalise", bench.store.rows, len(bench.store), dropped), survivors


async def _run(
    bench: Bench, view: PrepareView, report: Report, name: str, survivors: Sequence[Survivor]
) -> tuple[StageReport, list[Survivor]]:
    skipped = skip_note(name, bench.config)
    runner: Runner = resolve_name(STAGES[name].runner)
    with view.progress(name, len(survivors)) as on_item:
        decisions = [KEEP] * len(survivors) if skipped else await runner(bench, survivors, on_item)
    kept: list[Survivor] = []
    dropped = []
    for survivor, decision in zip(survivors, decisions, strict=True):
        if decision.keep:
            kept.append(_after(survivor, name, decision, bench))
        else:
            text = " ".join(survivor.entry.statement.split())
            shown = text if len(text) <= EXCERPT else text[: EXCERPT - 1] + "…"
            dropped.append(Dropped(survivor.entry.id, decision.reason, decision.detail, shown))
            if "pair" in decision.notes:
                report.pairs.append(dict(decision.notes["pair"]))
    note = f"skipped: {skipped}" if skipped else ""
    return StageReport(name, len(survivors), len(kept), dropped, note=note), kept


def _after(survivor: Survivor, stage: str, decision: Decision, bench: Bench) -> Survivor:
    """The survivor with what the stage adds to its card and notes."""
    passed = [
        *survivor.card.get("passed", ("normalise",)),
        *[stage] * (not skip_note(stage, bench.config)),
    ]
    card = (
        {**survivor.card, **decision.card, "passed": passed} if stage != "write" else survivor.card
    )
    return Survivor(survivor.entry, card, {**survivor.notes, **decision.notes})


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
    return 0
