"""The stages one after the other: each gets what the one before kept; the report is written after every one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import chz

from code_rl.concurrency import IN_FLIGHT_PER_PLACE, default_concurrency
from code_rl.errors import SandboxError
from code_rl.preparation.bench import KEEP, Bench, ByteBudget, Decision, Ledger, OnItem, Survivor, content_key, drop
from code_rl.preparation.cap import cap_entry, cap_settings
from code_rl.preparation.decontaminate import (
    Decontaminator,
    decide,
    decontaminate_settings,
    exams_fingerprint,
    read_exams,
)
from code_rl.preparation.deduplicate import Deduplicator, chained_keys, deduplicate_settings
from code_rl.preparation.difficulty import run_difficulty
from code_rl.preparation.filter import filter_entry, filter_settings
from code_rl.preparation.normalise import normalise
from code_rl.preparation.report import PrepareView, Report, StageReport, dropped_rows, dropped_survivor
from code_rl.preparation.settings import skip_note
from code_rl.preparation.verify import MISSING_LIBRARY, SANDBOX_ERROR, UNSETTLED, Verifier, verify_settings
from code_rl.preparation.write import run_write
from code_rl.problems.files import sources_digest


async def run_stages(bench: Bench, view: PrepareView) -> int:
    """Run the configured stages; 0 when every problem got a decision about itself, else 1.

    Raises DataError for unreadable data and SandboxError when the sandbox fails altogether.
    """
    report = Report(bench.config.dataset, chz.asdict(bench.config), bench.source.provenance)
    try:
        if "verify" in bench.config.stages:
            await bench.check_executor()
        survivors = await _normalise(bench, view, report)
        for name in bench.config.stages[1:]:
            survivors = await _run_stage(bench, view, report, name, survivors)
    finally:
        await bench.aclose()
    report.finished = True
    report.save(bench.out)
    view.funnel(report.stages)
    view.farewell(bench.out, "write" in bench.config.stages)
    return _exit_code(report, view)


async def _normalise(bench: Bench, view: PrepareView, report: Report) -> list[Survivor]:
    started = time.perf_counter()
    with view.progress("normalise", None) as on_row:
        await normalise(bench.source, bench.store, bench.executor, on_row)
    found = bench.store.found
    seconds = time.perf_counter() - started
    _note(
        bench,
        view,
        report,
        StageReport("normalise", found.rows, len(found.entries), dropped_rows(found.skipped), seconds),
    )
    return [Survivor(entry) for entry in found.entries]


async def _run_stage(
    bench: Bench, view: PrepareView, report: Report, name: str, survivors: Sequence[Survivor]
) -> list[Survivor]:
    started = time.perf_counter()
    with view.progress(name, len(survivors)) as on_item:
        decisions = await RUNNERS[name](bench, survivors, on_item)
    kept: list[Survivor] = []
    dropped = []
    for survivor, decision in zip(survivors, decisions, strict=True):
        if decision.keep:
            kept.append(_after(survivor, name, decision, bench))
        else:
            dropped.append(dropped_survivor(survivor, decision))
            if "pair" in decision.notes:
                report.pairs.append(dict(decision.notes["pair"]))
    seconds = time.perf_counter() - started
    note = skip_note(name, bench.config)
    _note(
        bench,
        view,
        report,
        StageReport(name, len(survivors), len(kept), tuple(dropped), seconds, note and f"skipped: {note}"),
    )
    return kept


def _after(survivor: Survivor, stage: str, decision: Decision, bench: Bench) -> Survivor:
    """The survivor with what the stage adds to its card and notes."""
    passed = [*survivor.card.get("passed", ("normalise",))]
    if not skip_note(stage, bench.config):
        passed.append(stage)
    card = {**survivor.card, **decision.card, "passed": passed} if stage != "write" else survivor.card
    return Survivor(survivor.entry, card, {**survivor.notes, **decision.notes})


def _note(bench: Bench, view: PrepareView, report: Report, stage: StageReport) -> None:
    report.stages.append(stage)
    report.save(bench.out)
    view.stage_done(stage)


def _exit_code(report: Report, view: PrepareView) -> int:
    reasons = {reason: count for stage in report.stages for reason, count in stage.reasons.items()}
    if reasons.get(MISSING_LIBRARY):
        view.say(
            f"{reasons[MISSING_LIBRARY]} problems were left out because the sandbox lacks a library that their reference imports "
            "(named in dropped.jsonl); install it beside code-rl (pip install 'code-rl[solutions]') and run again"
        )
    if reasons.get(SANDBOX_ERROR):
        view.say(f"{reasons[SANDBOX_ERROR]} problems got no verdict (sandbox_error); run again to try them once more")
        return 1
    return 0


Survivors = Sequence[Survivor]
DECIDED_BY = {
    "filter": ("filter", "text"),
    "deduplicate": ("deduplicate", "text"),
    "decontaminate": ("decontaminate", "deduplicate", "text"),
    "verify": ("verify", "trials", "diagnosis", "mutation"),
    "cap": ("cap",),
}
"""The modules whose source decides in a stage, so that its decisions are made anew once they have changed."""
Stage = Callable[[Bench, Survivors, OnItem], Awaitable[list[Decision]]]


async def run_filter(bench: Bench, survivors: Survivors, on_item: OnItem) -> list[Decision]:
    """Static filters."""
    settings = _decided_by("filter", filter_settings(bench.config))
    keys = [content_key("filter", settings, survivor.entry.digest) for survivor in survivors]
    return _item_by_item(
        bench, "filter", survivors, keys, lambda survivor: filter_entry(survivor.entry, bench.config), on_item
    )


async def run_deduplicate(bench: Bench, survivors: Survivors, on_item: OnItem) -> list[Decision]:
    """Duplicates of earlier problems go."""
    keys = list(
        chained_keys(
            [survivor.entry for survivor in survivors], _decided_by("deduplicate", deduplicate_settings(bench.config))
        )
    )
    found = Deduplicator(bench.config.similarity, bench.store.load)
    decisions = []
    with bench.ledger("deduplicate", keys) as ledger:
        known = [ledger.get(key) for key in keys]
        if all(known):
            return [decision for decision in known if decision is not None]
        for survivor, key, earlier in zip(survivors, keys, known, strict=True):
            decision = earlier or found.decide(survivor.entry)
            if earlier is None:
                ledger.put(key, decision)
            elif earlier.keep:
                found.keep(survivor.entry)
            decisions.append(decision)
            on_item()
    return decisions


async def run_decontaminate(bench: Bench, survivors: Survivors, on_item: OnItem) -> list[Decision]:
    """Problems that overlap with the named evaluation sets go."""
    sets = bench.config.evaluation_sets
    if not sets:
        return [KEEP] * len(survivors)
    everything = content_key([survivor.entry.digest for survivor in survivors])
    fingerprints = [exams_fingerprint(name) for name in sets]
    base = content_key(
        "decontaminate",
        _decided_by("decontaminate", decontaminate_settings(bench.config)),
        sets,
        fingerprints,
        everything,
    )
    keys = [content_key(base, survivor.entry.digest) for survivor in survivors]
    with bench.ledger("decontaminate", keys) as ledger:
        if all(ledger.get(key) for key in keys):
            return [ledger.get(key) or KEEP for key in keys]
    exams = [exam for name in sets for exam in read_exams(name)]
    found = Decontaminator(exams, [survivor.entry for survivor in survivors], bench.config.containment)
    return _item_by_item(
        bench, "decontaminate", survivors, keys, lambda survivor: decide(found.find(survivor.entry)), on_item
    )


async def run_cap(bench: Bench, survivors: Survivors, on_item: OnItem) -> list[Decision]:
    """Tests within the budgets."""
    settings = _decided_by("cap", cap_settings(bench.config))
    keys = [content_key("cap", settings, survivor.entry.digest, survivor.notes) for survivor in survivors]
    return _item_by_item(
        bench, "cap", survivors, keys, lambda survivor: cap_entry(survivor.entry, survivor.notes, bench.config), on_item
    )


def _decided_by(stage: str, settings: tuple[object, ...]) -> tuple[object, ...]:
    """What the decisions of a stage depend on beside the problem: settings, and what the code says."""
    own = (f"code_rl.preparation.{name}" for name in DECIDED_BY[stage])
    return (sources_digest(*own, *(("code_rl.reward",) if stage == "verify" else ())), *settings)


def _item_by_item(
    bench: Bench,
    stage: str,
    survivors: Survivors,
    keys: list[str],
    decide_one: Callable[[Survivor], Decision],
    on_item: OnItem,
) -> list[Decision]:
    decisions = []
    with bench.ledger(stage, keys) as ledger:
        for survivor, key in zip(survivors, keys, strict=True):
            decision = ledger.get(key)
            if decision is None:
                decision = decide_one(survivor)
                ledger.put(key, decision)
            decisions.append(decision)
            on_item()
    return decisions


async def run_verify(bench: Bench, survivors: Survivors, on_item: OnItem) -> list[Decision]:
    """Proof in the sandbox, many problems in flight; those whose references all ran out of time come last, few at once."""
    settings = _decided_by("verify", verify_settings(bench.config))
    keys = [content_key("verify", settings, s.entry.digest, s.entry.stated_checker) for s in survivors]
    with bench.ledger("verify", keys) as ledger:
        run = _Verification(bench, survivors, keys, ledger, on_item)
        return await run.all()


class _Verification:
    """One pass of `verify` over the survivors."""

    def __init__(self, bench: Bench, survivors: Survivors, keys: list[str], ledger: Ledger, on_item: OnItem) -> None:
        self._bench, self._survivors, self._keys, self._ledger, self._on_item = bench, survivors, keys, ledger, on_item
        self._decisions: dict[int, Decision] = {}
        self._late: list[int] = []
        self._budget = ByteBudget()

    async def all(self) -> list[Decision]:
        """One decision a survivor, in their order."""
        waiting: list[int] = []
        for index, key in enumerate(self._keys):
            known = self._ledger.get(key)
            if known is None:
                waiting.append(index)
            else:
                self._decided(index, known)
        if waiting:
            verifier = Verifier(self._bench.config, self._bench.executor())
            places = self._bench.config.concurrency or default_concurrency(self._bench.executor())
            await self._all_of(verifier, waiting, places)
            await self._all_of(verifier, sorted(self._late), max(1, places // IN_FLIGHT_PER_PLACE), patient=True)
        return [self._decisions[index] for index in range(len(self._survivors))]

    async def _all_of(self, verifier: Verifier, indices: Sequence[int], places: int, *, patient: bool = False) -> None:
        queue = iter(indices)

        async def work() -> None:
            for index in queue:
                async with self._budget.take(self._survivors[index].entry.length):
                    await self._one(verifier, index, patient=patient)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(places, len(indices))):
                group.create_task(work())

    async def _one(self, verifier: Verifier, index: int, *, patient: bool = False) -> None:
        entry = self._survivors[index].entry
        try:
            decision = await verifier.verify(entry, self._bench.store.load(entry), patient=patient)
        except SandboxError as error:
            decision = drop(SANDBOX_ERROR, str(error))
        if decision is None:
            self._late.append(index)
            return
        if decision.reason not in UNSETTLED:
            self._ledger.put(self._keys[index], decision)
        self._decided(index, decision)

    def _decided(self, index: int, decision: Decision) -> None:
        self._decisions[index] = decision
        self._on_item()


RUNNERS: dict[str, Stage] = {
    "filter": run_filter,
    "deduplicate": run_deduplicate,
    "decontaminate": run_decontaminate,
    "verify": run_verify,
    "cap": run_cap,
    "difficulty": run_difficulty,
    "write": run_write,
}
