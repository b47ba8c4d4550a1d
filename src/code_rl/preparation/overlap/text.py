"""Statements as token sequences: what deduplication and decontamination compare.

Two spellings of one statement give the same tokens: markup, how its lines are laid out (quoted, numbered, wrapped), case, Unicode forms, escaped line ends
and the spelling of numbers (`10^5`, `1e5`, `100,000`) do not count.
Names of variables become one placeholder in the canonical form, so that a renamed copy is a copy; numbers always stay.
"""

from __future__ import annotations

import html
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, groupby

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]
PLACEHOLDER = "§"

_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")
_SUPERSCRIPT_RUN = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_THIN_SPACE = re.compile(r"(?<=\d)[\u00a0\u2007\u2009\u202f](?=\d{3}(?!\d))")
_SIGNS = str.maketrans("‘’‛“”‐‑−", "'''\"\"---", "\u00ad\u061c\u200b\u200c\u200d\u200e\u200f\u2060\ufeff")
"""Quotes and dashes in one form; what has no width is nothing."""
_ESCAPED = re.compile(
    r"\\(?:u[0-9a-f]{4}|[\\\"]|n(?!e[gq]?\b|u\b|ot|mid|abla|i\b)|r(?!ight|angle|ho|ceil|floor|brace|m\b)|t(?!imes|ext|o\b|heta|ilde|frac|an))",
    re.IGNORECASE,
)
_REFERENCE = re.compile(r"&(?!lt;|gt;)#?\w{1,31};")
"""A character reference, but for what would look like a tag."""
_BREAK = re.compile(r"<br\b[^<>]{0,80}>[ \t]*\n?", re.IGNORECASE)
_QUOTE = r"[ \t]*>(?!>>|=)[ \t]?"
_QUOTED_LINES = re.compile(
    rf"(?:^{_QUOTE}[^\n]*(?:\n\s*|\Z)){{2,}}|(?:\A|(?<=\n\n)){_QUOTE}(?=[^\w\n]*[^\W\d_]{{2}})", re.MULTILINE
)
"""Several lines in a row that begin with `>`, or a paragraph of one such line that goes on with a word: `> 5` alone may be what is left of `n > 5`."""
_QUOTE_MARK = re.compile(rf"^{_QUOTE}", re.MULTILINE)
_LINE_NUMBER = re.compile(r"[ \t]*(\d{1,4})(?:[.:|)]?(?:[ \t]{2,}|\t|$)|[.:|)][ \t])")
LEAST_NUMBERED = 3
"""So many lines in a row that have numbers in a row are numbered lines."""
_MARK = re.compile(r"[-*+•#]+\s+([^\W\d_]{2})?")
_ITEMS = re.compile(r"(?<=\S[.;:])[ \t]+(?=[-*+•] )")
LEAST_WRAPPED = 24
"""A line of fewer characters was not ended for its length."""
_HYPHENATED = re.compile(r"(?<=[^\W\d_])-\n[ \t]*(?=[^\W\d_])")
_MARKUP = (
    ("<", re.compile(r"<sup>\s*(\d+)\s*</sup>"), r"^\1"),
    ("<", re.compile(r"</?[a-z][^<>]{0,80}>"), " "),
    ("\\", re.compile(r"\\(?=[*^_#])"), ""),
    ("{", re.compile(r"(?<=\d)\{,\}(?=\d{3})"), ","),
    ("\\≤⩽=", re.compile(r"=<(?![<=>])|\\leqslant|\\leq?(?![a-z])|≤|⩽"), "<="),
    ("\\≥⩾", re.compile(r"\\geqslant|\\geq?(?![a-z])|≥|⩾"), ">="),
    ("&\\", re.compile(r"&lt;|\\lt(?![a-z])"), "<"),
    ("&\\", re.compile(r"&gt;|\\gt(?![a-z])"), ">"),
    ("\u00a0", re.compile("\u00a0"), " "),
    ("\\×·⋅", re.compile(r"\\(?:times|cdot)(?![a-z])|×|·|⋅"), "*"),
    ("\\…", re.compile(r"\\(?:ldots|dots|cdots)(?![a-z])|…"), "..."),
    ("\\", re.compile(r"\\(?:left|right|text(?:bf|it|tt)?|math(?:rm|tt|bf|it)|operatorname)(?![a-z])"), " "),
    ("\\", re.compile(r"\\[,;:! ]"), ""),
    ("{}$`", re.compile(r"[{}$`]"), " "),
    (
        "*_",
        re.compile(
            r"(?<![^\s([{|>/:–—-])[*_]{1,4}(?=[^\s*_])((?:[^*_\n]|\n(?!\s*\n)|(?<=\w)[*_]+(?=\w)){1,400}?)(?<=\S)[*_]{1,4}(?!\w)"
        ),
        r"\1",
    ),
)
"""(Characters of which every match has one, pattern, replacement): most statements have few of them, and a look for a character costs little."""
_GROUPED = re.compile(
    r"\d(?<![\d.,_']\d)\d{0,2}(?:(?:([,_'])\d{3}(?:\1\d{3})*)|(?:\.\d{3}){2,}|(?: 000)+)(?!\w|[.,_' ]\d)"
)
"""With one sign between groups of three; a point is one where there are several, a space where zeros follow."""
_POWER = re.compile(r"(\d(?<![\w.]\d)\d*)\s*(?:\^|\*\*)\s*(\d+)")
_SCIENTIFIC = re.compile(r"(\d(?<![\w.]\d)\d*)e\+?(\d+)(?!\w|\.\d)")
_PRODUCT = re.compile(r"(\d(?<![\w.]\d)\d*)\s*\*\s*(10+)(?!\d)")
_SUM = re.compile(r"(?<![\w.*/^%-])(?<![*/^%-] )(10{6,})\s*\+\s*(\d{1,3})(?![\w(^]|\.\d|\s*[*/^%])")
"""As in 10^9 + 7."""
_TOKEN = re.compile(r"(?<![\w.)\]}-])-\d+(?:\.\d+)?|\d+(?:\.\d+)?|[^\W\d_][\w']*|<=|>=|!=|==|[<>]")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?$")
_SPELLED_NAME = re.compile(r"[a-z]\w*_\w+|\w*[a-z]\d+\w*")
_CAMEL = re.compile(r"\b[a-z]++(?:[A-Z][a-z0-9]*+)++\b")
_QUOTED = re.compile(r"[`$]([A-Za-z_]\w*)[`$]")
_DEFINED = re.compile(r"\bdef\s+(\w+)|(\w+)\s*:\s*(?:[A-Za-z])|(\w+)\s*=")
_CALLED = re.compile(r"\b([A-Za-z_]\w*)\((?!e?s\))")
"""Not the plural of `index(es)`."""
_UNCALLED = re.compile(r"(?<!def )\b([A-Za-z_]\w*+)(?!\()")
_HEADER = re.compile(r"^[ \t]*(?:def \w+\(.*|class \w+.*:|from \S+ import .*|import \w+(?: as \w+)?)$", re.MULTILINE)
_EXAMPLES = re.compile(
    r"^[\s#*_-]*(?:example|sample)s?\b(?:[\s#*_]*(?:input|output|case|test|explanation)s?)?[\s\d:#*_.()-]*$"
    r"|<(?:h\d|b|strong|p|dt)\b[^>]*>\s*(?:example|sample)s?(?:\s*(?:input|output|case|test)s?)?[\s\d:.]*</"
    r"|-{3,}\s*examples?\s*-{3,}|\bexample\s*1\s*:|(?:^|\n)\s*>>>",
    re.MULTILINE | re.IGNORECASE,
)
_UNIT = r"(?:milli-?seconds?|seconds?|secs?|ms|s|megabytes?|kilobytes?|gigabytes?|[kmg]i?b|bytes?)"
_NO_LETTER = r"(?:[^\w\n]|[\d_])*"
_LIMIT = rf"(?:(?:time|memory)[ -]limits?(?: per test(?: case)?)?|(?<![a-z])[tm]l\b)\W{{0,4}}\d+(?:\.\d+)?\s*{_UNIT}(?=\b|memory)"
_ARCHIVE = re.compile(
    rf"^(?:[^\w\n]*limits?[^\w\n]*\n)?(?=[^\n]*\d)(?=[^\n]*(?:limit|memory|time|second|sec|ms|[kmg]i?b)){_NO_LETTER}"
    rf"(?:(?:(?:time|memory|source|stack)?limits?|time|memory|source|stack|cpu|execution|run-?time|running|usage|maximum|max|per|test|case|is|of|and|java|others|extended|to|for|python|tl|ml|[kmg]|{_UNIT})(?![^\W\d_]){_NO_LETTER})+$"
    rf"|{_LIMIT}|^[^\w\n]*(?:round|task|problem|exercise|question|challenge|copy|version) *(?:no\.?|number|#|:)? *\d+(?:[^\w\n]*{_LIMIT})*[^\w\n]*$",
    re.MULTILINE,
)
"""Limits of time and memory that follow their name or have a line of their own, and running numbers on such a line, are the archive's, not the task's."""
MAX_EXPONENT = 30
ARTICLES = frozenset({"an", "the", "please", "will"})
"""Words that two tellings of one problem may differ in (`a` counts as a name)."""


