"""Suggestions for an unknown name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

OF_A_RUN = ("log_path", "checkpoint", "run")
"""What verbs call a run, and what may be tried in its place."""


def suggestion(name: str, known: Iterable[str]) -> str:
    """`, did you mean 'x'?` for the known name of a run in place of another, that with these
    initials (`lr`), the closest, or nothing."""
    known = list(known)
    meant = [each for each in OF_A_RUN if name in OF_A_RUN and each in known]
    meant += [
        each
        for each in known
        if "_" in each and name == "".join(word[:1] for word in each.split("_"))
    ]
    close = meant or difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f", did you mean {close[0]!r}?" if close else ""
