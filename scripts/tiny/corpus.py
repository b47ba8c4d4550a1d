"""The text that the tiny model is pretrained on: prompts of built-in problems, each with one answer.

Answers vary as people's do: names, loops or comprehensions, with or without a fence or an opening sentence. A recipe says
how careless their authors are: careless authors mostly forget the edge cases (`max` of nothing, the first of none, the
inclusive end of a range), often mistake `>` for `>=`, and sometimes do something else altogether.
A share of the documents are copying exercises: lists of numbers below 100 and of letters to be written down unchanged. Held-out
constants occur there and nowhere else, held-out compositions nowhere; each primitive that RL never sees occurs in a small
share of the documents.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from string import ascii_lowercase

from code_rl.data.builtin import draw_problem
from code_rl.data.builtin.primitives import SOURCES, Primitive
from code_rl.data.builtin.specs import FN_NAME, FUNCTION, TRAIN, WORD, Spec
from code_rl.policy.prompt_templates import build_prompt

FIRST_PRETRAINING_SEED = 1_000_000
"""Pretraining problems come from streams that are no RL training set and no test split."""


@dataclass(frozen=True, slots=True)
class CorpusRecipe:
    """The form of the answers. `edge`, `near` and `wrong` are probabilities per part that can be mistaken so."""

    edge: float = 0.0
    """Forgets the empty result, the inclusive end of a range, or that a list is printed with its brackets."""
    near: float = 0.0
    """Nearly right: `>` for `>=`, duplicates counted, printed instead of returned."""
    wrong: float = 0.0
    """Something else: another operation, a step left out."""
    unseen_rate: float = 0.03
    copy_rate: float = 0.15
    loop_rate: float = 0.25
    bare_rate: float = 0.15
    unlabelled_rate: float = 0.1
    preface_rate: float = 0.1


@dataclass(frozen=True, slots=True)
class Document:
    """One user message and its answer."""

    prompt: str
    answer: str


ITEM_NAMES = (("a", 0.7), ("arr", 0.3))
RESULT_NAMES = (("b", 0.7), ("res", 0.3))
PREFACES = ("Here is the solution.\n", "Solution:\n")

EDGE, NEAR, WRONG = "edge", "near", "wrong"

SLIPS: dict[str, tuple[str, str]] = {
    "gt": (NEAR, "{x} >= {k}"),
    "ge": (NEAR, "{x} > {k}"),
    "lt": (NEAR, "{x} <= {k}"),
    "le": (NEAR, "{x} < {k}"),
    "even": (WRONG, "{x} % 2 == 1"),
    "odd": (WRONG, "{x} % 2 == 0"),
    "div": (WRONG, "{x} // {k} == 0"),
    "ndiv": (WRONG, "{x} % {k} == 0"),
    "absgt": (NEAR, "abs({x}) >= {k}"),
    "sub": (WRONG, "{x} + {k}"),
    "rsub": (NEAR, "{x} - {k}"),
    "sq": (WRONG, "{x} * 2"),
    "mod": (WRONG, "{x} // {k}"),
    "fdiv": (NEAR, "{x} / {k}"),
    "max": (EDGE, "max({b})"),
    "min": (EDGE, "min({b})"),
    "dist": (NEAR, "len({b})"),
    "first": (EDGE, "{b}[0]"),
    "last": (EDGE, "{b}[-1]"),
    "sort": (WRONG, "{b}"),
    "rev": (WRONG, "{b}"),
    "rsort": (NEAR, "sorted({b})"),
    "after": (NEAR, "{x} >= '{k}'"),
    "before": (NEAR, "{x} <= '{k}'"),
    "firstk": (WRONG, "{b}[{k}:]"),
    "dropk": (NEAR, "{b}[:{k}]"),
    "lastk": (NEAR, "{b}[:{k}]"),
    "rep": (WRONG, "{b} + {k}"),
    "srt": (EDGE, "sorted({b})"),
    "word dist": (NEAR, "len({b})"),
    "word rev": (WRONG, "{b}"),
    "word len": (WRONG, "len(s)"),
    "word cnt": (WRONG, "s.count('{k}')"),
}
"""For each primitive the mistake that is usual with it, and of which kind it is."""


def documents(recipe: CorpusRecipe, seed: int) -> Iterator[Document]:
    """An endless stream of documents, a function of `recipe` and `seed` alone."""
    rng = random.Random(seed)
    index = 0
    while True:
        if rng.random() < recipe.copy_rate:
            yield _copying_exercise(rng)
            continue
        split = "primitives" if rng.random() < recipe.unseen_rate else TRAIN
        spec, problem = draw_problem(split, FIRST_PRETRAINING_SEED + seed, index)
        yield Document(build_prompt(problem.view()), _dress(program(spec, recipe, rng), recipe, rng))
        index += 1


def _copying_exercise(rng: random.Random) -> Document:
    """A list of numbers or of quoted letters."""
    count = rng.randint(2, 6)
    if rng.random() < 0.8:
        items = [str(rng.randrange(100)) for _ in range(count)]
    else:
        items = [f"'{rng.choice(ascii_lowercase)}'" for _ in range(count)]
    return Document(f"Write a list of {' and '.join(items)}", f"List: {', '.join(items)}")


def program(spec: Spec, recipe: CorpusRecipe, rng: random.Random) -> str:
    """One program for `spec` in a random style, with slips at the recipe's rate."""
    writer = _Writer(spec, recipe, rng)
    return writer.word_program() if spec.source == WORD else writer.number_program()


