r"""The one measure of similarity between texts: the 8-grams of words that they share. The text and
the names of a problem.

Words are the matches of `[a-z]+|\d+` in the lower-cased text, letters of other alphabets included.
Layout, markup and punctuation do not count; names and numbers do. A text of fewer than eight words
is one 8-gram.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

Gram = tuple[str, ...]
SIZE = 8
NAME_FIELDS = (
    "id",
    "question_id",
    "task_id",
    "problem_id",
    "slug",
    "title",
    "question_title",
    "name",
    "url",
)
_WORD = re.compile(r"[^\W\d_]+|\d+")


def words(text: str) -> list[str]:
    """Return the words of a text."""
    return _WORD.findall(text.lower())


def ngrams(words: list[str]) -> set[Gram]:
    """Return the distinct 8-grams: one of the whole text if it has fewer words, none without
    words."""
    if len(words) < SIZE:
        return {tuple(words)} if words else set()
    return set(zip(*(words[start:] for start in range(SIZE)), strict=False))


def problem_text(statement: str, starter_code: str | None) -> str:
    """Return the text of the task: the statement, and the starter code if it has a docstring or
    comments."""
    if starter_code and any(mark in starter_code for mark in ('"""', "'''", "#")):
        return f"{statement}\n{starter_code}"
    return statement


def names_in(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the ids, titles and other names in a row's fields."""
    found = (row.get(field) for field in NAME_FIELDS)
    return tuple(dict.fromkeys(str(name) for name in found if isinstance(name, str | int)))
