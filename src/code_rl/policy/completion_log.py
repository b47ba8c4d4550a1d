"""Answers and verdicts of steps that no checkpoint covers yet. A resumed run reuses them instead of
paying for them again.

`inflight/STEP.jsonl` has a row for each answer, keyed by its sampling request, and a row for each
verdict, keyed by the program. A row is written as soon as its answer or verdict arrives.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from code_rl.grading import Verdict
from code_rl.util.files import KeyedLog, digest, size_of, sync_directory

INFLIGHT = "inflight"
EVALUATIONS = "evaluations"
"""The subfolder for evaluations. Its files are named after the number of finished steps."""
Program = tuple[bool, str | None]
"""(True if only the public tests are run, the source code or None)"""


@dataclass(frozen=True, slots=True)
class SamplingRequest:
    """One sampling request: `count` answers to a prompt, drawn from `seed`."""

    prompt_tokens: Sequence[int]
    count: int
    max_tokens: int
    temperature: float
    seed: int


class SampledAnswer(NamedTuple):
    """One sampled answer: T tokens, the sampler's logprobs_T, and why it ended (`stop` or
    `length`)."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop_reason: str


@dataclass(frozen=True, slots=True)
class SampledAnswers:
    """The answers to one request.

    They arrived `sample_s` seconds after their group began, sampled from the weights after
    `policy_step` training steps.
    """

    answers: tuple[SampledAnswer, ...]
    sample_s: float
    policy_step: int


class InFlight:
    """The folder, with one log for each step."""

    def __init__(self, folder: Path) -> None:
        """Make the folder, for its owner only, if it is missing; its parent exists. Raises
        OSError."""
        self.folder = folder
        self._logs: dict[int, KeyedLog[str]] = {}
        folder.mkdir(mode=0o700, exist_ok=True)

    def group_log(self, step: int, scope: str) -> GroupLog:
        """Return the log of the group `scope` of a step; groups of a step share its file, which the
        first call makes or reads. Raises DataError for a damaged file."""
        if step not in self._logs:
            self._logs[step] = open_kept(step_file(self.folder, step))
        return GroupLog(self._logs[step], scope)

    def sync(self, steps: Sequence[int]) -> dict[str, int]:
        """Make these steps' files durable (fsync). Return the bytes of each by its path in the run
        directory, `inflight/STEP.jsonl`; steps without a file are left out."""
        lengths = {}
        for step in steps:
            path = step_file(self.folder, step)
            if path.exists():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
                lengths[f"{INFLIGHT}/{path.name}"] = size_of(path)
        sync_directory(self.folder)
        return lengths

    def keep_from(self, step: int) -> None:
        """Close and delete the logs of steps before `step`. A run that resumes there does not need
        them."""
        for earlier in steps_in(self.folder):
            if earlier < step:
                step_file(self.folder, earlier).unlink(missing_ok=True)
        for earlier in [each for each in self._logs if each < step]:
            self._logs.pop(earlier).close()

    def close(self) -> None:
        """Close every file, which keeps its rows. Idempotent."""
        for log in self._logs.values():
            log.close()


class GroupLog:
    """The kept answers and verdicts of the group `scope`. Without a `log` it keeps nothing."""

    def __init__(self, log: KeyedLog[str] | None = None, scope: str = "") -> None:
        self._log, self._scope = log, scope

    def sampled(self, request: SamplingRequest) -> SampledAnswers | None:
        """Return the kept answers to an equal request (prompt, count, token limit, temperature and
        seed), or None."""
        row = self._get("drawn", asdict(request))
        if row is None:
            return None
        answers = [
            SampledAnswer(tuple(tokens), tuple(logprobs), why)
            for tokens, logprobs, why in row["answers"]
        ]
        return SampledAnswers(tuple(answers), row["sample_s"], row["policy_step"])

    def keep_sampled(self, request: SamplingRequest, sampled: SampledAnswers) -> None:
        """Keep the answers to a request: a row is appended at once and survives a kill of this
        process. Raises OSError if the disk is full."""
        self._put("drawn", asdict(request), asdict(sampled))

    def verdict(self, program: Program) -> Verdict | None:
        """Return the kept verdict of a program, or None. Undecided verdicts are never kept."""
        row = self._get("judged", program)
        return None if row is None else Verdict.restore(row["verdict"])

    def keep_verdict(self, program: Program, verdict: Verdict) -> None:
        """Keep a verdict, unless it is undecided: a resumed run then judges the program again.
        Raises OSError if the disk is full."""
        if not verdict.undecided:
            self._put("judged", program, {"verdict": asdict(verdict)})

    def output(self, commands: Sequence[str]) -> str | None:
        """Return the kept output of the last of these commands, run after the others, or None."""
        row = self._get("ran", list(commands))
        return None if row is None else str(row["output"])

    def keep_output(self, commands: Sequence[str], output: str) -> None:
        """Keep the output of the last of these commands, run after the others."""
        self._put("ran", list(commands), {"output": output})

    def _get(self, kind: str, what: object) -> dict[str, Any] | None:
        """Return the row of a `kind` that is kept under a JSON-able key, or None."""
        return None if self._log is None else self._log.get(self._key(kind, what))

    def _put(self, kind: str, what: object, row: Mapping[str, Any]) -> None:
        """Append the row of a `kind` under a JSON-able key. Does nothing without a log."""
        if self._log is not None:
            self._log.put({"key": self._key(kind, what), **row})

    def _key(self, kind: str, what: object) -> str:
        """Return the key in the file. Resumed runs look for keys of earlier processes, so it must
        not change."""
        return f"{kind} {self._scope} {digest(what)}"


def open_kept(path: Path) -> KeyedLog[str]:
    """Open the log of one step at `path`, which is made if it is missing; an incomplete last line
    is cut off. Raises DataError for a damaged file."""
    return KeyedLog(path, itemgetter("key"))


def step_file(folder: Path, step: int) -> Path:
    """Return the path of one step's file, `STEP.jsonl` with six digits. Nothing is made."""
    return folder / f"{step:06d}.jsonl"


def steps_in(folder: Path) -> list[int]:
    """Return the steps that have a file, in ascending order."""
    return sorted(int(path.stem) for path in folder.glob("*.jsonl") if path.stem.isdigit())
