"""Stage `filter`: what can be told from the statement and the sizes alone."""

from __future__ import annotations

import re

from code_rl.preparation.entries import Entry
from code_rl.preparation.ledger import Decision, drop
from code_rl.preparation.settings import PrepareConfig
from code_rl.preparation.text import task_text

_NO_STATEMENT = re.compile(r"\bdescription is not available\b", re.IGNORECASE)
_PICTURE = r"(?:figure|picture|image|diagram|illustration)s?"
_EMBEDDED = re.compile(
    r"!\[[^\]]*\]\([^)]*\)|<img\b|<image\b|\\includegraphics|\[(?:image|figure|picture)(?:\s*:[^\]]*)?\]|data:image/",
    re.IGNORECASE,
)
_SENDS = re.compile(
    rf"\b(?:see|refer to|look at|consult|consider|study) (?:the |an? |this |attached |following )*(?:\w+ )?{_PICTURE}\b",
    re.IGNORECASE,
)
_SHOWN = re.compile(
    rf"\b(?:shown|depicted|displayed|given|illustrated|represented|described|drawn) (?:in|by|on) (?:the |an? |this |these )*(?:\w+ )?{_PICTURE}\b"
    rf"|\b(?:as|like) in (?:the |this )?{_PICTURE}\b|\baccording to the {_PICTURE}\b",
    re.IGNORECASE,
)
_POINTS = re.compile(
    rf"\b{_PICTURE} (?:above|below|shows?\b)|\b(?:above|below|following|attached|accompanying) {_PICTURE}\b",
    re.IGNORECASE,
)
_SIGHT = ("figure", "picture", "image", "diagram", "illustration", "![", "<img", "includegraphics")
_TALK = ("interact", "flush")
_EXPLANATION = re.compile(r"\bexplanation\b.*?(?=\n\s*\n|\bexample\b|\bconstraints\b|\Z)", re.IGNORECASE | re.DOTALL)
_INTERACTIVE = re.compile(
    r"\binteractive (?:problem|task|question|version)\b|\binteractor\b|\binteraction protocol\b|\bthis (?:problem|task) is interactive\b"
    r"|\bflush (?:the |your )?(?:standard )?(?:output|stdout|buffer)\b|\b(?:fflush|cout\.flush|stdout\.flush|sys\.stdout\.flush)\b"
    r"|^[\s#*_]*interaction[\s#*_:]*$",
    re.IGNORECASE | re.MULTILINE,
)


def filter_settings(config: PrepareConfig) -> tuple[object, ...]:
    """The settings that decide here."""
    return (config.min_tests, config.min_statement_chars, config.max_statement_chars, config.max_row_mb)


def filter_entry(entry: Entry, config: PrepareConfig) -> Decision:
    """Drop a problem that needs a picture or a partner to talk to, or that is too short, too long, too large or too little tested."""
    length = len(entry.statement) + len((entry.starter_code or "").strip())
    if length < config.min_statement_chars:
        return drop("too_short", f"statement of {length} characters")
    if length > config.max_statement_chars:
        return drop("too_long", f"statement of {length} characters")
    if _NO_STATEMENT.search(entry.statement):
        return drop("no_statement", "the source has no text for this problem")
    if entry.tests < config.min_tests:
        return drop("few_tests", f"{entry.tests} tests, {config.min_tests} wanted")
    size = sum(entry.sizes)
    if size > config.max_row_mb * 1e6:
        return drop("oversized", f"{size / 1e6:.1f} MB of tests")
    found = needs_picture(entry.statement)
    if found:
        return drop("image", found)
    interactive = _INTERACTIVE.search(entry.statement) if _mentions(entry.statement, _TALK) else None
    if interactive:
        return drop("interactive", _around(entry.statement, interactive))
    return Decision(keep=True)


def needs_picture(statement: str) -> str:
    """The words that send the reader to a picture, or nothing. Pictures that only explain an example do not count."""
    if not _mentions(statement, _SIGHT):
        return ""
    embedded = _EMBEDDED.search(statement)
    if embedded:
        return _around(statement, embedded)
    sent = _SENDS.search(_EXPLANATION.sub(" ", statement))
    if sent:
        return _around(sent.string, sent)
    task = task_text(statement)
    shown = _SHOWN.search(task) or _POINTS.search(task)
    return _around(task, shown) if shown else ""


def _mentions(statement: str, parts: tuple[str, ...]) -> bool:
    """A quick look before the patterns: nearly every statement ends here."""
    lower = statement.lower()
    return any(part in lower for part in parts)


def _around(text: str, match: re.Match[str]) -> str:
    start, end = max(0, match.start() - 30), match.end() + 30
    return " ".join(text[start:end].split())
