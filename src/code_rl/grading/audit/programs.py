"""The corpora: programs and the verdicts they deserve, as versioned data in `corpus/`.

The tests of this package judge the same programs.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources

from code_rl.grading.native import problem_from_json
from code_rl.grading.problem import Problem

CHEAT, HONEST, MUTANT, OWNER, TROUBLE = "cheat", "honest", "mutant", "owner", "trouble"
UNPAID = (CHEAT, MUTANT)
STEALING = ("searches memory for others", "other submissions")
"""Classes of programs that look for right programs that ran before them."""
HOLDING = "holds the grader"
READING = "reads the expected output"
_TOKEN = re.compile(rb"TOK-[0-9a-f]{24}")


@dataclass(frozen=True, slots=True)
class CorpusProgram:
    """One program. By `kind`, cheats and mutants deserve no reward, honest programs and owners
    deserve one, and trouble only has to get a verdict."""

    name: str
    kind: str
    group: str
    code: str
    problem: Problem

    @property
    def seeks_token(self) -> bool:
        """True if the right output is a random text of this audit, which only a leak could reveal
        to the program."""
        return self.group == READING and bool(_TOKEN.search(repr(self.problem.tests).encode()))


@dataclass(frozen=True, slots=True)
class Corpus:
    """Programs in the order of their file. `version` is a digest of the content."""

    version: str
    entries: tuple[CorpusProgram, ...]

    def of(self, *kinds: str) -> tuple[CorpusProgram, ...]:
        """Return the programs of these kinds, in the order of the corpus."""
        return tuple(entry for entry in self.entries if entry.kind in kinds)

    def share(self, part: float) -> Corpus:
        """Return about this fraction (0 to 1) of each class, at least one program, in the same
        order and always the same choice. All owners and all programs that seek a token are kept.
        `version` stays that of the whole corpus."""
        seen: set[str] = set()
        kept = []
        for entry in self.entries:
            if (
                entry.kind == OWNER
                or entry.seeks_token
                or entry.group not in seen
                or _fraction_of(entry.name) < part
            ):
                kept.append(entry)
            seen.add(entry.group)
        return Corpus(self.version, tuple(kept))


def load_corpus() -> Corpus:
    """Load all programs. The expected output that some programs look for is random, new in every
    call and in no file; `version`, a digest of the files, does not depend on it."""
    folder = resources.files("code_rl.grading.audit") / "corpus"
    texts = [(folder / name).read_bytes() for name in ("problems.jsonl", "programs.jsonl")]
    drawn = _TOKEN.sub(lambda _: b"TOK-" + secrets.token_hex(12).encode(), texts[0])
    problems = {row["id"]: problem_from_json(row) for row in map(json.loads, drawn.splitlines())}
    return Corpus(
        hashlib.sha256(b"".join(texts)).hexdigest()[:12], tuple(_entries(texts[1], problems))
    )


def _entries(text: bytes, problems: dict[str, Problem]) -> Iterator[CorpusProgram]:
    """Yield the programs of `programs.jsonl` in order, each with its problem. Raises KeyError for a
    problem that is not in `problems`."""
    for row in map(json.loads, text.splitlines()):
        yield CorpusProgram(
            row["name"], row["kind"], row["class"], row["code"], problems[row["problem"]]
        )


def _fraction_of(name: str) -> float:
    """Return a number from 0 up to 1 that depends only on the name, evenly spread over names."""
    return zlib.crc32(name.encode()) / 2**32