def problem_text(statement: str, starter_code: str | None) -> str:
    """All that tells the task: the statement, and the starter code where it carries a docstring or comments."""
    if starter_code and any(mark in starter_code for mark in ('"""', "'''", "#")):
        return f"{statement}\n{starter_code}"
    return statement


def simplify(text: str) -> str:
    """Lower case, without markup, characters and numbers in one spelling."""
    if not text.isascii():
        text = _SUPERSCRIPT_RUN.sub(lambda run: "^" + run[0].translate(_SUPERSCRIPTS), text)
        text = unicodedata.normalize("NFKC", _THIN_SPACE.sub("", text)).translate(_SIGNS)
    text = _HYPHENATED.sub("", plain_lines(text).lower())
    for signs, pattern, replacement in _MARKUP:
        if any(sign in text for sign in signs):
            text = pattern.sub(replacement, text)
    text = _ARCHIVE.sub(" ", text)
    text = _GROUPED.sub(lambda match: re.sub(r"\D", "", match[0]), text)
    text = _SCIENTIFIC.sub(lambda match: _power(match[1], "10", match[2]), text)
    if "^" in text or "**" in text:
        text = _POWER.sub(lambda match: _power("1", match[1], match[2]), text)
    if "*" in text:
        text = _PRODUCT.sub(lambda match: str(int(match[1]) * int(match[2])) if len(match[1]) < 20 else match[0], text)
    return text


