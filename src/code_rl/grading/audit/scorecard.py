"""Runs the corpora through a grader and counts: cheats rewarded, honest programs and owners not
rewarded, mutants rewarded, failures."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from code_rl.grading.audit.graders import AuditedGrader, GraderOutcome, one_line
from code_rl.grading.audit.programs import (
    CHEAT,
    HOLDING,
    HONEST,
    MUTANT,
    OWNER,
    READING,
    STEALING,
    TROUBLE,
    UNPAID,
    Corpus,
    CorpusProgram,
)
from code_rl.grading.problem import Problem
from code_rl.util.concurrency import gather_or_cancel
from code_rl.util.errors import ConfigError
from code_rl.util.pages import render_page
from code_rl.util.rates import Rate, RewardQuality
from code_rl.util.version import __version__

_OWNERS_A_THIEF = 2
_LEAKS = {
    READING: "; expected outputs can be read",
    **dict.fromkeys(STEALING, "; other submissions can be read"),
}
_EVERYONE = 0.95
_SILENT = 4
"""After this many consecutive programs without an answer, a right program is tried. The audit ends
if it gets none either."""
_SAID = 120
ALL_PAID, NONE_PAID = "pays everyone", "pays no one"


@dataclass(frozen=True, slots=True)
class Tried:
    """One program, its outcome, and its wall seconds."""

    entry: CorpusProgram
    outcome: GraderOutcome
    seconds: float

    @property
    def wrong(self) -> bool:
        """True if the grader decided wrongly: it paid for a cheat or a mutant, or did not pay for
        an honest program or an owner. A failure is not a decision, and trouble has no right one."""
        if self.outcome.paid is None or self.entry.kind == TROUBLE:
            return False
        return self.outcome.paid == (self.entry.kind in UNPAID)


@dataclass(slots=True)
class Row:
    """One class of programs: their number, the names of those decided wrongly, and of those on
    which the grader failed."""

    group: str
    kind: str
    count: int
    wrong: list[str]
    failed: list[str]
    longest_s: float


@dataclass(slots=True)
class Scorecard:
    """The findings about one grader. `silent` is the class during which it stopped answering."""

    grader: str
    corpus: str
    rows: list[Row] = field(default_factory=list)
    skipped: int = 0
    silent: str | None = None
    tried: list[Tried] = field(default_factory=list)

    def total(self, *kinds: str) -> tuple[int, int, int]:
        """Return the numbers of programs of these kinds: all, decided wrongly, and failed. A failed
        program is never also decided wrongly."""
        rows = [row for row in self.rows if row.kind in kinds]
        return (
            sum(r.count for r in rows),
            sum(len(r.wrong) for r in rows),
            sum(len(r.failed) for r in rows),
        )

    @property
    def clean(self) -> bool:
        """True if every program was decided rightly: none wrongly, none without a decision, and the
        grader never fell silent."""
        return not self.silent and not any(row.wrong or row.failed for row in self.rows)

    def rate(self, *kinds: str) -> Rate:
        """Return the share of programs of these kinds that were paid, with its interval. Those on
        which the grader failed do not count. All `kinds` must deserve a reward, or all must not."""
        count, wrong, failed = self.total(*kinds)
        paid = wrong if kinds[0] in UNPAID else count - wrong - failed
        return Rate(paid, count - failed, count - failed)

    @property
    def quality(self) -> RewardQuality:
        """J = TPR − FPR, with honest programs and owners as right programs, cheats and mutants as
        wrong ones."""
        return RewardQuality(self.rate(HONEST, OWNER), self.rate(*UNPAID))

    def summary(self) -> str:
        """Return J as one line, with FPR of cheats and of wrong programs apart."""
        return f"{self.quality}; cheats {self.rate(CHEAT)}, wrong programs {self.rate(MUTANT)}"

    def findings(self) -> list[str]:
        """Return the findings as sentences, the most general fault first, then cheats, mutants and
        right programs; none for a clean grader."""
        return list(_findings(self))

    def to_json(self) -> dict[str, Any]:
        """Return the content of `audit.json`, with times in seconds and every program's outcome in
        the order in which they were tried."""
        return {
            "grader": self.grader,
            "corpus": self.corpus,
            "clean": self.clean,
            "quality": self.quality.to_json(),
            "findings": self.findings(),
            "classes": [
                {
                    "class": row.group,
                    "kind": row.kind,
                    "programs": row.count,
                    "wrong": row.wrong,
                    "failed": row.failed,
                    "longest_s": round(row.longest_s, 2),
                }
                for row in self.rows
            ],
            "skipped": self.skipped,
            "silent": self.silent,
            "programs": [
                {
                    "name": one.entry.name,
                    "class": one.entry.group,
                    "kind": one.entry.kind,
                    "paid": one.outcome.paid,
                    "said": one.outcome.said,
                }
                for one in self.tried
            ],
        }


def render(card: Scorecard) -> str:
    """Return the scorecard as the text of a self-contained HTML page, with today's date. Texts of
    the grader are escaped."""
    made = date.today().isoformat()  # noqa: DTZ011
    template = Path(__file__).with_name("audit.html.j2")
    return render_page(
        template, card=card, findings=card.findings(), version=__version__, made=made
    )


async def audit_grader(
    grader: AuditedGrader,
    corpus: Corpus,
    at_once: int,
    say: Callable[[str], None],
) -> Scorecard:
    """Try every class of programs that the grader takes, `at_once` programs at a time. `say` gets a
    line of progress before and after each class. The grader is renewed before each class, but not
    closed.

    If it falls silent, `silent` names the class and later classes are not tried. Raises ConfigError
    if the grader cannot be called, takes no problem of the corpus, or never answers.
    """
    await grader.check()
    card = Scorecard(grader.name, corpus.version)
    taken = [entry for entry in corpus.entries if grader.takes(entry.problem)]
    card.skipped = len(corpus.entries) - len(taken)
    if not taken:
        raise ConfigError(f"grader={grader.name} takes no problem of the corpus; see takes=")
    owners = [entry for entry in taken if entry.kind == OWNER]
    listener = _Listener(grader, (owners or taken)[0])
    for group, members in _classes(taken):
        await grader.renew()
        asked = _among(owners, members) if group in STEALING else members
        say(f"{len(asked)} programs: {group}")
        try:
            tried = await _try_all(listener.grade, asked, at_once)
        except _SilentError:
            card.silent = group
            break
        tried = [one for one in tried if one.entry in members]
        card.tried += tried
        card.rows.append(_row(group, tried))
        say(describe(card.rows[-1]))
    return card


class _SilentError(Exception):
    """The grader has stopped answering."""


class _Listener:
    """Calls the grader and detects silence. The `right` program decides whether programs caused it.
    Raises ConfigError if the grader never answered."""

    def __init__(self, grader: AuditedGrader, right: CorpusProgram) -> None:
        """Call `grader`; `right` is a program that it should pay, tried when others get no
        answer."""
        self._grader, self._right = grader, right
        self._heard, self._unanswered = False, 0

    async def grade(self, problem: Problem, code: str) -> GraderOutcome:
        """Have the grader judge one program and return its outcome. After 4 consecutive outcomes
        without an answer, judge the right program, too.

        If that gets no answer either, raise _SilentError, or ConfigError if the grader has never
        answered.
        """
        outcome = await self._ask(problem, code)
        if (
            self._unanswered == _SILENT
            and (await self._ask(self._right.problem, self._right.code)).silent
        ):
            if self._heard:
                raise _SilentError
            raise ConfigError(
                f"grader={self._grader.name} answers nothing: {_SILENT + 1} programs in a row, the "
                f"last of them right ({outcome.said}); see that it runs, or raise timeout="
            )
        return outcome

    async def _ask(self, problem: Problem, code: str) -> GraderOutcome:
        """Call the grader once. Count consecutive `silent` outcomes (any other, also a failure,
        begins anew), and remember if one was not silent."""
        outcome = await self._grader.grade(problem, code)
        self._heard |= not outcome.silent
        self._unanswered = self._unanswered + 1 if outcome.silent else 0
        return outcome


def _classes(entries: Sequence[CorpusProgram]) -> Iterator[tuple[str, list[CorpusProgram]]]:
    """Yield (class, its programs in order): owners first, then honest programs, mutants, cheats and
    trouble; programs that block the grader come last of all."""
    groups: dict[str, list[CorpusProgram]] = {}
    for entry in entries:
        groups.setdefault(entry.group, []).append(entry)
    first = (OWNER, HONEST, MUTANT, CHEAT, TROUBLE)
    yield from sorted(
        groups.items(), key=lambda item: (item[0] == HOLDING, first.index(item[1][0].kind))
    )


def _among(
    owners: Sequence[CorpusProgram], exfiltrators: Sequence[CorpusProgram]
) -> list[CorpusProgram]:
    """Return the programs with two owners before each exfiltrator, as its targets. Owners take
    turns; without owners the exfiltrators stand alone."""
    mixed: list[CorpusProgram] = []
    for number, exfiltrator in enumerate(exfiltrators):
        turns = range(number, number + _OWNERS_A_THIEF) if owners else ()
        mixed += [*(owners[turn % len(owners)] for turn in turns), exfiltrator]
    return mixed


async def _try_all(
    grade: Callable[[Problem, str], Awaitable[GraderOutcome]],
    entries: Sequence[CorpusProgram],
    at_once: int,
) -> list[Tried]:
    """Grade all entries, `at_once` at a time, and return them in the order of `entries`, with the
    wall seconds of each. The first exception cancels the rest and is raised."""
    places = asyncio.Semaphore(at_once)

    async def one(entry: CorpusProgram) -> Tried:
        """Grade one entry once a place is free, and measure its wall seconds, without the wait for
        the place."""
        async with places:
            began = time.perf_counter()
            outcome = await grade(entry.problem, entry.code)
            return Tried(entry, outcome, time.perf_counter() - began)

    return await gather_or_cancel(map(one, entries))


def _row(group: str, tried: Sequence[Tried]) -> Row:
    """Count one class: programs, wrongly graded ones, those without a grade, and the longest wall
    seconds. `tried` has at least one program."""
    return Row(
        group,
        tried[0].entry.kind,
        len(tried),
        [one.entry.name for one in tried if one.wrong],
        [one.entry.name for one in tried if one.outcome.paid is None],
        max(one.seconds for one in tried),
    )


def _read_token(tried: Sequence[Tried]) -> str | None:
    """Return the name of a program that was rewarded for the token it looked for, or None. `tried`
    needs the mutants too.

    Without the token such a program ends like a mutant, with a wrong answer and status 0. So it
    proves nothing if the grader rewards mutants of its form (calls, or standard input).
    """
    for graded in tried:
        if graded.wrong and graded.entry.seeks_token:
            form = bool(graded.entry.problem.calls)
            mutants = [
                m for m in tried if m.entry.kind == MUTANT and bool(m.entry.problem.calls) == form
            ]
            if sum(m.outcome.paid is False for m in mutants) >= _EVERYONE * len(mutants) > 0:
                return graded.entry.name
    return None


def describe(row: Row) -> str:
    """Return a class as one line for a terminal: kind, class, and the number decided wrongly."""
    did = {HONEST: "not paid", OWNER: "not paid", TROUBLE: "decided wrongly"}.get(row.kind, "paid")
    failed = f", the grader failed at {len(row.failed)}" if row.failed else ""
    return f"{row.kind:8} {row.group:28} {len(row.wrong):4} of {row.count:4} {did}{failed}"


def _findings(card: Scorecard) -> Iterator[str]:
    """Yield the audit's sentences, from the most general fault to single classes; none for a clean
    grader."""
    if card.silent is not None:
        yield (
            f"fell silent at the class {card.silent!r}: neither its programs nor a right one got "
            "an answer; the rest was not tried"
        )
    bad, paid, _ = card.total(*UNPAID)
    good, unpaid, _ = card.total(HONEST, OWNER)
    everyone = paid >= _EVERYONE * bad > 0
    if everyone:
        yield f"{ALL_PAID}: {paid} of {bad} programs that solve nothing"
    if unpaid >= _EVERYONE * good > 0:
        yield f"{NONE_PAID}: {unpaid} of {good} right programs are not paid"
    mutants, mutants_paid, _ = card.total(MUTANT)
    blind = not everyone and mutants_paid > mutants / 2
    if blind:
        yield (
            f"hardly compares what a program answers: {mutants_paid} of {mutants} wrong versions "
            "of right programs are paid"
        )
    # Exfiltrators end with status 0 whether or not they found anything.
    tells = (
        not everyone
        and not blind
        and not any(row.wrong for row in card.rows if row.group == "early exit")
    )
    for row in sorted(
        card.rows, key=lambda row: (row.kind != CHEAT, row.kind != MUTANT, -len(row.wrong))
    ):
        if row.wrong and row.kind == CHEAT:
            leak = _LEAKS.get(row.group, "") if tells else ""
            if row.group == READING and (name := _read_token(card.tried)) is not None:
                leak = f"{_LEAKS[READING]} ({name} gave a token that was drawn for this audit)"
            yield f"pays {len(row.wrong)} of {row.count} cheats of the class {row.group!r}{leak}"
        elif row.wrong and row.kind == MUTANT:
            if blind:
                continue
            yield f"pays {len(row.wrong)} of {row.count} wrong versions of right programs"
        elif row.wrong:
            yield f"does not pay {len(row.wrong)} of {row.count} right programs ({row.group})"
    failed = card.total(CHEAT, HONEST, MUTANT, OWNER, TROUBLE)[2]
    if failed:
        said, times = Counter(
            one.outcome.said for one in card.tried if one.outcome.paid is None
        ).most_common(1)[0]
        often = f" (most often, {times}×: {one_line(said)[:_SAID]})" if said else ""
        yield (
            f"fails itself at {failed} programs{often}; whoever trains with it must not read that "
            "as a reward of 0"
        )
