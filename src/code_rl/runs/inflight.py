"""Answers and verdicts of steps that no checkpoint covers yet, so that a resumed run buys nothing twice.

`inflight/STEP.jsonl` has a sealed line per reply of the sampler (`drawn`: a turn of one member, or the first of several) and per program judged
(`judged`), each written the moment it is there. A line that is torn or altered is left out: what it held is sampled or judged again.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from code_rl.files import (
    Mark,
    append_whole,
    drop_torn_line,
    mark_of,
    open_private_bytes,
    raw_lines,
    seal,
    sync_directory,
    unseal,
)
from code_rl.judging.verdict import Failure, Verdict, VerdictKind

INFLIGHT = "inflight"
EVALUATIONS = "evaluations"
"""Inside it, the same for evaluations that are under way: step + 1, position of the problem, kind of draw."""
Place = tuple[int, int, int]
"""Step, place in the batch, attempt."""
Answer = tuple[int, int]
"""Member of the group, number of the turn."""
Program = tuple[bool, str | None]
"""Whether on the public tests alone, and the source (None: the answer has none)."""


@dataclass(frozen=True, slots=True)
class SampledAnswer:
    """One sampled answer: T tokens, the sampler's logprobs_T, and why it ended (`stop` or `length`)."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop_reason: str


@dataclass(frozen=True, slots=True)
class Request:
    """What a group was asked with. Answers to another request are not this group's."""

    problem_id: str
    prompt_tokens: Sequence[int]
    count: int
    max_tokens: int
    seed: int

    def facts(self) -> dict[str, Any]:
        """The request as the lines hold it."""
        return {
            "problem": self.problem_id,
            "prompt": fingerprint(self.prompt_tokens),
            "count": self.count,
            "max_tokens": self.max_tokens,
            "seed": self.seed,
        }


def fingerprint(tokens: Sequence[int]) -> int:
    """A short name for a prompt."""
    return zlib.crc32(b"".join(token.to_bytes(8, "little") for token in tokens))


class InFlight:
    """The folder, and what earlier processes left in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._earlier: dict[int, dict[tuple[int, int], GroupLog]] = {}
        folder.mkdir(mode=0o700, exist_ok=True)

    def group_log(self, place: Place) -> GroupLog:
        """Where the completions of one group are kept, with those that are there already."""
        step, *where = place
        return self._of(step).pop((where[0], where[1]), None) or GroupLog(step_file(self.folder, step), *where)

    def policy_step(self, step: int) -> int | None:
        """The training steps behind the weights that sampled what is kept of a step; None when nothing is."""
        return next((record["policy_step"] for log in self._of(step).values() for record in log.earlier_answers), None)

    def _of(self, step: int) -> dict[tuple[int, int], GroupLog]:
        if step not in self._earlier:
            drop_torn_line(step_file(self.folder, step))
            self._earlier[step] = read_group_logs(step_file(self.folder, step))
        return self._earlier[step]

    def sync(self, steps: Sequence[int]) -> dict[str, Mark]:
        """The marks of these steps' files, by name in the run directory; they are on disk when this returns."""
        marks = {}
        for step in steps:
            path = step_file(self.folder, step)
            if path.exists():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
                mark = mark_of(path)
                assert mark is not None
                marks[f"{INFLIGHT}/{path.name}"] = mark
        sync_directory(self.folder)
        return marks

    def keep_from(self, step: int) -> None:
        """Forget the steps before `step`."""
        for earlier in steps_in(self.folder):
            if earlier < step:
                self.forget(earlier)

    def forget(self, step: int) -> None:
        """Drop what is kept of a step."""
        step_file(self.folder, step).unlink(missing_ok=True)
        self._earlier.pop(step, None)


