"""The program inside a completion: the last fenced block that has a statement.

A fence is a line of three or more backticks or tildes. The rules, where Markdown leaves room:

- An opening fence may follow indentation, or anything that ends in `>`: a tag (`<answer>`). It may
  name a language. The body loses the indentation of its fence.
- A closing fence is at least as long, of the same character, and indented at most three columns
  more, so a fence inside an indented docstring does not close its block. Text may follow it
  (`</answer>`, "That is all.") if it is indented no more than the opening fence. A single word
  right after the marker is a language: that fence opens another block, and the one before was left
  open.
- If no closing line follows, a fence at the end of a line of code, or before a tag, closes the
  block (`print(1)` and three backticks).
- Known limits: a fence after words or a list marker does not open a block; a single word after a
  closing fence is read as a language, whatever character it ends in; quoted blocks keep their `>`.
- An unclosed block, or one of only comments and blanks, does not count; an earlier one may.
- CRLF becomes LF; blank lines around the code are dropped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_FENCE = re.compile(r"(.*>)?([ \t]*+)(`{3,}+|~{3,}+)(.*+)", re.DOTALL)
_CLOSING_SLACK = 3


@dataclass(frozen=True, slots=True)
class _Fence:
    """A line that may open or close a block. `after` is the text after the marker."""

    before: str
    indent: int
    marker: str
    after: str

    @property
    def names_a_language(self) -> bool:
        """True if a single word follows the marker directly, like the language of a new block."""
        return self.after[:1].isalnum() and len(self.after.split()) == 1


@dataclass(slots=True)
class _Block:
    fence: _Fence
    lines: list[str] = field(default_factory=list)
    soft_end: int | None = None

    def ended_by(self, fence: _Fence) -> bool:
        """True if the fence closes this block, or opens another in its place."""
        marker = self.fence.marker
        if fence.before or fence.marker[0] != marker[0]:
            return False
        if fence.names_a_language:
            return len(fence.marker) <= len(marker) and fence.indent <= self.fence.indent
        slack = 0 if fence.after.strip() else _CLOSING_SLACK
        return len(fence.marker) >= len(marker) and fence.indent <= self.fence.indent + slack

    def add(self, line: str) -> None:
        marker = self.fence.marker
        behind = line.rpartition(marker)[2].strip()[:1] if marker in line else "no fence"
        if self.soft_end is None and behind in ("", "<") and line.count(marker[0] * 3) == 1:
            self.soft_end = len(self.lines)
        self.lines.append(line)

    def code(self, *, closed: bool) -> str | None:
        """Return the block's code, or None if it has no statement or is not closed in any way."""
        lines = self.lines
        if not closed:
            if self.soft_end is None:
                return None
            lines = [
                *lines[: self.soft_end],
                lines[self.soft_end].partition(self.fence.marker[0] * 3)[0],
            ]
        if not any(map(_has_statement, lines)):
            return None
        body = [
            line[min(self.fence.indent, len(line) - len(line.lstrip(" \t"))) :] for line in lines
        ]
        filled = [number for number, line in enumerate(body) if line.strip()]
        return "\n".join(body[filled[0] : filled[-1] + 1])


def extract_code(text: str) -> str | None:
    """Return the code of the last fenced block of `text`, or None. Never raises; linear in the
    text."""
    code: str | None = None
    block: _Block | None = None
    for raw in text.split("\n"):
        line = raw.removesuffix("\r")
        if block is None:
            opening = _fence(line)
            block = _Block(opening) if opening and "`" not in opening.after else None
            continue
        fence = _fence(line)
        if fence and block.ended_by(fence):
            code = block.code(closed=not fence.names_a_language) or code
            block = _Block(fence) if fence.names_a_language else None
        else:
            block.add(line)
    return (block.code(closed=False) if block else None) or code


def _has_statement(line: str) -> bool:
    """Return True if a line has anything visible that is not a comment."""
    return next((char for char in line if char.isprintable() and not char.isspace()), "#") != "#"


def _fence(line: str) -> _Fence | None:
    """Return the fence on a line, or None. After a fence of backticks the line has no other
    backtick, or it would be inline code."""
    if "```" not in line and "~~~" not in line:
        return None
    match = _FENCE.fullmatch(line)
    if match is None or (match[3][0] == "`" and "`" in match[4] and not match[4][:1].isspace()):
        return None
    indent = match[2].removeprefix(" ") if match[1] else match[2]
    return _Fence(match[1] or "", len(indent), match[3], match[4])
