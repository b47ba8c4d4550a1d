"""Samples and verdicts of an evaluation as records and as JSON lines, and files of samples made
elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

from code_rl.grading import Verdict, VerdictKind, extract_code
from code_rl.policy.completion_log import INFLIGHT, GroupLog, open_kept
from code_rl.util.data_files import read_rows
from code_rl.util.errors import DataError
from code_rl.util.files import KeyedLog

Mode = Literal["sampled", "greedy"]
SAMPLED: Mode = "sampled"
GREEDY: Mode = "greedy"

NUMBERED = ("mode", "sample", "truncated", "prompt_tokens", "completion_tokens")
"""Optional fields of a stored sample, besides its text."""

Key = tuple[str, Mode, int]
"""Problem, mode and number of a sample, which identify it in every file."""


class HoldsProgram:
    """A record with a program (`code`) or an answer that holds one (`completion`)."""

    __slots__ = ()
    completion: str | None
    code: str | None

    def program(self, language: str = "python") -> str | None:
        """Return the program to judge, or None if there is none: `code`, or the last fenced block
        of `completion`; `language` is that of the problem."""
        return self.code if self.completion is None else extract_code(self.completion, language)


@dataclass(frozen=True, slots=True)
class Sample(HoldsProgram):
    """One completion (`completion`: a chat answer whose last fenced block counts) or one program
    (`code`).

    `verdict` is set if the program was judged during generation; it is not stored in files of
    samples.
    """

    problem_id: str
    mode: Mode
    sample: int
    completion: str | None = None
    code: str | None = None
    truncated: bool = False
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    verdict: Verdict | None = None

    @property
    def key(self) -> Key:
        """The sample's key: problem, mode and number."""
        return self.problem_id, self.mode, self.sample

    def to_json(self) -> dict[str, Any]:
        """Return one line of `samples.jsonl`, without the verdict; `sample_from_json` reads it."""
        row = asdict(replace(self, verdict=None, seconds=round(self.seconds, 3)))
        del row["verdict"]
        return row


def sample_from_json(row: Mapping[str, Any]) -> Sample:
    """Return the sample of a row; inverse of `Sample.to_json`. Raises KeyError, TypeError or
    ValueError for a malformed row."""
    sample = Sample(
        **{name: value for name, value in row.items() if name in Sample.__dataclass_fields__}
    )
    counts = (sample.sample, sample.prompt_tokens, sample.completion_tokens)
    fits = sample.mode in (SAMPLED, GREEDY) and isinstance(sample.truncated, bool)
    if not fits or any(type(count) is not int or count < 0 for count in counts):
        raise ValueError(f"mode, truncated, number or tokens of {sample!r:.200}")
    return sample


def read_stored(path: str, known: Mapping[str, str | None]) -> dict[str, list[Sample]]:
    """Read samples made elsewhere, by problem. They are numbered from 0, by their own numbers or by
    their order in the file. Their fields identify the layout:

    - ours: `{"problem_id", "completion" or "code"[, "sample", "mode", "truncated", …]}`, JSON
      lines;
    - evalplus: `{"task_id", "solution"}` (a program) or `{"task_id", "completion"}` (the text after
      the prompt), JSON lines;
    - LiveCodeBench: a JSON array of `{"question_id", "code_list"[, "output_list"]}`, its custom
      evaluator's and its own outputs.

    `known` maps problem ids to the text that an evalplus completion continues (None: it cannot).
    Raises DataError, naming the row, for any other layout, an unknown id, or two different samples
    with one number; a repeated equal sample counts once.
    """
    stored: dict[str, dict[Key, Sample]] = {}
    for where, row in read_rows(path):
        for problem_id, fields in _read_row(row, where):
            if problem_id not in known:
                raise DataError(
                    f"{where}: problem {problem_id!r} is none of the benchmark's {len(known)}"
                )
            if fields.pop("continues", False):
                if (prompt := known[problem_id]) is None:
                    raise DataError(
                        f"{where}: this benchmark has no prompt to be continued; give whole "
                        "programs as solution"
                    )
                fields["code"] = prompt + fields["code"]
            mine = stored.setdefault(problem_id, {})
            mode = fields.setdefault("mode", SAMPLED)
            fields.setdefault("sample", sum(sample.mode == mode for sample in mine.values()))
            try:
                sample = sample_from_json({**fields, "problem_id": problem_id})
            except (TypeError, ValueError) as error:
                raise DataError(f"{where}: not a sample: {error}") from error
            first = mine.setdefault(sample.key, sample)
            if (first.completion, first.code) != (sample.completion, sample.code):
                raise DataError(
                    f"{where}: sample {sample.sample} of problem {problem_id!r} came before, "
                    "with another text"
                )
    return {problem_id: _numbered(mine) for problem_id, mine in stored.items()}


