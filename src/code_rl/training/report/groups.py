"""One line of `rollouts.jsonl` in the page's form. Lines of another version or damaged lines may
lack fields, which are then left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from code_rl.grading import extract_code
from code_rl.training.report.heuristics import flags
from code_rl.training.report.token_decoder import TokenDecoder

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
UNKNOWN = "?"

MAX_STEP = 2**40
CLIP_CHARS = 24_000
CLIP_TOKENS = 6_000
CLIP_TEST = 20_000
CLIP_NAME = 400


@dataclass(slots=True)
class Tally:
    """The sums over the rollouts of one step."""

    completions: int = 0
    tokens: int = 0
    longest: int = 0
    none_solved: int = 0
    some_solved: int = 0
    all_solved: int = 0

    def add(self, samples: Sequence[Mapping[str, Any]], letters: str) -> None:
        """Count one group."""
        for sample in samples:
            length = len(as_list(sample.get("tokens")))
            self.completions += 1
            self.tokens += length
            self.longest = max(self.longest, length)
        judged = letters.replace("s", "").replace(UNKNOWN, "")
        solved = judged.count("p")
        self.none_solved += bool(judged) and solved == 0
        self.some_solved += 0 < solved < len(judged)
        self.all_solved += bool(judged) and solved == len(judged)

    def metrics(self) -> dict[str, float]:
        """Return the sums as columns beside those of `metrics.jsonl`."""
        row: dict[str, float] = {
            "rollouts/none_solved": self.none_solved,
            "rollouts/some_solved": self.some_solved,
            "rollouts/all_solved": self.all_solved,
        }
        if self.completions:
            row |= {
                "rollouts/length_mean": self.tokens / self.completions,
                "rollouts/length_max": self.longest,
            }
        return row


def samples_of(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the completions of a group without those that are not JSON objects."""
    return [sample for sample in as_list(record.get("completions")) if isinstance(sample, dict)]


def letters_of(samples: Sequence[Mapping[str, Any]]) -> str:
    """One letter per completion for its verdict."""
    return "".join(
        LETTERS.get(sample.get("verdict") or "", UNKNOWN)
        if isinstance(sample.get("verdict"), str)
        else UNKNOWN
        for sample in samples
    )


def step_of(record: Mapping[str, Any]) -> int | None:
    """The step, or None if it is invalid."""
    step = record.get("step")
    return (
        step
        if isinstance(step, int) and not isinstance(step, bool) and -1 <= step < MAX_STEP
        else None
    )


def as_list(value: Any) -> list[Any]:
    """Return `value` if it is a list, else an empty list."""
    return value if isinstance(value, list) else []


def as_text(value: Any, limit: int = CLIP_CHARS) -> str:
    """Return a string, with its middle cut out if it is long."""
    text = value if isinstance(value, str) else "" if value is None else str(value)
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode("utf-8")
    if len(text) <= limit:
        return text
    head, tail = limit // 3, limit - limit // 3
    return f"{text[:head]}\n[… {len(text) - limit} characters are left out here …]\n{text[-tail:]}"


def as_number(value: Any) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if isfinite(number) else None


