"""Which held-out problems are among those to train on: by id, or by text but for case and white space."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from code_rl.problems.order import Selected
from code_rl.problems.problem import Problem


def keys_of(problem: Problem) -> tuple[str, str]:
    """What tells a problem: its id, and a digest of its statement ("" where it has none)."""
    text = " ".join(problem.statement.lower().split())
    return problem.id, hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:24] if text else ""


def all_keys(problems: Sequence[Problem]) -> list[tuple[str, str]]:
    """`keys_of` each, without reading the problems where their store has them."""
    if isinstance(problems, Selected):
        every = all_keys(problems.items)
        return [every[at] for at in problems.positions]
    kept: list[tuple[str, str]] | None = getattr(problems, "keys", None)
    return [keys_of(problem) for problem in problems] if kept is None else kept


def trained_on(train: Sequence[Problem], held_out: Mapping[str, Sequence[Problem]]) -> dict[str, list[str]]:
    """Of each split the ids of the problems that are among `train`."""
    ids, texts = set(), set()
    for each, text in all_keys(train):
        ids.add(each)
        texts.add(text)
    texts.discard("")
    found = {}
    for name, split in held_out.items():
        keys = [keys_of(problem) for problem in split]
        found[name] = [each for each, text in keys if each in ids or text in texts]
    return found
