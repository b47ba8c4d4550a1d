"""The program inside a completion: the last fenced block.

A block opens with a line of three or more backticks or tildes, after any indentation, with an optional language tag, and closes with
a line of at least as many of the same character, indented at most three columns more than the opening one: a fence inside an
indented docstring does not close its block. What was decided where Markdown leaves room:

- a block that is never closed (a completion cut short) is no block; an earlier closed one counts;
- inside a block, a tagged fence no longer than the block's own and indented no further opens a new block: models leave fences
  open, and wrap whole answers in ` ```markdown `;
- where no closing line follows, a closing fence at the end of a line of code closes the block (`print(1)` and three backticks);
- a blank block is no block; backticks inside a line are no block;
- CRLF becomes LF; the opening fence's indentation is taken off each line; blank lines around the code are dropped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_FENCE = re.compile(r"([ \t]*)(`{3,}|~{3,})[ \t]*(.*?)[ \t]*")
_CLOSING_SLACK = 3


@dataclass(slots=True)
class _Block:
    indent: int
    marker: str
    lines: list[str] = field(default_factory=list)
    soft_end: int | None = None

    def closed_by(self, indent: int, marker: str, tag: str) -> bool:
        longer = marker[0] == self.marker[0] and len(marker) >= len(self.marker)
        return not tag and longer and indent <= self.indent + _CLOSING_SLACK

    def replaced_by(self, indent: int, marker: str, tag: str) -> bool:
        return bool(tag) and marker[0] == self.marker[0] and len(marker) <= len(self.marker) and indent <= self.indent

    def add(self, line: str) -> None:
        if self.soft_end is None and line.rstrip().endswith(self.marker) and line.count(self.marker[0] * 3) == 1:
            self.soft_end = len(self.lines)
        self.lines.append(line)

    def code(self, *, closed: bool) -> str | None:
        """The block's code, or None when it is blank, or neither closed nor softly closed."""
        lines = self.lines
        if not closed:
            if self.soft_end is None:
                return None
            lines = [*lines[: self.soft_end], lines[self.soft_end].rstrip().rstrip(self.marker[0])]
        body = [line[min(self.indent, len(line) - len(line.lstrip(" \t"))) :] for line in lines]
        while body and not body[-1].strip():
            body.pop()
        first = next((index for index, line in enumerate(body) if line.strip()), 0)
        return "\n".join(body[first:]) or None


def extract_code(text: str) -> str | None:
    """The code of the last fenced block of `text`, or None when there is none. Never raises; linear in the text."""
    code: str | None = None
    block: _Block | None = None
    for raw in text.split("\n"):
        line = raw.removesuffix("\r")
        fence = _fence(line)
        if block is None:
            block = _Block(fence[0], fence[1]) if fence else None
        elif fence and block.closed_by(*fence):
            code, block = block.code(closed=True) or code, None
        elif fence and block.replaced_by(*fence):
            code, block = block.code(closed=False) or code, _Block(fence[0], fence[1])
        else:
            block.add(line)
    return (block.code(closed=False) if block else None) or code


def _fence(line: str) -> tuple[int, str, str] | None:
    """Indentation, marker and tag when `line` is a fence. A backtick fence has no backtick in its tag."""
    if "```" not in line and "~~~" not in line:
        return None
    match = _FENCE.fullmatch(line)
    if match is None or (match[2][0] == "`" and "`" in match[3]):
        return None
    return len(match[1]), match[2], match[3]
