"""Think blocks in a model's text."""

from __future__ import annotations

import re

THINK, UNTHINK = "<think>", "</think>"
_BLOCK_BEGINS = re.compile(rf"\s*+{THINK}")


def split_thinking(text: str, opened: bool = False) -> tuple[list[str], str]:
    """Return the think blocks with which a text begins, each up to its first end tag and without
    tags, and the rest. Whitespace is kept. Linear in the text.

    `opened`: the prompt opened the first block. Without an end tag the rest is empty.
    """
    thoughts, at = list[str](), 0
    begin = _BLOCK_BEGINS.match(text)
    while begin is not None or (opened and not thoughts):
        at = begin.end() if begin else at
        end = text.find(UNTHINK, at)
        thoughts.append(text[at : end if end >= 0 else None])
        at = end + len(UNTHINK) if end >= 0 else len(text)
        begin = _BLOCK_BEGINS.match(text, at)
    return thoughts, text[at:]
