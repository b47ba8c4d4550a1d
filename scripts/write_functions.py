"""Write the problems of `dataset=functions`: `python scripts/write_functions.py [check]`.

Short functions named after their effect, in four steps of difficulty: arithmetic on a number, one operation over a list, over a string, and a filter with
an operation behind it. A small pretrained model can begin to solve them. Operations are the primitives of the built-in family; `check` compares and writes nothing
(a test runs it). Held out (split `test`): constants that are 3 modulo 7, and the pairs of HELD_OUT, in problems whose names do not occur in `train`. The split
`unseen` has other operations in other words: none of its problems shares an operation, a name or a phrase with the two others.
"""

from __future__ import annotations

import filecmp
import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from code_rl.data.builtin.primitives import FILTERS, MAPS, REDUCES, Primitive
from code_rl.data.builtin.specs import held_out_constant
from code_rl.data.dataset import PREPARED
from code_rl.grading.native import write_problems
from code_rl.grading.problem import CallTest, Problem

FOLDER = Path(__file__).parents[1] / "src" / "code_rl" / "data" / "functions"
TRAIN, TEST, UNSEEN = "train", "test", "unseen"
SIZES = {TRAIN: 512, TEST: 128}
CASES, PUBLIC = 8, 2

FILTER = {"gt": "greater_than_{k}", "ge": "at_least_{k}", "lt": "less_than_{k}", "le": "at_most_{k}", "even": "even",
          "odd": "odd", "div": "divisible_by_{k}", "ndiv": "not_divisible_by_{k}"}  # fmt: skip
MAP = {"add": ("add_{k}", "plus {k}", "{x} + {k}"), "sub": ("subtract_{k}", "minus {k}", "{x} - {k}"),
       "mul": ("multiply_by_{k}", "times {k}", "{x} * {k}"), "mod": ("modulo_{k}", "modulo {k}", "{x} % {k}"),
       "sq": ("square", "squared", "{x} * {x}"), "fdiv": ("floor_divide_by_{k}", "divided by {k} and rounded down", "{x} // {k}")}  # fmt: skip
REDUCE = {"sum": ("sum", "the sum of"), "cnt": ("count", "the count of"), "all": ("keep", "a list of"),
          "max": ("largest", "the largest of"), "min": ("smallest", "the smallest of"), "sort": ("sorted", "a sorted list of")}  # fmt: skip
