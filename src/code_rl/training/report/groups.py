"""One line of `rollouts.jsonl` in the page's form, with flags on programs worth a look: answers
hard-coded in the source, attempts on the grader, and system calls that the sandbox refused.

A flag is a reason to read the program, never a verdict. Honest programs can have one, and a cheat
can have none.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from statistics import fmean
from typing import Any

from code_rl.grading import VerdictKind, extract_code
from code_rl.training.report.token_decoder import TokenDecoder

HARD_CODED = "hard-coded output"
TAMPERING = "tampering"
BLOCKED = "met a sandbox wall"

_TAMPERING = re.compile(
    r"os\._exit|os\.fork|\batexit\b|excepthook|sys\._getframe|\bf_back\b|gc\.get_objects|"
    r"get_referrers|\bctypes\b|/proc/|"
    r"sys\.modules|__subclasses__|sys\.settrace|sys\.setprofile|importlib\.reload|"
    r"sitecustomize|usercustomize|"
    r"setattr\(\s*(?:builtins|sys|os|json)\b|builtins\.\w+\s*=[^=]|sys\.exit\s*=[^=]|\bunittest\b|"
    r"testing_util|"
    r"os\.exec[lv]|os\.system|\bsubprocess\b|\bptrace\b|os\.kill|__eq__\s*=|def "
    r"__eq__\(self, \w+\):\s*return True"
)
_BLOCKED = re.compile(
    r"PermissionError|Operation not permitted|Permission denied|Bad system "
    r"call|SIGSYS|Read-only file system"
)
_READS_INPUT = re.compile(r"\binput\s*\(|\bstdin\b|open\(\s*0|os\.read|fileinput|/dev/stdin")
_LITERAL = re.compile(
    r"""(?:==|\bin\b|\bcase\b)\s{0,4}[\[\(]?\s{0,4}"""
    r"""(?:"[^"\n]{0,99}"|'[^'\n]{0,99}'|-?\d{1,99}|\[[^\]\n]{0,99}\])\s{0,4}:"""
)
_PRINTS_CONSTANTS = re.compile(
    r"""\A(?:(?!print\s{0,4}\().)*(?:print\s{0,4}\(\s*(?:"[^"\n]*"|'[^'\n]*'|-?[\d.]+)\s*\)"""
    r"""(?:(?!print\s{0,4}\().)*)+\Z""",
    re.DOTALL,
)
MANY_CASES = 4
LONG_ENOUGH = 6


def flags(
    code: str | None, message: str, tests: Sequence[Mapping[str, Any]], reads_stdin: bool
) -> list[str]:
    """Return the flags of one program (`code` None: there is none), in a fixed order. `message` is
    the failure's message; `tests` are the public tests: mappings with "input" and "expected" as
    text."""
    found = []
    if code is not None:
        if _hard_coded(code, tests, reads_stdin):
            found.append(HARD_CODED)
        if _TAMPERING.search(code):
            found.append(TAMPERING)
    if _BLOCKED.search(message):
        found.append(BLOCKED)
    return found


def _hard_coded(code: str, tests: Sequence[Mapping[str, Any]], reads_stdin: bool) -> bool:
    """Return True if answers are in the source: an expected output of 6 characters or more
    verbatim, at least four literal cases, or (with `reads_stdin`) constants printed without reading
    input."""
    if (
        len(_LITERAL.findall(code)) >= MANY_CASES
        and code.count("return") + code.count("print") >= MANY_CASES
    ):
        return True
    for test in tests:
        expected = test["expected"].strip()
        if len(expected) >= LONG_ENOUGH and expected in code:
            return True
    return (
        reads_stdin
        and _PRINTS_CONSTANTS.search(code) is not None
        and _READS_INPUT.search(code) is None
    )


LETTERS = {
    "passed": "p",
    "wrong_answer": "w",
    "time_limit": "t",
    "memory_limit": "m",
    "output_limit": "o",
    "runtime_error": "r",
    "compile_error": "c",
    "no_code": "n",
    "sandbox_error": "s",
    "checker_error": "k",
}
UNDECIDED = {letter for kind, letter in LETTERS.items() if VerdictKind(kind).undecided}
CLIP_CHARS = 24_000
CLIP_TOKENS = 6_000
CLIP_TEST = 20_000
CLIP_NAME = 400
CLIP_MESSAGE = 2_000
_SHOWN = ("reward", "advantage", "verdict", "passed", "total", "truncated", "masked")
_SAMPLE = {*_SHOWN, "text", "tokens", "logprobs", "failure"}
_GROUP = {
    *("step", "group", "attempt", "problem_id", "statement"),
    *("prompt_tokens", "public_tests", "completions"),
}


@dataclass(slots=True)
class Tally:
    """The lengths and outcomes of the rollouts of one step."""

    lengths: list[int] = field(default_factory=list)
    solved: Counter[str] = field(default_factory=Counter)

    def add(self, samples: Sequence[Mapping[str, Any]], letters: str) -> None:
        """Count one group; `letters` has one letter per sample. Completions without a
        verdict do not count for its outcome."""
        self.lengths += [len(sample["tokens"]) for sample in samples]
        judged = [letter for letter in letters if letter not in UNDECIDED]
        right = judged.count("p")
        if judged:
            self.solved["all" if right == len(judged) else "some" if right else "none"] += 1

    def metrics(self) -> dict[str, float]:
        """Return the columns `rollouts/…` beside those of `metrics.jsonl`: groups of which none,
        some or all completions passed, and the mean and the longest completion in tokens."""
        row: dict[str, float] = {
            f"rollouts/{share}_solved": self.solved[share] for share in ("none", "some", "all")
        }
        if self.lengths:
            row["rollouts/length_mean"] = fmean(self.lengths)
            row["rollouts/length_max"] = max(self.lengths)
        return row


def is_group(record: Mapping[str, Any]) -> bool:
    """Return True if a line of `rollouts.jsonl` has all fields that the page reads, so that a file
    of another version is counted as damaged."""
    completions = record.get("completions")
    return (
        record.keys() >= _GROUP
        and all(isinstance(record[name], int) for name in ("step", "group", "attempt"))
        and isinstance(completions, list)
        and all(
            isinstance(sample, dict) and sample.keys() >= _SAMPLE and sample["verdict"] in LETTERS
            for sample in completions
        )
    )


def letters_of(samples: Sequence[Mapping[str, Any]]) -> str:
    """Return one letter per completion for its verdict, in order. Raises KeyError for an unknown
    verdict, which `is_group` excludes."""
    return "".join(LETTERS[sample["verdict"]] for sample in samples)


def as_text(value: object, limit: int = CLIP_CHARS) -> str:
    """Return a value as text that UTF-8 can encode, "" for None. Above `limit` characters its
    middle is replaced by a note."""
    text = "" if value is None else str(value).encode("utf-8", "replace").decode("utf-8")
    if len(text) <= limit:
        return text
    head, tail = limit // 3, limit - limit // 3
    return f"{text[:head]}\n[… {len(text) - limit} characters are left out here …]\n{text[-tail:]}"


def as_number(value: Any) -> float | None:
    """Return a finite number as it is, or None for anything else."""
    return value if isinstance(value, int | float) and isfinite(value) else None


def values_of(records: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """Return a metric's finite values, in the order of its records; others are left out."""
    return [value for record in records if (value := as_number(record.get(name))) is not None]


def percent(share: float) -> str:
    """Return a share (0 to 1) as text, in per cent with one decimal."""
    return f"{100 * share:.1f}%"


def group_flags(record: Mapping[str, Any]) -> list[list[str]]:
    """Return the flags of each completion of a group, in order; the program is that of its last
    answer. Equal answers are searched once."""
    tests = public_tests(record)
    stdin = not any(test["call"] for test in tests)
    known: dict[tuple[str, str], list[str]] = {}
    found = []
    for sample in record["completions"]:
        message = as_text((sample["failure"] or {}).get("message"), CLIP_MESSAGE)
        key = as_text(sample["text"]), message
        if key not in known:
            known[key] = flags(extract_code(key[0]), key[1], tests, stdin)
        found.append(known[key])
    return found


def public_tests(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the public tests of a group, with input and expected output cut to 20,000
    characters."""
    return [
        test | {key: as_text(test[key], CLIP_TEST) for key in ("input", "expected")}
        for test in record["public_tests"]
    ]


def problem_record(record: Mapping[str, Any], pieces: TokenDecoder | None) -> dict[str, Any]:
    """Return the page's record of a problem: statement, prompt as the model read it (None without
    `pieces`, the tokenizer), public tests."""
    return {
        "id": as_text(record["problem_id"], CLIP_NAME),
        "statement": as_text(record["statement"]),
        "prompt": as_text(pieces.join(record["prompt_tokens"])) if pieces else None,
        "tests": public_tests(record),
    }


def group_record(
    record: Mapping[str, Any], flags_G: Sequence[Sequence[str]], pieces: TokenDecoder | None
) -> list[dict[str, Any]]:
    """Return the page's record of each completion of a group, in order. `pieces` None: without
    tokens. The viewer's scripts read these names."""
    pairs = zip(record["completions"], flags_G, strict=True)
    return [_completion_record(sample, flagged, pieces) for sample, flagged in pairs]


def _completion_record(
    sample: Mapping[str, Any], flagged: Sequence[str], pieces: TokenDecoder | None
) -> dict[str, Any]:
    """Return the page's record of one completion: texts clipped, flags if there are any and, with
    `pieces` (None: no tokenizer), its tokens with their shading."""
    failure, tokens = sample["failure"], sample["tokens"]
    shown: dict[str, Any] = {name: sample[name] for name in _SHOWN}
    shown |= {"text": as_text(sample["text"]), "length": len(tokens)}
    if "turns" in sample:
        shown["turns"] = [_earlier(turn) for turn in sample["turns"]]
    if flagged:
        shown["flags"] = list(flagged)
    if failure is not None:
        texts = {"message": as_text(failure["message"], CLIP_MESSAGE)}
        texts["got"] = as_text(failure.get("got"))
        shown["failure"] = failure | texts
    if pieces and tokens:
        shown |= _shading(tokens, sample["logprobs"], pieces)
    return shown


def _earlier(turn: Mapping[str, Any]) -> dict[str, Any]:
    """Return an earlier turn: the answer, its verdict on the public tests, and the environment's
    messages, as clipped text."""
    said = "\n\n".join(as_text(message["content"]) for message in turn["messages"])
    return {"text": as_text(turn["text"]), "verdict": turn["verdict"], "said": said}


def _shading(
    tokens: Sequence[int], logprobs: Sequence[float], pieces: TokenDecoder
) -> dict[str, Any]:
    """Return the tokens' texts and their logprobs in hundredths of a nat, rounded. Above 6,000
    tokens the middle is replaced by a note, whose logprob is None."""
    texts = pieces.split(tokens)
    hundredths: list[int | None] = [round(max(100 * value, -9999)) for value in logprobs]
    if len(texts) > CLIP_TOKENS:
        head, tail = CLIP_TOKENS // 3, CLIP_TOKENS - CLIP_TOKENS // 3
        gap = f"[… {len(texts) - CLIP_TOKENS} tokens are left out here …]"
        texts, hundredths = (
            [*texts[:head], gap, *texts[-tail:]],
            [*hundredths[:head], None, *hundredths[-tail:]],
        )
    return {"pieces": texts, "logprobs": hundredths}
