"""Stage `filter`: what can be told from the statement and the sizes alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice

from code_rl.preparation.bench import INTERACTOR, Bench, Entry, Survivor
from code_rl.preparation.ledger import Decision, OnItem, drop
from code_rl.preparation.overlap.text import problem_text, task_text
from code_rl.preparation.settings import PrepareConfig

_TEXT = r"\b(?:statement|description|problem(?:'s)? text)\b"
_NO_STATEMENT = re.compile(
    rf"{_TEXT}(?: (?:of|for) (?:this|the) (?:problem|task))? (?:is|are|was) (?:not|no longer|un) ?available\b"
    r"|\b(?:see|refer to|open|download|read) (?:the )?(?:attached |attachment|pdf|file|link)[^.\n]{0,30}? (?:for|with|has|contains) (?:the |its )*"
    r"(?:problem |task |full |original )?(?:statement|description|text)\b",
    re.IGNORECASE,
)
_ELSEWHERE = re.compile(
    rf"{_TEXT}|\S\.pdf\b|\b(?:see|refer to|open|download) (?:the )?(?:attached |attachment|link)", re.IGNORECASE
)
_WORD = re.compile(r"[a-zA-Z]+|[^\W\d_]")
LEAST_WORDS, LEAST_WORDS_BESIDE = 4, 25
"""A statement with fewer words beside its links is a link; one with fewer that says where the text lies has none."""
_PICTURE = r"(?:(?:figure|picture|image|diagram|illustration|drawing)s?|fig(?=\.? ?\d))"
_FILE = r"\.(?:png|jpe?g|gif|svg|webp|bmp|eps)"
_EMBEDDED = re.compile(
    r"!\[[^\]]*\](?:\([^)]*\)|\[[^\]]*\])|<(?:img|image|picture|object|embed|canvas)\b[^>]*>?|(?s:\[asy\].*?\[/asy\])|(?s:<svg\b.*?(?:</svg>|\Z))|\\(?:includegraphics|epsfbox|epsfig)(?:\[[^\]]*\])?(?:\{[^}]*\})?"
    r"|\[(?:\w+ )?(?:image|figure|picture)(?:\s*:[^\]]*)?\]|\((?:image|figure|picture|fig\.?)\s*\d*\)|data:image/|\[img\b[^\]]*\]|\.\. (?:image|figure)::[^\n]*(?:\n[ \t]+:\w+:[^\n]*)*"
    rf"|(?:!|\[\[|\{{\{{) ?[^\s\]}}!\"']{{1,200}}{_FILE}(?=[\s\]}}|!])[\]}}|! ]*|(?m:^[ \t]*https?://\S+{_FILE}[ \t]*$)|:[ \t]*https?://\S+{_FILE}(?![\w,\"])",
    re.IGNORECASE,
)
_LINK = re.compile(
    rf"!?\[[^\]]*\]\([^)]*\)|<(?:img|image|a|object|embed|iframe)\b[^>]*>|{_EMBEDDED.pattern}|(?:https?://|www\.|data:image/)\S+",
    re.IGNORECASE,
)
_SENDS = re.compile(
    rf"\b(?:see|refer to|look at|consult|consider|study) (?:the |an? |this |attached |following )*(?:\w+ )?{_PICTURE}\b",
    re.IGNORECASE,
)
_SHOWN = re.compile(
    rf"\b(?:shown|depicted|displayed|given|illustrated|represented|described|drawn) (?:in|by|on) (?:the |an? |this |these )*(?:\w+ )?{_PICTURE}\b"
    rf"|\b(?:as|like) in (?:the |this )?{_PICTURE}\b|\baccording to the {_PICTURE}\b|\bas pictured\b"
    rf"|\bin (?:the (?:figure|picture|diagram|drawing)\b|fig(?:ure)?\.? ?\d)|\b{_PICTURE} on the (?:left|right)\b|на (?:рисунке|картинке)",
    re.IGNORECASE,
)
_POINTS = re.compile(
    rf"\b{_PICTURE}(?: (?:above|below)\b(?! (?:the|an?|this|that|its|\w|\d+)\b)|(?:\.? ?\d+)?(?: below| above)? shows?\b)|\b(?:above|below|following|attached|accompanying) {_PICTURE}\b",
    re.IGNORECASE,
)
_SIGHT = ("fig", "picture", "image", "diagram", "illustration", "drawing", "![", "[img", "<img", "<svg", "<object", "<embed", "<canvas", "includegraphics", "epsf", "[asy]", "рисунке", "картинке", "://", ".png", ".jp", ".gif", ".svg", ".webp", ".bmp", ".eps")  # fmt: skip
_DATA = (
    r"\b(?:given|represent\w*|consists? of) (?:an?|the|one|two) (?:(?!following|attached|accompanying|above|below)\w+ ){0,2}(image|picture)s?\b(?! (?:above|below))"
    r"|\ban? (image|picture) (?:is|as|of|consists|has|with)\b"
)
"""What the program works on, which is no picture of the task."""
_ORNAMENT = re.compile(r"\b(?:logo|icon|banner|badge|avatar|header|divider)s?\b", re.IGNORECASE)
_HEADING = re.compile(
    r"^[\s#*_]*(?:input|output|constraints?|subtasks?|scoring)\b[\s#*_:]*$", re.MULTILINE | re.IGNORECASE
)
_AFTER = re.compile(rf"{_HEADING.pattern}|\bformat\b", re.MULTILINE | re.IGNORECASE)
_DRAWN = re.compile(r"(?:^(?!.*(?:[A-Za-z]{3}|\\[a-z]|[$<]))[ \t]*\S.*(?:\n|\Z)){2,}", re.MULTILINE)
"""Lines without words, two or more."""
_TALK = ("interact", "flush")
_EXAMPLE = re.compile(
    r"\b(?:for|in) (?:example|instance)\b|\be\.g\.|\b(?:an|this|that|the|following|above|first|second|third|one) (?:possible |sample )?(?:example|sample|test ?case|instance)s?\b|\bexamples? (?:of|how)\b",
    re.IGNORECASE,
)
_MENTION = re.compile(
    rf"\b(?:{_PICTURE}|shown|below|above|following|illustrated|depicted|drawn|see|looks?|here)\b", re.IGNORECASE
)
_NOTE = re.compile(r"^[\s#*_]*(?:notes?|explanations?)[\s#*_:]*$", re.IGNORECASE | re.MULTILINE)
_SENTENCE = re.compile(r"(?<=[.!?:])\s+|\n\s*\n")
_EXPLANATION = re.compile(r"\bexplanation\b.*?(?=\n\s*\n|\bexample\b|\bconstraints\b|\Z)", re.IGNORECASE | re.DOTALL)
_INTERACTIVE = re.compile(
    r"\binteractive (?:problem|task|question|version)\b|\binteractor\b|\binteraction protocol\b|\bthis (?:problem|task) is interactive\b"
    r"|\bflush (?:the |your )?(?:standard )?(?:output|stdout|buffer)\b|\b(?:fflush|cout\.flush|stdout\.flush|sys\.stdout\.flush)\b"
    r"|^[\s#*_]*interaction[\s#*_:]*$",
    re.IGNORECASE | re.MULTILINE,
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
    interactive = _INTERACTIVE.search(entry.statement) if _mentions(entry.statement, _TALK) else None
    if interactive and entry.rule != INTERACTOR:
        return drop("interactive", _around(entry.statement, interactive))
    return Decision(keep=True)


def is_elsewhere(text: str) -> bool:
    """True where the text is but a link, a picture or a file, or says that there is none."""
    if _NO_STATEMENT.search(text):
        return True
    rest, links = _LINK.subn(" ", text)
    count = sum(1 for _ in islice(_WORD.finditer(rest), LEAST_WORDS_BESIDE))
    return (links > 0 and count < LEAST_WORDS) or (count < LEAST_WORDS_BESIDE and _ELSEWHERE.search(rest) is not None)


def needs_picture(statement: str) -> str:
    """The words that send the reader to a picture, or the picture itself; nothing where pictures only illustrate."""
    if not _mentions(statement, _SIGHT):
        return ""
    task = task_text(statement)
    note = _NOTE.search(task)
    task = _EXPLANATION.sub(" ", task[: note.start()] if note and note.start() else task)
    data = {noun.lower().rstrip("s") for nouns in re.findall(_DATA, task, re.IGNORECASE) for noun in nouns if noun}
    for match in _EMBEDDED.finditer(task):
        if not _illustrates(task, match, embedded=True) and not _decorates(task, match):
            return _around(task, match)
    for pattern in (_SENDS, _SHOWN, _POINTS):
        for match in pattern.finditer(task):
            about_data = pattern is _POINTS and any(re.fullmatch(rf"{noun}s? shows?", match[0], re.I) for noun in data)
            if not about_data and not _illustrates(task, match, embedded=False) and not _is_drawn(task, match):
                return _around(task, match)
    return ""


def _illustrates(text: str, match: re.Match[str], *, embedded: bool) -> bool:
    """Whether a mention is in a sentence about an example; an embedded picture may also stand alone, where the text never speaks of it."""
    before = [part for part in _SENTENCE.split(text[max(0, match.start() - 600) : match.start()]) if part.strip()]
    behind = [part for part in _SENTENCE.split(text[match.end() : match.end() + 600]) if part.strip()]
    if embedded and text[: match.start()].rpartition("\n")[2].strip():
        return False  # within a line: a formula, or what the sentence speaks of
    near = " ".join(before[-2:] if embedded else before[-1:]) + match[0] + " ".join(behind[:1])
    alone = embedded and bool(before) and before[-1].rstrip()[-1] in ".!?)"
    return (alone and not _MENTION.search(near.replace(match[0], " "))) or _EXAMPLE.search(near) is not None


def _decorates(text: str, match: re.Match[str]) -> bool:
    """Whether an embedded picture before all text is called an ornament, or nothing at all, and a whole task follows that does not speak of it."""
    called = _ORNAMENT.search(match[0]) is not None
    if not (called or match[0].startswith("![](")) or _WORD.search(_LINK.sub(" ", text[: match.start()])):
        return False
    behind = _HEADING.split(_LINK.sub(" ", text[match.end() :]), maxsplit=1)[0]
    enough = sum(1 for _ in islice(_WORD.finditer(behind), LEAST_WORDS_BESIDE)) == LEAST_WORDS_BESIDE
    return enough and (called or not _MENTION.search(behind))


def _is_drawn(text: str, match: re.Match[str]) -> bool:
    """Whether what is spoken of stands beside it, drawn with characters."""
    near = text[max(0, match.start() - 300) : match.start()] + _AFTER.split(text[match.end() : match.end() + 600])[0]
    lines = (line.strip() for found in _DRAWN.finditer(near) for line in found[0].splitlines())
    art = " ".join(line for line in lines if not (line[:1] == line[-1:] == "|" and re.search(r"\w", line)))
    return sum(sign in "/\\|+*#=~─│┌└├" for sign in art.replace("__", "=")) >= 2


def _mentions(statement: str, parts: tuple[str, ...]) -> bool:
    """A quick look before the patterns: nearly every statement ends here."""
    lower = statement.lower()
    return any(part in lower for part in parts)


def _around(text: str, match: re.Match[str]) -> str:
    start, end = max(0, match.start() - 30), match.end() + 30
    return " ".join(text[start:end].split())