STRING = {
    "count_{c}": ("how often the letter '{c}' occurs in the text", "text.count('{c}')"),
    "remove_{c}": ("the text without the letter '{c}'", "text.replace('{c}', '')"),
    "replace_{c}_with_{d}": ("the text with every '{c}' replaced by '{d}'", "text.replace('{c}', '{d}')"),
    "starts_with_{c}": ("True if the text starts with the letter '{c}', and False otherwise", "text.startswith('{c}')"),
    "ends_with_{c}": ("True if the text ends with the letter '{c}', and False otherwise", "text.endswith('{c}')"),
    "contains_{c}": ("True if the letter '{c}' occurs in the text, and False otherwise", "'{c}' in text"),
    "first_{k}_characters": ("the first {k} characters of the text", "text[:{k}]"),
    "last_{k}_characters": ("the last {k} characters of the text", "text[-{k}:]"),
    "without_first_{k}": ("the text without its first {k} characters", "text[{k}:]"),
    "repeat_{k}_times": ("the text repeated {k} times", "text * {k}"),
    "is_longer_than_{k}": ("True if the text has more than {k} characters, and False otherwise", "len(text) > {k}"),
}
NUMBERS, WORDS, WHOLE = "values", "phrase", "n"
OTHER = (
    ("mirrored", NUMBERS, "the same list in reverse order", "values[::-1]"),
    ("product", NUMBERS, "all entries multiplied together (1 for an empty list)", "__import__('math').prod(values)"),
    ("spread", NUMBERS, "the gap between maximum and minimum, 0 when empty", "max(values) - min(values) if values else 0"),
    ("mean_or_zero", NUMBERS, "the arithmetic average, 0 when empty", "sum(values) / len(values) if values else 0"),
    ("distinct", NUMBERS, "how many different entries there are", "len(set(values))"),
    ("negated", NUMBERS, "the list with every sign flipped", "[-v for v in values]"),
    ("magnitudes", NUMBERS, "the absolute value of every entry, in order", "[abs(v) for v in values]"),
    ("every_second", NUMBERS, "the entries at positions 0, 2, 4 and so on", "values[::2]"),
    ("head", NUMBERS, "the opening entry, None when empty", "values[0] if values else None"),
    ("tail", NUMBERS, "the closing entry, None when empty", "values[-1] if values else None"),
    ("running_totals", NUMBERS, "the cumulative totals from left to right", "[sum(values[:i + 1]) for i in range(len(values))]"),
    ("steps", NUMBERS, "each entry's difference from its left neighbour", "[b - a for a, b in zip(values, values[1:])]"),
    ("descending", NUMBERS, "the entries from high to low", "sorted(values, reverse=True)"),
    ("where_highest", NUMBERS, "the position of the maximum, -1 when empty", "values.index(max(values)) if values else -1"),
    ("rotated", NUMBERS, "the list with its opening entry moved to the end", "values[1:] + values[:1]"),
    ("front_heavy", NUMBERS, "whether the opening entry exceeds the closing one", "bool(values) and values[0] > values[-1]"),
    ("upper", WORDS, "the phrase in capitals", "phrase.upper()"),
    ("backwards", WORDS, "the phrase spelled from its end to its beginning", "phrase[::-1]"),
    ("vowels", WORDS, "how many of its characters are vowels", "sum(c in 'aeiou' for c in phrase)"),
    ("alphabetical", WORDS, "its characters in alphabetical order, as a string", "''.join(sorted(phrase))"),
    ("consonants", WORDS, "the phrase without its vowels", "''.join(c for c in phrase if c not in 'aeiou')"),
    ("size", WORDS, "its length", "len(phrase)"),
    ("spelled", WORDS, "its characters joined by hyphens", "'-'.join(phrase)"),
    ("commonest", WORDS, "the character seen most, the alphabetically earliest on ties", "min(set(phrase), key=lambda c: (-phrase.count(c), c))"),
    ("capitalised", WORDS, "the phrase with a capital initial", "phrase.capitalize()"),
    ("halves", WORDS, "its latter half followed by its former half", "phrase[len(phrase) // 2:] + phrase[:len(phrase) // 2]"),
    ("alphabet", WORDS, "how many different characters it uses", "len(set(phrase))"),
    ("outer", WORDS, "its initial and final character, as one string", "phrase[0] + phrase[-1]"),
    ("digits_total", WHOLE, "the total of its decimal digits, sign ignored", "sum(map(int, str(abs(n))))"),
    ("final_digit", WHOLE, "its final decimal digit, sign ignored", "abs(n) % 10"),
    ("magnitude", WHOLE, "its distance from zero", "abs(n)"),
    ("cube", WHOLE, "its third power", "n ** 3"),
    ("binary", WHOLE, "its binary digits as a string, without a prefix, sign ignored", "format(abs(n), 'b')"),
    ("countdown", WHOLE, "a list from it down to 1, empty when it is not positive", "list(range(n, 0, -1))"),
    ("divisors", WHOLE, "how many positive integers divide it, sign ignored, 0 for zero", "sum(n % d == 0 for d in range(1, abs(n) + 1))"),
    ("digits_mirrored", WHOLE, "its decimal digits from last to first, as a string, sign ignored", "str(abs(n))[::-1]"),
)  # fmt: skip
"""Name, argument, result and code of the problems of `unseen`."""
LETTERS = "abcdefghijklmnop"
HELD_OUT = {("even", "sum"), ("odd", "cnt"), ("div", "all"), ("gt", "max"), ("lt", "sort"), ("ge", "min")}
"""Pairs of a filter and a reduction that only held-out problems ask for."""


def draw(rng: random.Random) -> tuple[str, Problem] | None:
    """A problem and its split; None where the rules give it to neither."""
    name, argument, text, code, constants, pair, value = rng.choice((_number, _each, _string, _filtered))(rng)
    solution = f"def {name}({argument}):\n    return {code}"
    space: dict[str, Any] = {}
    exec(solution, space)  # noqa: S102 - a line of the tables above
    inputs = [value(rng, n) for n in range(CASES)]
    answers = [space[name](one) for one in inputs]
    if len({repr(answer) for answer in answers}) < 2:
        return None
    held = [held_out_constant(constant) for constant in constants]
    if any(held) and (not all(held) or pair in HELD_OUT):
        return None
    tests = tuple(CallTest((a,), b, public=n < PUBLIC) for n, (a, b) in enumerate(zip(inputs, answers, strict=True)))
    statement = f"Write a Python function `{name}({argument})` that returns {text}."
    split, kind = (
        (TEST, "constants" if any(held) else "compositions") if any(held) or pair in HELD_OUT else (TRAIN, TRAIN)
    )
    return split, Problem(
        f"functions/{name}", statement, tests, fn_name=name, time_limit_s=2.0, memory_limit_mb=256, solutions=(solution,),
        source="functions", meta={"split": kind},
    )  # fmt: skip


Drawn = tuple[str, str, str, str, list[Any], tuple[str, str] | None, Callable[[random.Random, int], Any]]


def _constant(rng: random.Random, part: Primitive) -> int | None:
    return None if part.domain is None else rng.choice([k for k in part.domain if k < 60])


def _number(rng: random.Random) -> Drawn:
    if rng.random() < 0.4:
        part = FILTERS[rng.choice(list(FILTER))]
        k = _constant(rng, part)
        text = f"True if the number is {part.phrases[0].format(k=k)}, and False otherwise"
        name = f"is_{FILTER[part.name].format(k=k)}"
        return name, "number", text, part.code.format(x="number", k=k), _known(k), None, _integer
    first, second = rng.sample(list(MAP), 2)
    k = _constant(rng, MAPS[first])
    name, phrase, code = (form.format(k=k, x="number") for form in MAP[first])
    if rng.random() < 0.5:
        return name, "number", f"the number {phrase}", code, _known(k), None, _integer
    j = _constant(rng, MAPS[second])
    other, after, outer = (form.format(k=j, x=f"({code})") for form in MAP[second])
    return f"{name}_then_{other}", "number", f"the number {phrase}, then {after}", outer, _known(k, j), None, _integer