def _dress(code: str, recipe: CorpusRecipe, rng: random.Random) -> str:
    """The answer around the program: fenced, fenced without a language, or bare."""
    if rng.random() < recipe.bare_rate:
        return code
    preface = rng.choice(PREFACES) if rng.random() < recipe.preface_rate else ""
    language = "" if rng.random() < recipe.unlabelled_rate else "python"
    return f"{preface}```{language}\n{code}\n```"


class _Writer:
    """Writes one program; its methods share the spec, the recipe and the stream of choices."""

    def __init__(self, spec: Spec, recipe: CorpusRecipe, rng: random.Random) -> None:
        self.spec, self.recipe, self.rng = spec, recipe, rng
        self.filter, self.map, self.reduce = spec.parts

    def slips(self, kind: str) -> bool:
        return self.rng.random() < {EDGE: self.recipe.edge, NEAR: self.recipe.near, WRONG: self.recipe.wrong}[kind]

    def part(self, part: Primitive) -> str:
        """The text of one part, with its usual slip now and then."""
        name = f"word {part.name}" if self.spec.source == WORD else part.name
        kind, wrong = SLIPS.get(name) or SLIPS.get(part.name) or (WRONG, part.code)
        return wrong if self.slips(kind) else part.code

    def number_program(self) -> str:
        spec = self.spec
        items = "nums" if spec.source == FUNCTION else _weighted(self.rng, ITEM_NAMES)
        result = _weighted(self.rng, RESULT_NAMES)
        kept = self.part(self.filter).format(x="x", k=spec.filter_const)
        changed = self.part(self.map).format(x="x", k=spec.map_const)
        answer = self.part(self.reduce).format(b=result)
        if self.slips(WRONG):
            changed = "x"
        steps = self._steps(items, result, kept, changed)
        if spec.source == FUNCTION:
            last = f"print({answer})" if self.slips(NEAR) else f"return {answer}"
            body = "\n".join(f"        {line}" for line in [*steps, last])
            return f"class Solution:\n    def {FN_NAME}(self, nums):\n{body}"
        reading = SOURCES[spec.source].code.format(a=items)
        if spec.source == "range" and self.slips(EDGE):
            reading = reading.replace("q + 1", "q")
        star = "*" if spec.returns_list and not self.slips(EDGE) else ""
        return "\n".join([reading, *steps, f"print({star}{answer})"])

    def _steps(self, items: str, result: str, kept: str, changed: str) -> list[str]:
        if self.spec.map_first:
            return [f"{result} = [{changed} for x in {items}]", f"{result} = [x for x in {result} if {kept}]"]
        if self.rng.random() < self.recipe.loop_rate:
            return [f"{result} = []", f"for x in {items}:", f"    if {kept}:", f"        {result}.append({changed})"]
        return [f"{result} = [{changed} for x in {items} if {kept}]"]

    def word_program(self) -> str:
        spec = self.spec
        kept = self.part(self.filter).format(x="c", k=spec.filter_const)
        changed = self.part(self.map).format(b="t", k=spec.map_const)
        answer = self.part(self.reduce).format(b="t", k=spec.reduce_const)
        middle = [] if self.slips(WRONG) else [f"t = {changed}"]
        return "\n".join(["s = input()", f"t = ''.join(c for c in s if {kept})", *middle, f"print({answer})"])


def _weighted(rng: random.Random, table: tuple[tuple[str, float], ...]) -> str:
    return rng.choices([name for name, _ in table], [weight for _, weight in table])[0]