def plain_lines(text: str) -> str:
    """The text without what lays out its lines: character references, escaped line ends, `<br>`, marks of a quote, numbers of lines."""
    text = _REFERENCE.sub(lambda found: html.unescape(found[0]).translate(_SIGNS), text)
    text = _BREAK.sub("\n", text)
    if "\\" in text and "\n" not in text.strip():  # one line, as of a JSON string that was not read
        text = _ESCAPED.sub(_unescape, text)
    while ">" in text and (bare := _QUOTED_LINES.sub(lambda quote: _QUOTE_MARK.sub("", quote[0]), text)) != text:
        text = bare
    lines = text.split("\n")
    numbers = [(at, _LINE_NUMBER.match(line)) for at, line in enumerate(lines) if line.strip()]
    for _, run in groupby(numbers, lambda one: one[1] and int(one[1][1]) - one[0]):
        numbered = [(at, number) for at, number in run if number]
        if sum(number.end() < len(lines[at]) for at, number in numbered) >= LEAST_NUMBERED:
            for at, number in numbered:
                lines[at] = lines[at][number.end() :]
    return "\n".join(lines)


def _reflowed(text: str) -> str:
    """The text with a blank for each line end that only its length asked for; a list's items keep their lines."""
    lines, listed = [""], False
    for line in map(str.strip, _ITEMS.sub("\n", text).split("\n")):
        mark = _MARK.match(line)
        item = mark is not None and (listed or mark[1] is not None)
        if line and not item and len(lines[-1]) >= LEAST_WRAPPED and lines[-1][-1] not in ".:;!?":
            lines[-1] += f" {line}"
        else:
            lines.append(line)
            listed = bool(line) and (listed or mark is not None)
    return "\n".join(lines)


def _unescape(match: re.Match[str]) -> str:
    sign = match[0][1:]
    return chr(int(sign[1:], 16)) if len(sign) > 1 else sign if sign in '\\"' else "\n"


def _power(factor: str, base: str, exponent: str) -> str:
    if len(exponent) > 2 or int(exponent) > MAX_EXPONENT or len(base) > 6 or len(factor) > 20:
        return f"{factor} {base} {exponent}"
    return str(int(factor) * int(base) ** int(exponent))


@lru_cache(maxsize=16)
def words(text: str) -> tuple[str, ...]:
    """The plain tokens of a text: words, numbers and comparison signs."""
    return tuple(_TOKEN.findall(simplify(text)))