def _numbered(samples: Mapping[Key, Sample]) -> list[Sample]:
    """Return the samples of each mode in order, renumbered from 0 without gaps; unavailable samples
    are left out."""
    met: Counter[Mode] = Counter()
    numbered = []
    for key in sorted(samples, key=itemgetter(2)):
        numbered.append(replace(samples[key], sample=met[key[1]]))
        met[key[1]] += 1
    return numbered


def _read_row(row: Mapping[str, Any], where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (problem id, fields of a sample) of a row in our, evalplus's or LiveCodeBench's form;
    the flag `continues` means that the text follows the prompt. Raises DataError, naming the row
    `where`, for any other form."""
    if "question_id" in row:
        codes = row.get("code_list")
        if not isinstance(codes, list) or not all(isinstance(code, str) for code in codes):
            raise DataError(f"{where}: code_list must be a list of programs")
        yield from ((str(row["question_id"]), {"code": code or None}) for code in codes)
    elif "task_id" in row:
        program = row.get("solution", row.get("completion"))
        if not isinstance(row["task_id"], str) or not isinstance(program, str):
            raise DataError(
                f"{where}: evalplus samples are task_id with solution or completion, strings"
            )
        yield row["task_id"], {"code": program, "continues": "solution" not in row}
    elif isinstance(row.get("problem_id"), str):
        kept = {name: row[name] for name in NUMBERED if row.get(name) is not None}
        yield row["problem_id"], {**text_of(row, where), **kept}
    else:
        raise DataError(
            f"{where}: a sample needs problem_id (ours), task_id (evalplus) or question_id "
            f"(LiveCodeBench); found {sorted(row)[:6]}"
        )


def text_of(row: Mapping[str, Any], where: str) -> dict[str, str]:
    """Return the text of a row's program, under the name `code` or `completion`; empty if that is
    null. Raises DataError, naming the row `where`, for a row with both or none."""
    names = [name for name in ("completion", "code") if name in row]
    texts = {name: row[name] for name in names if row[name] is not None}
    if not names or len(texts) > 1 or not all(isinstance(text, str) for text in texts.values()):
        raise DataError(f"{where}: give either completion or code, a string; found {[*row][:6]}")
    return texts


SAMPLES = "samples.jsonl"
VERDICTS = "verdicts.jsonl"
STATE = "state"
"""The folder of an embedded back end's state while several benchmarks are evaluated."""

Row = dict[str, Any]
"""One line of `verdicts.jsonl`."""


class Folder:
    """The folder `out`. Every sample and verdict is written there before the next step relies on
    it, so an interrupted evaluation can continue."""

    def __init__(self, out: Path) -> None:
        """Open the files of an existing folder, and make missing ones. Raises DataError for a
        damaged file, and OSError."""
        self.samples, self.verdicts = KeyedLog(out / SAMPLES, _key), KeyedLog(out / VERDICTS, _key)
        self._under_way = open_kept(out / f"{INFLIGHT}.jsonl")

    def group_log(self, problem_id: str) -> GroupLog:
        """Return the log of a problem's unfinished work; all problems share its file."""
        return GroupLog(self._under_way, problem_id)

    def left(self, wanted: Callable[[Key], bool]) -> Iterator[tuple[Sample, Row | None]]:
        """Yield the samples of an earlier process that are `wanted`, each with its row of verdicts,
        or None if it is to be judged.

        Verdicts `sandbox_error`, and verdicts without a sample, are removed from the file first.
        Raises DataError for a malformed row.
        """
        judged = [
            key
            for key in self.verdicts
            if key in self.samples
            and (row := self.verdicts.get(key)) is not None
            and row["verdict"] != VerdictKind.SANDBOX_ERROR
        ]
        if len(judged) < len(self.verdicts):
            self.verdicts.rewrite(judged)
        for key in filter(wanted, list(self.samples)):
            try:
                sample = sample_from_json(self.samples.get(key) or {})
            except (KeyError, TypeError, ValueError) as error:
                raise DataError(
                    f"{self.samples.path}: not a sample of an evaluation: {error}; choose "
                    "another out"
                ) from error
            yield sample, self.verdicts.get(key)

    def close(self, *, complete: bool) -> None:
        """Close every file; if the evaluation is `complete`, delete the file of unfinished work.
        Idempotent."""
        for log in (self.samples, self.verdicts, self._under_way):
            log.close()
        if complete:
            self._under_way.path.unlink(missing_ok=True)


def _key(row: Mapping[str, Any]) -> Key:
    """Return the key of a row. Raises KeyError for any other row."""
    return row["problem_id"], row["mode"], row["sample"]


def verdict_row(sample: Sample, verdict: Verdict, format_ok: bool) -> Row:
    """Return one line of `verdicts.jsonl`. `format_ok` is True if the sample has a program."""
    named = {"problem_id": sample.problem_id, "mode": sample.mode, "sample": sample.sample}
    return {**named, **verdict.to_json(), "format_ok": format_ok}
