"""The program inside an answer: the last fenced block of the language that has a statement.

Reasoning is not part of an answer: the answer begins after the think blocks with which a text
begins, and after the last line that is `</think>`, since a prompt may have opened the block. A text
that begins with `<think>` and never ends it has no answer.

A fence is a line of three or more backticks or tildes. The rules, where Markdown leaves room:

- The last block tagged as Python (or as the problem's language) counts; without one, the last
  untagged block; without one, the last block. A block of only comments and blanks does not count.
- An opening fence may follow indentation, quote marks (`>`), a tag (`<answer>`) or words, and may
  name a language. The body loses the quote marks and the indentation of its fence.
- A closing fence is at least as long and of the same character. Text may follow it (`</answer>`,
  "That is all."). A single word right after the marker is a language: that fence opens another
  block, and the one before was left open.
- A fence inside a triple-quoted string does not end its block if a later one, outside, does.
- A block that is left open does not count, unless a line of code ends in a fence, or in a fence and
  a tag (`print(1)` and three backticks).
- CRLF becomes LF; blank lines around the code are dropped.

Known limits: a single word after a closing fence is read as a language, whatever character it ends
in; a draft in reasoning that the prompt opened and that ends within a line is read as the answer's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from code_rl.grading.languages import PYTHON, fences_of
from code_rl.util.thinking import UNTHINK, split_thinking

_TAG = re.compile(r"\W*+([\w.+-]*)")
_PYTHON = re.compile(r"py(?:thon)?[\d.]*")
_QUOTE_MARKS = re.compile(r"(?:[ \t]*+>)*+ ?")
_STRINGS = re.compile(r"""#.*|'''|\"\"\"|'(?:\\.|[^'\\])*+'?|"(?:\\.|[^"\\])*+"?""", re.DOTALL)
_ENDS = {quote: re.compile(rf"\\.|{quote}", re.DOTALL) for quote in ("'''", '"""')}
_READ_AGAIN = 2
"""How often a line may be read, on average, to find the end of a block behind strings."""


@dataclass(frozen=True, slots=True)
class _Fence:
    """A line with a fence: its number, the text before the marker, the marker, the text after."""

    line: int
    before: str
    marker: str
    after: str

    @property
    def quoted(self) -> bool:
        """True if the line is quoted."""
        return _is_quoted(self.before)

    @property
    def names_a_language(self) -> bool:
        """True if a single word follows the marker directly, like the language of a new block."""
        return self.after[:1].isalnum() and len(self.after.split()) == 1

    @property
    def opens(self) -> bool:
        """True if the fence may open a block. After words, it must be of backticks, and only a
        language may follow it."""
        if "`" in self.after:
            return False
        alone = not self.before.strip() or self.before.rstrip().endswith(">")
        return alone or (
            self.marker[0] == "`" and (self.names_a_language or not self.after.strip())
        )

    def rank(self, tags: tuple[str, ...]) -> int:
        """Return 2 for a block of the language with these tags (none: Python), 1 for an untagged
        one, 0 for another language."""
        tag = _TAG.match(self.after)[1].lower()  # type: ignore[index]  # it matches any text
        wanted = tag in tags if tags else _PYTHON.fullmatch(tag) is not None
        return 2 if wanted else int(not tag)

    def ended_by(self, fence: _Fence) -> bool:
        """True if `fence`, a later one, closes the block that this one opens, or opens another
        instead. It has the same character and quoting, and no words before it."""
        if fence.marker[0] != self.marker[0] or fence.quoted != self.quoted:
            return False
        if fence.before.strip("> \t"):
            return False
        length = len(self.marker) - len(fence.marker)
        return length >= 0 if fence.names_a_language else length <= 0


@dataclass(slots=True)
class _Answer:
    """The lines and fences of an answer. A quoted block ends before `quote_ends` of its line.
    `to_read` is the number of lines that may still be read again."""

    lines: list[str]
    fences: list[_Fence]
    quote_ends: list[int]
    to_read: int

    @classmethod
    def of(cls, lines: list[str]) -> _Answer:
        """Find the fences of the lines and the ends of quoted blocks, in linear time."""
        fences = [fence for number, line in enumerate(lines) if (fence := _fence(number, line))]
        quote_ends, end = [0] * len(lines), len(lines)
        for number in reversed(range(len(lines))):
            end = end if _is_quoted(lines[number]) else number
            quote_ends[number] = end
        return cls(lines, fences, quote_ends, _READ_AGAIN * len(lines))

    def last_line(self, opening: _Fence) -> int:
        """Return the number of the line before which a block ends, closed or not."""
        return self.quote_ends[opening.line] if opening.quoted else len(self.lines)


def extract_code(text: str, language: str = PYTHON, *, only: tuple[str, ...] = ()) -> str | None:
    """Return the program of an answer, or None; linear in the text. `language` is a name of
    `languages`. With `only`, return the last block that has one of these tags (in lower case), or
    None; `language` is not used. Raises ConfigError for an unknown language only."""
    if only:
        return _by_rank(text, only)[2]
    other, untagged, tagged = _by_rank(text, () if language == PYTHON else fences_of(language))
    return tagged or untagged or other