def values_of(records: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """A metric's finite values, in the order of its records."""
    return [value for record in records if (value := as_number(record.get(name))) is not None]


def percent(share: float) -> str:
    """Return a share as text, in per cent."""
    return f"{100 * share:.1f}%"


def group_flags(record: Mapping[str, Any], samples: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The flags of each completion."""
    tests = public_tests(record)
    stdin = not any(test["call"] for test in tests)
    known: dict[tuple[str, str], list[str]] = {}
    found = []
    for sample in samples:
        failure = sample.get("failure")
        message = as_text(failure.get("message"), 2_000) if isinstance(failure, dict) else ""
        key = as_text(sample.get("text")), message
        if key not in known:
            known[key] = flags(extract_code(key[0]), key[1], tests, stdin)
        found.append(known[key])
    return found


def public_tests(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the public tests of a group: index, input and expected output as text."""
    tests = []
    for test in as_list(record.get("public_tests")):
        if isinstance(test, dict):
            number = as_number(test.get("test"))
            shown = {key: as_text(test.get(key), CLIP_TEST) for key in ("input", "expected")}
            tests.append({"test": number, "call": bool(test.get("call")), **shown})
    return tests


def problem_record(record: Mapping[str, Any], pieces: TokenDecoder | None) -> dict[str, Any]:
    """Return the page's record of a problem: statement, prompt as the model read it, public
    tests."""
    prompt = _ids(record.get("prompt_tokens"))
    return {
        "id": as_text(record.get("problem_id"), CLIP_NAME),
        "statement": as_text(record.get("statement")),
        "prompt": as_text(pieces.join(prompt)) if pieces and prompt else None,
        "tests": public_tests(record),
    }


def group_record(
    samples: Sequence[Mapping[str, Any]],
    flags_G: Sequence[Sequence[str]],
    pieces: TokenDecoder | None,
) -> list[dict[str, Any]]:
    """Return the page's record of each completion of a group."""
    return [
        _sample(sample, flagged, pieces) for sample, flagged in zip(samples, flags_G, strict=True)
    ]


def _sample(
    sample: Mapping[str, Any], flagged: Sequence[str], pieces: TokenDecoder | None
) -> dict[str, Any]:
    failure = sample.get("failure")
    shown: dict[str, Any] = {
        "text": as_text(sample.get("text")),
        "reward": as_number(sample.get("reward")),
        "advantage": as_number(sample.get("advantage")),
        "verdict": as_text(sample.get("verdict"), 60) or "unknown",
        "passed": as_number(sample.get("passed")),
        "total": as_number(sample.get("total")),
        "truncated": bool(sample.get("truncated")),
        "masked": as_text(sample.get("masked"), 60) or None,
        "length": len(as_list(sample.get("tokens"))),
    }
    turns = [_earlier(turn) for turn in as_list(sample.get("turns")) if isinstance(turn, dict)]
    if turns:
        shown["turns"] = turns
    if flagged:
        shown["flags"] = list(flagged)
    if isinstance(failure, dict):
        shown["failure"] = {
            "test": as_number(failure.get("test")),
            "public": bool(failure.get("public")),
            "message": as_text(failure.get("message"), 2_000),
            "got": as_text(failure.get("got")) or None,
        }
    tokens = _ids(sample.get("tokens"))
    logprobs = [
        value if type(value) is float and isfinite(value) else as_number(value)
        for value in as_list(sample.get("logprobs"))
    ]
    if pieces and tokens and len(tokens) == len(logprobs):
        shown |= _shading(tokens, logprobs, pieces)
    return shown


def _earlier(turn: Mapping[str, Any]) -> dict[str, Any]:
    """Return an earlier turn: the answer, its verdict on the public tests, and the environment's
    message."""
    said = [
        as_text(message.get("content"))
        for message in as_list(turn.get("messages"))
        if isinstance(message, dict)
    ]
    verdict = as_text(turn.get("verdict"), 60) or "unknown"
    return {"text": as_text(turn.get("text")), "verdict": verdict, "said": "\n\n".join(said)}


def _shading(
    tokens: Sequence[int], logprobs: Sequence[float | None], pieces: TokenDecoder
) -> dict[str, Any]:
    """Return the tokens' texts and their logprobs in hundredths. A very long completion loses its
    middle."""
    texts = pieces.split(tokens)
    hundredths = [
        None if value is None else round(100 * value) if value > -99 else -9999
        for value in logprobs
    ]
    if len(texts) > CLIP_TOKENS:
        head, tail = CLIP_TOKENS // 3, CLIP_TOKENS - CLIP_TOKENS // 3
        gap = f"[… {len(texts) - CLIP_TOKENS} tokens are left out here …]"
        texts, hundredths = (
            [*texts[:head], gap, *texts[-tail:]],
            [*hundredths[:head], None, *hundredths[-tail:]],
        )
    return {"pieces": texts, "logprobs": hundredths}


def _ids(value: Any) -> list[int]:
    ids = as_list(value)
    return ids if all(isinstance(token, int) and token >= 0 for token in ids) else []