def _each(rng: random.Random) -> Drawn:
    mapping = rng.choice(list(MAP))
    k = _constant(rng, MAPS[mapping])
    name, phrase, code = (form.format(k=k, x="x") for form in MAP[mapping])
    return (
        f"{name}_each",
        "numbers",
        f"a list of the numbers, each {phrase}",
        f"[{code} for x in numbers]",
        _known(k),
        None,
        _list,
    )


def _string(rng: random.Random) -> Drawn:
    form = rng.choice(list(STRING))
    c, d, k = *rng.sample(LETTERS, 2), rng.randint(2, 12)
    text, code = (part.format(c=c, d=d, k=k) for part in STRING[form])
    constants = [value for key, value in (("{c}", c), ("{d}", d), ("{k}", k)) if key in form]
    return form.format(c=c, d=d, k=k), "text", text, code, constants, None, _text


def _filtered(rng: random.Random) -> Drawn:
    part, reduction = FILTERS[rng.choice(list(FILTER))], REDUCES[rng.choice(list(REDUCE))]
    k = _constant(rng, part)
    name, phrase = REDUCE[reduction.name]
    text = f"{phrase} the numbers that are {part.phrases[0].format(k=k)}" + (
        ", or 0 if there is none" if reduction.name in ("max", "min") else ""
    )
    code = reduction.code.format(b=f"[x for x in numbers if {part.code.format(x='x', k=k)}]")
    return (
        f"{name}_{FILTER[part.name].format(k=k)}",
        "numbers",
        text,
        code,
        _known(k),
        (part.name, reduction.name),
        _list,
    )


def unseen() -> Iterator[Problem]:
    """The problems of `unseen`, in their order."""
    kinds = {
        NUMBERS: ("takes a list of integers", _list),
        WORDS: ("takes a nonempty lower-case string", _text),
        WHOLE: ("takes one integer", _integer),
    }
    for name, argument, text, code in OTHER:
        rng, (takes, value) = random.Random(f"functions/{name}"), kinds[argument]
        solution = f"def {name}({argument}):\n    return {code}"
        space: dict[str, Any] = {}
        exec(solution, space)  # noqa: S102 - a line of the table above
        inputs = [value(rng, n) for n in range(CASES)]
        tests = tuple(CallTest((a,), space[name](a), public=n < PUBLIC) for n, a in enumerate(inputs))
        yield Problem(
            f"functions/{name}", f"Implement `{name}` in Python. It {takes}, `{argument}`; the result must be {text}.", tests,
            fn_name=name, time_limit_s=2.0, memory_limit_mb=256, solutions=(solution,), source="functions", meta={"split": UNSEEN},
        )  # fmt: skip


def _known(*constants: int | None) -> list[int]:
    return [k for k in constants if k is not None]


def _integer(rng: random.Random, _: int) -> int:
    return rng.randint(-20, 80)


def _list(rng: random.Random, n: int) -> list[int]:
    return [rng.randint(-20, 80) for _ in range(rng.randint(4, 9) if n != CASES - 1 else 0)]


def _text(rng: random.Random, _: int) -> str:
    return "".join(rng.choices(LETTERS, k=rng.randint(3, 14)))


def problems() -> dict[str, list[Problem]]:
    """Each split's problems, no two of one name."""
    rng = random.Random("functions")
    found: dict[str, dict[str, Problem]] = {TRAIN: {}, TEST: {}}
    while any(len(found[split]) < size for split, size in SIZES.items()):
        drawn = draw(rng)
        if drawn is not None and len(found[drawn[0]]) < SIZES[drawn[0]]:
            found[drawn[0]].setdefault(drawn[1].id, drawn[1])
    return {split: list(each.values()) for split, each in found.items()} | {UNSEEN: list(unseen())}


def write(folder: Path) -> Iterator[str]:
    """Write the splits and their manifest; yields the names of the files."""
    splits = {}
    for split, members in problems().items():
        splits[split] = {"file": f"{split}.jsonl.gz", "problems": write_problems(folder / f"{split}.jsonl.gz", members)}
        yield f"{split}.jsonl.gz"
    manifest = {"format": PREPARED, "version": 1, "splits": splits}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    yield "manifest.json"


def main(words: list[str]) -> int:
    """Write, or with `check` say which files differ; 1 where one does."""
    if words != ["check"]:
        FOLDER.mkdir(exist_ok=True)
        print(*write(FOLDER))
        return 0
    with tempfile.TemporaryDirectory() as made:
        differ = [
            name for name in write(Path(made)) if not filecmp.cmp(Path(made) / name, FOLDER / name, shallow=False)
        ]
    print(f"differ: {', '.join(differ)}" if differ else "all as written")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