def variable_names(statement: str, starter_code: str | None, extra: Iterable[str] = ()) -> frozenset[str]:
    """Names, lower case, that are variables for certain: quoted, in camel case, defined by the starter code, or in `extra`."""
    defined = chain.from_iterable(_DEFINED.findall(starter_code or ""))
    names = {name.lower() for name in (*_QUOTED.findall(statement), *_CAMEL.findall(statement), *defined, *extra)}
    return frozenset(names - {"", "self", "return", "class", "solution"})


def pattern(text: str) -> list[str]:
    """The canonical tokens, names of functions being variables too; headers of code are left out. A word that also stands without a call is none."""
    names = {name.lower() for name in _CALLED.findall(text)}
    plain = {name.lower() for name in _UNCALLED.findall(text)} if names else set()
    return canonical(_HEADER.sub("", text), frozenset(names - plain))


def without_numbers(tokens: Sequence[str]) -> list[str]:
    """The tokens with `#` for each number."""
    return ["#" if _NUMBER.match(token) else token for token in tokens]


def canonical(statement: str, names: frozenset[str]) -> list[str]:
    """The tokens with every variable replaced by one placeholder. Numbers stay, so that constraints keep their place."""
    return [PLACEHOLDER if token in names or _looks_variable(token) else token for token in words(statement)]


@lru_cache(maxsize=1 << 16)
def _looks_variable(token: str) -> bool:
    return (len(token) == 1 and token.isalpha()) or (
        not token[0].isdigit() and _SPELLED_NAME.fullmatch(token) is not None
    )


def task_text(statement: str) -> str:
    """The statement up to its first worked example."""
    lower = statement.lower()
    match = _EXAMPLES.search(statement) if any(mark in lower for mark in ("example", "sample", ">>>")) else None
    return statement[: match.start()] if match and match.start() > 0 else statement


_SIGN = r"[^\w\s.,:;?!'\"()*_#>+/%^$`{}•–—…“”‘’-]"
_PIECE = re.compile(
    rf"(?P<told>{_TOKEN.pattern}|(?<=\b\w)!|!(?=\w\b)|(?<![\w)\]-])-(?=[^\W\d])|{_SIGN})|(?P<operator>[-+*/%^–]+|(?<=\s)[?:](?=\s))|[()#]|\n"
)
_QUOTED_SIGNS = re.compile(r"([`'\"‘“])((?:(?!\1)[^\w\s]|_){1,3})[`'\"’”]")
_QUOTED_ONES = 0xE000
"""Where quoted signs are: in Unicode's private area, where nothing takes them for markup."""


def _substance(text: str) -> list[str]:
    """The words, numbers and signs of a task, without the signs of prose and markup.

    Of those, signs count that are quoted, stand alone within a line, or join single letters, numbers and brackets, and brackets beside such a sign.
    """
    text = _QUOTED_SIGNS.sub(
        lambda quoted: " ".join(chr(_QUOTED_ONES + ord(sign) % 0x1000) for sign in quoted[2]), text
    )
    text = _reflowed(simplify(text))
    found = [*_PIECE.finditer(text)]
    pieces = ["\n", *(piece[0] for piece in found), "\n", "\n"]
    joins = [False] * len(pieces)
    for at, piece in enumerate(found, start=1):
        left, right = pieces[at - 1], pieces[at + 1]
        within = "\n" not in (left, right)
        if piece["operator"]:
            before, behind = text[piece.start() - 1].isspace(), text[piece.end() : piece.end() + 1].isspace()
            formula = (left == ")" or _operand(left)) and (right == "(" or _operand(right))
            joins[at] = formula or (within and before == behind and piece[0][0] in ("-+*/%^?:" if before else "+*%^"))
        else:
            joins[at] = within and piece[0] == "#"
    told = [False, *(piece["told"] is not None for piece in found), False, False]
    for at, sign in enumerate(pieces):
        if sign == "(":
            told[at] = joins[at - 1] or (joins[at + 2] and _operand(pieces[at + 1]))
        elif sign == ")":
            told[at] = joins[at + 1] or (joins[at - 2] and _operand(pieces[at - 1]))
    return [piece.replace("–", "-") for at, piece in enumerate(pieces) if told[at] or joins[at]]


def _operand(piece: str) -> bool:
    return _NUMBER.match(piece) is not None or piece in "[]" or (piece[0].isalpha() and _looks_variable(piece))