def _by_rank(text: str, tags: tuple[str, ...]) -> list[str | None]:
    """Return the last block of each rank, [other language, untagged, tagged], None where there is
    none; see `_Fence.rank`."""
    _, answer = split_thinking(text)
    lines = [line.removesuffix("\r") for line in answer.split("\n")]
    ends = [number for number, line in enumerate(lines, start=1) if line.strip() == UNTHINK]
    read = _Answer.of(lines[ends[-1] :] if ends else lines)
    found: list[str | None] = [None, None, None]
    index = 0
    while index < len(read.fences):
        opening = read.fences[index]
        index += 1
        if opening.opens:
            end = _end(read, opening, index, tags)
            last = read.last_line(opening)
            closed = end < len(read.fences) and read.fences[end].line < last
            closing = read.fences[end] if closed else None
            body = read.lines[opening.line + 1 : closing.line if closing else last]
            code = _code(opening, closing, body)
            rank = opening.rank(tags)
            found[rank] = code or found[rank]
            index = end if not closing or closing.names_a_language else end + 1
    return found


def _is_quoted(text: str) -> bool:
    return text.lstrip(" \t").startswith(">")


def _fence(number: int, line: str) -> _Fence | None:
    """Return the fence on line `number`, or None: the first three backticks or tildes, wherever
    they are. After a fence of backticks the line has no other backtick, or it would be inline code,
    unless a blank follows the fence."""
    start = min((at for at in map(line.find, ("```", "~~~")) if at >= 0), default=-1)
    if start < 0:
        return None
    rest = line[start:].lstrip(line[start])
    if line[start] == "`" and "`" in rest and not rest[:1].isspace():
        return None
    return _Fence(number, line[:start], line[start : len(line) - len(rest)], rest)


def _end(read: _Answer, opening: _Fence, index: int, tags: tuple[str, ...]) -> int:
    """Return the index of the fence that ends the block of `opening`: the first that can and is not
    inside a triple-quoted string, else the first that can, else the first behind the block. `index`
    is the fence after `opening`.

    It spends `read.to_read`, which keeps the whole extraction linear; once that is spent, strings
    are not looked at.
    """
    fences, last = read.fences, read.last_line(opening)
    first = index
    while first < len(fences) and fences[first].line < last and not opening.ended_by(fences[first]):
        first += 1
    # Only Python has triple-quoted strings.
    if tags or opening.rank(tags) == 0:
        return first
    string, line = "", opening.line + 1
    for i in range(first, len(fences)):
        if fences[i].line >= last or read.to_read < 0:
            break
        read.to_read -= fences[i].line - line + 1
        for text in read.lines[line : fences[i].line]:
            string = _open_string(text, string)
        line = fences[i].line
        if not string and opening.ended_by(fences[i]):
            return i
    return first


def _open_string(line: str, string: str) -> str:
    """Return the triple quote that is open after a line of Python, or an empty text; `string` was
    open before it. Comments and other strings are skipped."""
    at = 0
    while match := (_ENDS[string] if string else _STRINGS).search(line, at):
        at = match.end()
        if match[0] in _ENDS:
            string = "" if string else match[0]
    return string


def _code(opening: _Fence, closing: _Fence | None, body: list[str]) -> str | None:
    """Return the code of a block with these lines, without the fence's indentation and blank lines
    at either end, or None if it has no statement or was left open. `closing` is None, or a fence
    that opens another block, if it was. `body` is shortened in place."""
    if closing is None or closing.names_a_language:
        tick = opening.marker[0]
        soft = next((i for i, line in enumerate(body) if _ends_softly(line, opening.marker)), None)
        if soft is None:
            return None
        body[soft:] = [body[soft].partition(3 * tick)[0]]
    # The text before an opening fence need not be indentation; before a closing one it is.
    margin = (closing or opening if opening.before.strip("> \t") else opening).before
    if opening.quoted:
        margin, *body = (_QUOTE_MARKS.sub("", line, count=1) for line in (margin, *body))
    if not any(map(_has_statement, body)):
        return None
    indent = len(margin)
    body = [line[min(indent, len(line) - len(line.lstrip(" \t"))) :] for line in body]
    filled = [number for number, line in enumerate(body) if line.strip()]
    return "\n".join(body[filled[0] : filled[-1] + 1])


def _ends_softly(line: str, marker: str) -> bool:
    """Return True if a line of code ends in a fence as long as `marker` or longer, or in such a
    fence and a tag (`</answer>`)."""
    _, fence, rest = line.partition(3 * marker[0])
    after = rest.lstrip(marker[0])
    long_enough = len(rest) - len(after) >= len(marker) - 3
    return (
        bool(fence)
        and long_enough
        and 3 * marker[0] not in after
        and after.strip()[:1] in ("", "<")
    )


def _has_statement(line: str) -> bool:
    """Return True if a line has anything visible that is not a comment."""
    return next((char for char in line if char.isprintable() and not char.isspace()), "#") != "#"
