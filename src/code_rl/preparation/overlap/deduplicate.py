"""Stage `deduplicate`: equal statements, then MinHash-LSH candidates put to an exact comparison; the first of a kind that has a solution stays.

Statements are compared in canonical form (variables are one placeholder, numbers stay). Two candidates with different numbers in one
place of task or constraints are variants (I and II), not duplicates; a number that one merely has more is no such difference. What is left is decided by evidence: equal
tests or reference solutions of one shape speak for a copy, one input with two answers against it; without either, the statements must read alike word for word.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from code_rl.preparation.bench import Bench, Entry, Survivor
from code_rl.preparation.ledger import KEEP, Decision, OnItem, content_key, drop
from code_rl.preparation.overlap.text import (
    Hashes,
    Numbers,
    canonical,
    grams,
    jaccard,
    limits,
    numbers,
    other_numbers,
    problem_text,
    same_telling,
    variable_names,
)
from code_rl.problems import syntax
from code_rl.problems.problem import Problem

SHINGLE = 5
PERMUTATIONS = 128
BANDS = 32
"""32 bands of 4 rows: a pair of similarity 0.8 is missed with a chance of 5e-8, one of 0.5 with 13%."""
SAME_TESTS_SIMILARITY = 0.4
SEVERAL = 3
"""So many tests, all the same, and solutions of one shape tell one problem under other numbers too."""
_NUMERAL = re.compile(r"[\s_-]+(i|ii|iii|iv|v|vi|vii)$")
MOST_CANDIDATES = 256
"""Candidates looked at for one entry: a family of thousands of alike statements stays linear."""
LEAST_TOKENS = 12
"""Shorter statements are compared as a whole only: a few words are a family, not a copy."""


async def run_deduplicate(bench: Bench, survivors: Sequence[Survivor], on_item: OnItem) -> list[Decision]:
    """Duplicates of earlier problems go. A decision depends on every entry before it: it holds only as long as nothing before it changed."""
    until = hashlib.blake2b(digest_size=16)
    order = sorted(range(len(survivors)), key=lambda index: not survivors[index].entry.solutions)
    ordered = [survivors[index] for index in order]  # a copy without a solution would not survive verify

    def about(survivor: Survivor) -> Sequence[object]:
        until.update(survivor.entry.digest.encode())
        return (until.hexdigest(),)

    with bench.deciding("deduplicate", ("overlap", "code_rl.problems.syntax"), ordered, on_item, about) as decisions:
        if decisions.waiting:
            found = Deduplicator(bench.config.similarity, lambda entry: bench.store[entry.place])
            for survivor, decision in zip(ordered, decisions.made, strict=False):  # what is known comes first
                if decision.keep:
                    found.keep(make_sketch(survivor.entry))
            decisions.one_by_one(lambda one: found.decide(one.entry))
        made = dict(zip(order, decisions.made, strict=True))
        return [made[index] for index in range(len(survivors))]


@dataclass(frozen=True, slots=True)
class Sketch:
    """What is compared of one entry."""

    entry: Entry
    text: str
    text_key: str
    numbers: Numbers
    shingles: Hashes
    signature: object
    tokens: int
    tests_key: str


class Deduplicator:
    """Decides entry by entry, in order, against those kept before. `load` fetches a problem where its solutions decide."""

    def __init__(self, similarity: float, load: Callable[[Entry], Problem]) -> None:
        from rensa import RMinHashLSH

        self._similarity = similarity
        self._load = load
        self._kept: list[Sketch] = []
        self._by_key: dict[str, list[int]] = {}
        self._index = RMinHashLSH(threshold=similarity, num_perm=PERMUTATIONS, num_bands=BANDS)

    def decide(self, entry: Entry) -> Decision:
        """Keep the entry, or drop it as a duplicate of an earlier one."""
        sketch = make_sketch(entry)
        for place in self._candidates(sketch):
            other = self._kept[place]
            why = self._why_same(sketch, other)
            if why:
                similarity = round(jaccard(sketch.shingles, other.shingles), 3)
                return drop("duplicate", f"of {other.entry.id}: {why}", of=other.entry.id, similarity=similarity)
        self.keep(sketch)
        return KEEP

    def keep(self, sketch: Sketch) -> None:
        """Take in an entry that is kept."""
        place = len(self._kept)
        self._kept.append(replace(sketch, signature=None))
        for key in (sketch.text_key, sketch.tests_key):
            self._by_key.setdefault(key, []).append(place)
        if sketch.signature is not None:
            self._index.insert(place, sketch.signature)

    def _candidates(self, sketch: Sketch) -> list[int]:
        """Places of kept sketches to look at: those with equal text or tests first, then what the index finds, equal numbers first."""
        nearby = [*self._by_key.get(sketch.text_key, ()), *self._by_key.get(sketch.tests_key, ())]
        found = self._index.query(sketch.signature) if sketch.signature is not None else []
        nearby += sorted(found, key=lambda place: (self._kept[place].numbers[()] != sketch.numbers[()], place))
        return list(dict.fromkeys(nearby))[:MOST_CANDIDATES]

    def _why_same(self, new: Sketch, old: Sketch) -> str:
        """Why `new` is the same problem as `old`, or nothing."""
        same_text = new.text_key == old.text_key
        if in_series(new.entry.called, old.entry.called):
            return ""
        similarity = 1.0 if same_text else jaccard(new.shingles, old.shingles)
        same_tests = new.tests_key == old.tests_key and similarity >= SAME_TESTS_SIMILARITY
        if not same_text and other_numbers(new.numbers, old.numbers):
            same = same_tests and new.entry.tests >= SEVERAL and self._shapes(new.entry) & self._shapes(old.entry)
            return f"the same {new.entry.tests} tests, solutions of one shape" if same else ""
        if same_tests:
            return f"the same tests, statements {similarity:.2f} alike"
        if similarity < self._similarity or (min(new.tokens, old.tokens) < LEAST_TOKENS and not same_text):
            return ""
        agreeing, conflicting = _common_tests(new.entry, old.entry)
        if conflicting:
            return ""
        if agreeing >= 2 and 2 * agreeing >= min(new.entry.tests, old.entry.tests):
            return f"statements {similarity:.2f} alike, {agreeing} tests in common"
        shapes, others = self._shapes(new.entry), self._shapes(old.entry)
        if shapes & others:
            return f"statements {similarity:.2f} alike, solutions of one shape"
        if new.entry.fn_name != old.entry.fn_name and new.entry.fn_name and old.entry.fn_name:
            return ""
        told, was_told = limits(new.text), limits(old.text)
        if shapes and others and told and was_told and told != was_told:
            return ""  # solved in other ways under other numbers: a limit may be part of the task
        alike = same_telling(new.text, old.text, renamed=not (shapes and others))
        return f"statements {similarity:.2f} alike, the same words" if alike else ""

    def _shapes(self, entry: Entry) -> frozenset[str]:
        problem = self._load(entry)
        return frozenset(shape for shape in map(program_shape, problem.solutions[:8]) if shape)


def in_series(left: Iterable[str], right: Iterable[str]) -> bool:
    """True where titles of one are those of another but for a Roman numeral at the end, which one of them may lack: parts of a series.

    Not where any name, an id too, is the same.
    """
    one, other = ({name.lower() for name in names} for names in (left, right))
    if one & other:
        return False
    parts = {stem: part for stem, part in map(_series, other) if len(stem) > 3 and not re.search(r"\d", stem)}
    return any(stem in parts and part != parts[stem] for stem, part in map(_series, one))


def _series(name: str) -> tuple[str, str]:
    found = _NUMERAL.search(name.lower())
    if found is None:
        return name, ""
    return name[: found.start()], "" if found[1] == "i" else found[1]


def make_sketch(entry: Entry) -> Sketch:
    """Measure one entry."""
    text = problem_text(entry.statement, entry.starter_code)
    tokens = canonical(text, variable_names(text, entry.starter_code, (*entry.arguments, entry.fn_name or "")))
    shingles = grams(tokens, SHINGLE)
    return Sketch(
        entry=entry,
        text=text,
        text_key=content_key(tokens),
        numbers=numbers(text),
        shingles=shingles,
        signature=_signature(shingles) if len(shingles) else None,
        tokens=len(tokens),
        tests_key=content_key(sorted(map(list, entry.test_hashes))),
    )


def _signature(shingles: Hashes) -> object:
    from rensa import RMinHash

    signature = RMinHash(num_perm=PERMUTATIONS, seed=1)
    data = shingles.tobytes()
    signature.update([data[start : start + 8] for start in range(0, len(data), 8)])
    return signature


def _common_tests(left: Entry, right: Entry) -> tuple[int, int]:
    """(inputs that both have with one answer, inputs that both have with two)."""
    answers = dict(left.test_hashes)
    common = [(answers[given], expected) for given, expected in right.test_hashes if given in answers]
    agreeing = sum(first == second for first, second in common)
    return agreeing, len(common) - agreeing


_KEPT = frozenset(dir(builtins)) | {"Solution", "self"}
_NAMED = {ast.Name: "id", ast.arg: "arg", ast.FunctionDef: "name", ast.AsyncFunctionDef: "name", ast.ClassDef: "name"}


def program_shape(source: str) -> str | None:
    """A hash that is equal for programs which differ only in the names that they define, spacing and comments; None for what does not parse."""
    try:
        tree = syntax.parse(source)
    except SyntaxError:
        return None
    bound, names = set[str](), dict[str, str]()
    for node in ast.walk(tree):
        _strip(node)
        if type(node) in _NAMED and not isinstance(getattr(node, "ctx", None), ast.Load):
            bound.add(getattr(node, _NAMED[type(node)]))
    own = {name for name in bound - _KEPT if not (name.startswith("__") and name.endswith("__"))}
    for node in ast.walk(tree):
        named = _NAMED.get(type(node), "")
        if (name := getattr(node, named, None)) in own:
            setattr(node, named, names.setdefault(name, f"v{len(names)}"))
        elif isinstance(node, ast.keyword) and node.arg is not None:
            node.arg = names.get(node.arg, node.arg)
    return content_key(ast.dump(tree, annotate_fields=False))


def _strip(node: ast.AST) -> None:
    """Take away what does not run: annotations and docstrings."""
    if isinstance(node, ast.arg):
        node.annotation = None
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        node.returns = None
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            node.body[0] = ast.Pass()