class GroupLog:
    """One group under way: `answers` and `verdicts` of programs, as far as they are known.

    `earlier_answers` and `earlier_judged` are what an earlier process left of it, until it is opened. Without a `path` nobody keeps it.
    """

    def __init__(self, path: Path | None = None, place: int = 0, attempt: int = 0) -> None:
        self._path, self._where = path, {"place": place, "attempt": attempt}
        self.earlier_answers: list[dict[str, Any]] = []
        self.earlier_judged: dict[Program, Verdict] = {}
        self._request: dict[str, Any] = {}
        self._prompts: dict[Answer, int] = {}
        self.answers: dict[Answer, SampledAnswer] = {}
        self.verdicts: dict[Program, Verdict] = {}
        self.policy_step: int | None = None
        self.sample_s = 0.0

    def open(self, request: Request) -> None:
        """Take what an earlier process got for the same request."""
        self._request = request.facts()
        for record in self.earlier_answers:
            if any(record.get(name) != value for name, value in self._request.items()):
                continue
            turn = record.get("turn", 0)
            for member, each in enumerate(record["sequences"], record["first"]):
                self.answers[member, turn] = SampledAnswer(tuple(each["tokens"]), tuple(each["logprobs"]), each["stop"])
                self._prompts[member, turn] = record.get("turn_prompt", record["prompt"])
            self.policy_step = record["policy_step"]
            self.sample_s = max(self.sample_s, record["sample_s"])
        self.verdicts = self.earlier_judged if self.answers else {}
        self.earlier_answers, self.earlier_judged = [], {}

    def has(self, answer: Answer, prompt: Sequence[int]) -> bool:
        """True when this answer, to this prompt, is there."""
        return answer in self.answers and (answer[1] == 0 or self._prompts[answer] == fingerprint(prompt))

    def keep_answers(
        self,
        first: Answer,
        prompt: Sequence[int],
        sequences: Sequence[SampledAnswer],
        sample_s: float,
        policy_step: int,
    ) -> None:
        """Keep answers that were sampled just now, one a member from `first` on, `sample_s` seconds after they were asked for."""
        member, turn = first
        for number, sequence in enumerate(sequences, member):
            self.answers[number, turn] = sequence
        self.policy_step = policy_step if self.policy_step is None else self.policy_step
        self.sample_s = max(self.sample_s, sample_s)
        drawn = [{"tokens": each.tokens, "logprobs": each.logprobs, "stop": each.stop_reason} for each in sequences]
        facts = {"first": member, "policy_step": policy_step, "sample_s": sample_s, "sequences": drawn}
        later = {"turn": turn, "turn_prompt": fingerprint(prompt)} if turn else {}
        self._append({"kind": "drawn", **self._where, **self._request, **facts, **later})

    def keep_verdict(self, program: Program, verdict: Verdict) -> None:
        """Keep the verdict of a program; the same program in other answers needs none of its own. What says nothing of it is asked again by a resumed run."""
        self.verdicts[program] = verdict
        public, code = program
        if not verdict.undecided:
            self._append({"kind": "judged", **self._where, "public": public, "code": code, "verdict": asdict(verdict)})

    def _append(self, record: Mapping[str, Any]) -> None:
        if self._path is not None:
            with open_private_bytes(self._path) as file:
                append_whole(file, seal(record).encode())


def step_file(folder: Path, step: int) -> Path:
    """The file of one step."""
    return folder / f"{step:06d}.jsonl"


def steps_in(folder: Path) -> list[int]:
    """The steps that have a file, in order."""
    return sorted(int(path.stem) for path in folder.glob("*.jsonl") if path.stem.isdigit())


def read_inflight(path: Path) -> Iterator[dict[str, Any]]:
    """The whole records of one step's file; what is torn or altered is left out."""
    return filter(None, map(unseal, raw_lines(path)))


def read_group_logs(path: Path) -> dict[tuple[int, int], GroupLog]:
    """One step's file by place and attempt; a record without its facts is left out."""
    found: dict[tuple[int, int], GroupLog] = {}
    for record in read_inflight(path):
        with contextlib.suppress(KeyError, TypeError, ValueError):
            where = int(record["place"]), int(record["attempt"])
            log = found.setdefault(where, GroupLog(path, *where))
            if record["kind"] == "judged":
                log.earlier_judged[bool(record["public"]), record["code"]] = _verdict(record["verdict"])
            elif int(record["first"]) >= 0:
                log.earlier_answers.append(record)
    return found


def _verdict(kept: Mapping[str, Any]) -> Verdict:
    failure = None if kept["failure"] is None else Failure(**kept["failure"])
    values = {name: _tuples(value) for name, value in kept.items()}
    return Verdict(**{**values, "kind": VerdictKind(kept["kind"]), "failure": failure})


def _tuples(value: Any) -> Any:
    """`value` as a frozen record has it: JSON has lists for its tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
