"""Stage `filter`: what can be told from the statement and the sizes alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain, islice

from code_rl.preparation.bench import INTERACTOR, Bench, Entry, Survivor
from code_rl.preparation.ledger import Decision, OnItem, drop
from code_rl.preparation.overlap.text import problem_text, task_text
from code_rl.preparation.settings import PrepareConfig

_STATEMENT = r"(?:(?:(?:problem|task|english|full|complete|original)(?:['’]s)? )+(?:statement|description|text)|statement|(?:description|text) (?:of|for) (?:the|this) (?:problem|task))\b"
_NO_STATEMENT = re.compile(
    rf"(?im)(?:^|[.!?:]\s)[\W_]{{0,4}}(?:\w+, )?(?:the |this |an? )?{_STATEMENT}(?: (?:of|for) (?:the|this) (?:problem|task))? (?:(?:is|are|was) )?(?:(?:not|no longer|un) ?available|missing)"
    r"(?: (?:for|in|at|on|to) (?:(?:the|this|your) )?(?:problem|task|moment|time|language|english))?[ \t]*(?:[.!,;]|$)"
    rf"|\bno (?:problem )?statement (?:is )?(?:available|for)\b|\A\W*(?:{_STATEMENT}|description):\s*(?:none|n/?a|null)\W*$"
    rf"|\b(?:see|refer to|open|download|read) (?:the )?(?:attached |attachment|pdf|file|link)[^.\n]{{0,30}}? (?:for|with|has|contains) (?:the |its )?{_STATEMENT}"
)
_FILES = re.compile(r"(?i)\b(?:pdf|link|attach(?:ed|ments?))\b")
_TELLS = re.compile(rf"(?i)\b(?:{_STATEMENT}|(?:see|refer to|open|download) (?:the )?(?:attach|link))")
_WORD = re.compile(r"[a-zA-Z]+|[^\W\d_]")
LEAST_WORDS, LEAST_WORDS_BESIDE = 4, 25
"""A statement with fewer words beside its links is a link; one with fewer that says where the text lies has none."""
_PICTURE = r"(?:(?:figure|picture|image|diagram|illustration|drawing)s?|fig(?=\.? ?\d)|(?:рисунк|картинк)[еи])"
_FILE = r"\.(?:png|jpe?g|gif|svg|webp|bmp|eps)"
_EMBEDDED = re.compile(
    r"!\[[^\]]*\](?:\([^)]*\)|\[[^\]]*\])|<(?:img|image|picture|object|embed|canvas)\b[^>]*>?|(?s:\[asy\].*?\[/asy\])|(?s:<svg\b.*?(?:</svg>|\Z))|\\(?:includegraphics|epsfbox|epsfig)(?:\[[^\]]*\])?(?:\{[^}]*\})?"
    r"|\[(?:\w+ )?(?:image|figure|picture)(?:\s*:[^\]]*)?\]|\((?:image|figure|picture|fig\.?)\s*\d*\)|data:image/\S*|\[img\b[^\]]*\]|\.\. (?:image|figure)::[^\n]*(?:\n[ \t]+:\w+:[^\n]*)*"
    rf"|(?:!|\[\[|\{{\{{) ?[^\s\]}}!\"']{{1,200}}{_FILE}(?=[\s\]}}|!])[\]}}|! ]*|(?m:^[ \t]*https?://\S+{_FILE}[ \t]*$)|:[ \t]*https?://\S+{_FILE}(?![\w,\"])",
    re.IGNORECASE,
)
_LINK = re.compile(rf"(?i)!?\[[^\]]*\]\([^)]*\)|<(?:a|iframe)\b[^>]*>|{_EMBEDDED.pattern}|(?:https?:|www\.)\S+")
_SEEN = r"(?:seen|shown|depicted|displayed|given|illustrated|represented|described|presented|drawn|pictured)"
_THE = r"(?:(?:the|this|these|that|those) )"
_POINTS = re.compile(
    rf"(?i)\b(?:above|below|following|attached|accompanying) {_PICTURE}\b|\bpictured (?:above|below|here|on the (?:left|right))\b|\bas pictured\b"
    rf"|\b{_PICTURE}(?:\.? ?\d+)?(?: {_SEEN})? (?:above|below|(?:on|at|to) the (?:left|right))\b(?! (?:of|the|an?|this|that|its|\w|\d+)\b)"
    rf"|(?<!to )\b(?:see|cf\.?|refer to|look at|consult|study) {_THE}?(?:\w+ )?{_PICTURE}\b|на {_PICTURE}"
)
"""A picture that the reader is told to see, or that has its place beside the text."""
_NAMES = re.compile(
    rf"(?i)\b(?:in|from|according to|consider|those of) the {_PICTURE}\b(?! of\b)|\b(?:in|on|from|of|by|to) {_PICTURE}\.? ?\d"
    rf"|\b{_SEEN} (?:in|by|on) (?:an? |{_THE})?(?:\w+ )?{_PICTURE}\b|\b{_THE}?(?:\w+ )?{_PICTURE}(?:\.? ?\d+)? shows?\b"
)
"""A picture that is spoken of as if it were known; where no words bring one in (`_DATA`), it is one that the text lacks."""
_DATA = re.compile(
    rf"(?i)\b(?<!in )(?<!on )(?<!by )(?<!see )(?:an?|one|two|each|every|any|another|his|her|their|[a-z]|\d+) (?:(?!(?:following|attached|accompanying|above|below|as|in|on|from|see|shown|the|this|and)\b)[^\s.,;:!?()]+ ){{0,4}}({_PICTURE})\b(?! (?:above|below|shown))"
    rf"|(?<![\w:] )\bthe ({_PICTURE}) (?:is|are|consists?|has|have|contains?)\b(?! (?:\w+ )?(?:{_SEEN}|above|below))|\b({_PICTURE})\["
)
_MARKUP = re.compile(r"(?i)(?<![\w./])(?:markdown|x?html|xml|latex|markup|tags?)\b")
"""What the program works on, which is no picture of the task: pictures that the text brings in, and code that it calls so."""
_SIGHT = ("fig", "picture", "image", "diagram", "illustration", "drawing", "![", "[img", "<img", "<svg", "<object", "<embed", "<canvas", "includegraphics", "epsf", "[asy]", "рисунке", "картинке", "://", ".png", ".jp", ".gif", ".svg", ".webp", ".bmp", ".eps")  # fmt: skip
_ORNAMENT = re.compile(r"\b(?:logo|icon|banner|badge|avatar|header|divider)s?\b", re.IGNORECASE)
_HEADING = re.compile(r"(?im)^[\s#*_]*(?:input|output|constraints?|subtasks?|scoring)\b[\s#*_:]*$")
_AFTER = re.compile(rf"{_HEADING.pattern}|\bformat\b")
_DRAWN = re.compile(r"(?:^(?!.*(?:[A-Za-z]{3}|\\[a-z]|[$<]))[ \t]*\S.*(?:\n|\Z)){2,}", re.MULTILINE)
"""Lines without words, two or more."""
_EXAMPLE = re.compile(
    r"(?i)\b(?:for|in) (?:example|instance)\b|\be\.g\.|\b(?:an|this|that|the|following|above|first|second|third|one) (?:possible |sample )?(?:example|sample|test ?case|instance)s?\b|\bexamples? (?:of|how)\b"
)
_TOLD = re.compile(rf"(?i)\b(?:{_PICTURE}|shown|below|above|following|illustrated|depicted|drawn|see|looks?|here)\b")
_NOTE = re.compile(r"^[\s#*_]*(?:notes?|explanations?)[\s#*_:]*$", re.IGNORECASE | re.MULTILINE)
_SENTENCE = re.compile(r"(?<=[.!?:])\s+|\n\s*\n")
_EXPLANATION = re.compile(r"\bexplanation\b.*?(?=\n\s*\n|\bexample\b|\bconstraints\b|\Z)", re.IGNORECASE | re.DOTALL)
_INTERACTIVE = re.compile(
    r"(?im)(?P<denied>(?:\b(?:not|non|no|without|unlike)|n['’]t)[\s-]+(?:(?:an?|the|any|need|have|required|necessary|to)\s+)*)?(?:"
    r"\binteractive (?:problem|task|question|version)\b|\binteractor\b|\binteraction protocol\b|\bthis (?:problem|task) is interactive\b"
    r"|\bflush (?:the |your )?(?:standard )?(?:output|stdout|buffer)\b|\b(?:fflush|cout\.flush|stdout\.flush|sys\.stdout\.flush)\b"
    r"|^[\s#*_]*interaction[\s#*_:]*$)"
)


async def run_filter(bench: Bench, survivors: Sequence[Survivor], on_item: OnItem) -> list[Decision]:
    """Static filters."""
    modules = ("filter", "overlap.text")
    with bench.deciding("filter", modules, survivors, on_item, lambda one: (one.entry.digest,)) as decisions:
        return decisions.one_by_one(lambda one: filter_entry(one.entry, bench.config))


def filter_entry(entry: Entry, config: PrepareConfig) -> Decision:
    """Drop a problem that needs a picture, or a partner to talk to that it does not bring, or that is too short, too long, too large or too little tested."""
    length = len(entry.statement) + len((entry.starter_code or "").strip())
    if not config.min_statement_chars <= length <= config.max_statement_chars:
        reason = "too_short" if length < config.min_statement_chars else "too_long"
        return drop(reason, f"statement of {length} characters")
    if is_elsewhere(problem_text(entry.statement, entry.starter_code)):
        return drop("no_statement", "the source has no text for this problem, or only a link to it")
    if entry.tests < config.min_tests:
        return drop("few_tests", f"{entry.tests} tests, {config.min_tests} wanted")
    if (size := sum(entry.sizes)) > config.max_row_mb * 1e6:
        return drop("oversized", f"{size / 1e6:.1f} MB of tests")
    if found := needs_picture(entry.statement):
        return drop("image", found)
    if entry.rule != INTERACTOR and (found := needs_partner(entry.statement)):
        return drop("interactive", found)
    return Decision(keep=True)


def is_elsewhere(text: str) -> bool:
    """True where the text is but a link, a picture or a file, or says that there is none."""
    rest, links = _LINK.subn(" ", text)
    count = sum(1 for _ in islice(_WORD.finditer(rest), LEAST_WORDS_BESIDE))
    tells = count < LEAST_WORDS or (count < LEAST_WORDS_BESIDE and _TELLS.search(rest))
    return bool(_NO_STATEMENT.search(text) or (tells and (links or _FILES.search(rest))))


def needs_partner(statement: str) -> str:
    """The words that say that the program talks to a partner; nothing where all are denied."""
    found = _INTERACTIVE.finditer(statement) if re.search(r"(?i)interact|flush", statement) else ()
    return next((_around(statement, match) for match in found if not match["denied"]), "")


def needs_picture(statement: str) -> str:
    """The words that send the reader to a picture, or the picture itself; nothing where pictures only illustrate."""
    lower = statement.lower()
    if not any(part in lower for part in _SIGHT):
        return ""
    task = task_text(statement)
    note = _NOTE.search(task)
    task = _EXPLANATION.sub(" ", task[: note.start()] if note and note.start() else task)
    data = {_noun(match) for match in _DATA.finditer(task)}
    for match in chain.from_iterable(pattern.finditer(task) for pattern in (_EMBEDDED, _POINTS, _NAMES)):
        excuses = (_illustrates, _is_markup, _decorates) if match.re is _EMBEDDED else (_illustrates, _is_drawn)
        known = match.re is _NAMES and _noun(match) in data
        if not (known or any(excuse(task, match) for excuse in excuses)):
            return _around(task, match)
    return ""


def _noun(match: re.Match[str]) -> str:
    """What a picture is called there, in the singular."""
    return str(re.findall(_PICTURE, match[0].lower())[-1]).rstrip("s")


def _is_markup(text: str, match: re.Match[str]) -> bool:
    """Whether an embedded picture is in quotes, or in a sentence that calls it code: what the program works on."""
    before = _SENTENCE.split(text[max(0, match.start() - 120) : match.start()])[-1]
    behind = _SENTENCE.split(text[match.end() : match.end() + 120])[0]
    return before.endswith(("`", "'", '"')) or _MARKUP.search(f"{before} {behind}") is not None


def _illustrates(text: str, match: re.Match[str]) -> bool:
    """Whether a mention is in a sentence about an example; an embedded picture may also stand alone, where the text never speaks of it."""
    start = match.start() if (embedded := match.re is _EMBEDDED) else match.end()
    before = [part for part in _SENTENCE.split(text[max(0, start - 600) : start]) if part.strip()]
    behind = [part for part in _SENTENCE.split(text[match.end() : match.end() + 600]) if part.strip()]
    if embedded and text[: match.start()].rpartition("\n")[2].strip():
        return False  # within a line: a formula, or what the sentence speaks of
    near = " ".join(before[-2:] if embedded else before[-1:]) + match[0] + " ".join(behind[:1])
    alone = embedded and bool(before) and before[-1].rstrip()[-1] in ".!?)"
    return (alone and not _TOLD.search(near.replace(match[0], " "))) or _EXAMPLE.search(near) is not None


def _decorates(text: str, match: re.Match[str]) -> bool:
    """Whether an embedded picture before all text is called an ornament, or nothing at all, and a whole task follows that does not speak of it."""
    called = _ORNAMENT.search(match[0]) is not None
    if not (called or match[0].startswith("![](")) or _WORD.search(_LINK.sub(" ", text[: match.start()])):
        return False
    behind = _HEADING.split(_LINK.sub(" ", text[match.end() :]), maxsplit=1)[0]
    enough = sum(1 for _ in islice(_WORD.finditer(behind), LEAST_WORDS_BESIDE)) == LEAST_WORDS_BESIDE
    return enough and (called or not _TOLD.search(behind))


def _is_drawn(text: str, match: re.Match[str]) -> bool:
    """Whether what is spoken of stands beside it, drawn with characters."""
    near = text[max(0, match.start() - 300) : match.start()] + _AFTER.split(text[match.end() : match.end() + 600])[0]
    lines = (line.strip() for found in _DRAWN.finditer(near) for line in found[0].splitlines())
    art = " ".join(line for line in lines if not (line[:1] == line[-1:] == "|" and re.search(r"\w", line)))
    return sum(sign in "/\\|+*#=~─│┌└├" for sign in art.replace("__", "=")) >= 2


def _around(text: str, match: re.Match[str]) -> str:
    start, end = max(0, match.start() - 30), match.end() + 30
    return " ".join(text[start:end].split())