def limits(text: str) -> list[str]:
    """The numbers in the archive's lines of a text: its limits, and what it counts its problems by."""
    return re.findall(r"\d+(?:\.\d+)?", " ".join(match[0] for match in _ARCHIVE.finditer(text.lower())))


def same_telling(left: str, right: str, *, renamed: bool) -> bool:
    """True when two tasks read alike, word for word and sign for sign, up to articles; with `renamed` also where variables have other names throughout."""
    one, other = (
        [token for token in _substance(task_text(plain_lines(text))) if token not in ARTICLES] for text in (left, right)
    )
    if len(one) != len(other) or not renamed:
        return one == other
    there: dict[str, str] = {}
    back: dict[str, str] = {}
    return all(
        there.setdefault(name, new) == new and back.setdefault(new, name) == name
        if _looks_variable(name) and _looks_variable(new)
        else name == new
        for name, new in zip(one, other, strict=True)
    )


Numbers = Mapping[tuple[str, ...], Counter[str]]
"""The numbers of a text by the two words before and the two behind each; under `()` all of them."""


def numbers(statement: str) -> Numbers:
    """Numbers of the task and its limits in their places: what tells I from II.

    After the first worked example only lines with a comparison sign count.
    """
    statement = plain_lines(statement)
    body = task_text(statement)
    lines = [line for line in simplify(statement[len(body) :]).splitlines() if "<" in line or ">=" in line]
    summed = (_SUM.sub(lambda told: str(int(told[1]) + int(told[2])), text) for text in (simplify(body), *lines))
    found: dict[tuple[str, ...], Counter[str]] = {(): Counter()}
    for tokens in map(_TOKEN.findall, summed):
        kinds = ["#" if _NUMBER.match(token) else PLACEHOLDER if _looks_variable(token) else token for token in tokens]
        for place, token in enumerate(tokens):
            if kinds[place] == "#":
                found[()][token] += 1
                before, behind = kinds[max(0, place - 2) : place], kinds[place + 1 : place + 3]
                for context in (("before", *before), (*behind, "behind")):
                    if len(context) == 3 and context.count("#") < 2:
                        found.setdefault(context, Counter())[token] += 1
    return found


def other_numbers(left: Numbers, right: Numbers) -> bool:
    """True where one place holds one number in `left` and another in `right`; a number that was merely added is no difference."""
    places = left.keys() & right.keys() - {()}
    return any(left[place] - right[place] and right[place] - left[place] for place in places)


@lru_cache(maxsize=1 << 17)
def _token_hash(token: str) -> int:
    data = token.encode("utf-8", "surrogatepass")
    return (zlib.crc32(data) << 32) | zlib.crc32(data, 0x9E3779B9)


def token_hashes(tokens: Sequence[str]) -> Hashes:
    """A 64-bit hash of each token."""
    return np.fromiter(map(_token_hash, tokens), dtype=np.uint64, count=len(tokens))


def grams(tokens: Sequence[str], size: int) -> Hashes:
    """Sorted distinct 64-bit hashes of all runs of `size` tokens; the whole sequence where it is shorter, nothing of nothing."""
    return np.unique(runs(token_hashes(tokens), min(size, len(tokens))))


def runs(hashes_T: Hashes, size: int) -> Hashes:
    """The hash of each run of `size` tokens, in order, of tokens that are hashed already."""
    count = max(0, len(hashes_T) - size + 1) if size else 0
    mixed = np.zeros(count, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for place in range(size if count else 0):
            mixed = (mixed ^ hashes_T[place : place + count]) * np.uint64(0x9DDFEA08EB382D69)
            mixed ^= mixed >> np.uint64(29)
    return mixed


def among(left: Hashes, right: Hashes) -> npt.NDArray[np.bool_]:
    """For each hash of `left` whether it is in `right`, which is sorted."""
    if not len(right):
        return np.zeros(len(left), dtype=np.bool_)
    places = np.searchsorted(right, left)
    places[places == len(right)] = 0
    found: npt.NDArray[np.bool_] = right[places] == left
    return found


def jaccard(left: Hashes, right: Hashes) -> float:
    """Shared over all, of two sets of grams, sorted."""
    common = int(np.count_nonzero(among(*sorted((left, right), key=len))))
    union = len(left) + len(right) - common
    return common / union if union else 0.0
