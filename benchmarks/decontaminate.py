"""The finds of `code-rl prepare decontaminate=` on public sets, right and wrong.

    python benchmarks/decontaminate.py data=$CODE_RL_DATA

- The rows of LeetCodeDataset v0.3.1-test that overlap with the prompts of LiveCodeBench v5, which are named once, three and six times; and named beside five
  copies that are each edited: another line before the text, and one word in fifty left out.
- Edited copies: 40 of LiveCodeBench's prompts and 40 of HumanEval's, in 1, 7 and 24 copies each, of which 2, 3, 5 and 8% of the words are replaced by words of
  the set, left out or followed by one: how many of the copies are kept.
- HumanEval told as prose, a docstring on one line, the function's name in it as it is and another: how many of the problems are found in HumanEval. One without
  a docstring is left out.
- Every second problem of LeetCodeDataset v0.2.0-train against the others: every find is wrong, but for problems that are told twice. Each pair is
  printed.
"""

from __future__ import annotations

import ast
import dataclasses
import itertools
import json
import random
import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import chz

from code_rl.cli.main import run_script
from code_rl.data.preparation.copies import Decontaminator, EvaluationProblem, Pair, evaluation_problems
from code_rl.data.preparation.normalise import open_source
from code_rl.data.preparation.workspace import summarize
from code_rl.data.sources.records import Skipped
from code_rl.grading.problem import Problem, StdinTest
from code_rl.util.data_files import data_folder, stream_rows

TIMES = (1, 3, 6)
LEFT_OUT = 0.02
LEAKED = 40
COPIES = (1, 7, 24)
EDITED = (0.02, 0.03, 0.05, 0.08)


@chz.chz
class DecontaminateBenchmark:
    """Settings of the benchmark."""

    data: str = chz.field(default_factory=lambda: str(data_folder()), doc="Where the public files lie.")
    containment: float = chz.field(default=0.35, doc="As prepare's.")
    seed: int = chz.field(default=0, doc="Which words the edited copies lack.")


def problems_of(file: Path) -> list[Problem]:
    """The problems of a file, whose tests need not be settled here."""
    items = open_source(str(file)).items()
    return [item if isinstance(item, Problem) else item.problem for item in items if not isinstance(item, Skipped)]


def overlapping(problems: Sequence[Problem], exams: Sequence[EvaluationProblem], containment: float) -> list[Pair]:
    """The problems that overlap with one of `exams`. Their tests have no part in it."""
    some = StdinTest("", "0")
    entries = [summarize(dataclasses.replace(one, tests=(some,)), place, b"") for place, one in enumerate(problems)]
    found = Decontaminator(exams, containment)
    return [pair for entry in entries if (pair := found.find(entry)) is not None]


def edited(exam: EvaluationProblem, copy: int, seed: int) -> EvaluationProblem:
    """A copy of an evaluation problem with a line of its own in front, and without some of its words."""
    rng = random.Random(f"{seed}/{copy}/{exam.id}")
    kept = (part for part in re.split(r"(\s+)", exam.text) if part.isspace() or rng.random() >= LEFT_OUT)
    return dataclasses.replace(
        exam, text=f"Copy {'abcdefgh'[copy]}, made on day {rng.randint(1, 365)}.\n{''.join(kept)}"
    )


def scattered_edits(text: str, share: float, spare: Sequence[str], rng: random.Random) -> str:
    """`text` with a share of its words replaced by one of `spare`, left out, or followed by one."""
    parts = re.split(r"(\s+)", text)
    for place, word in enumerate(parts):
        if word.strip() and rng.random() < share:
            parts[place] = rng.choice((rng.choice(spare), "", f"{word} {rng.choice(spare)}"))
    return "".join(parts)


def kept_copies(exams: Sequence[EvaluationProblem], copies: int, share: float, config: DecontaminateBenchmark) -> str:
    """How many of so many edited copies of each of LEAKED problems of `exams` are not found."""
    rng = random.Random(f"{config.seed}/{copies}/{share}")
    spare = sorted({word for exam in exams for word in exam.text.split()})
    leaked = [exam for exam in rng.sample(exams, LEAKED) for _ in range(copies)]
    made = [
        Problem(f"{exam.id} {place}", scattered_edits(exam.text, share, spare, rng), (StdinTest("", "0"),))
        for place, exam in enumerate(leaked)
    ]
    kept = len(made) - len(overlapping(made, exams, config.containment))
    return f"{100 * share:.0f}%: {kept} of {len(made)} ({100 * kept / len(made):.1f}%)"


def as_prose(row: dict[str, str], name: str) -> Problem | None:
    """The task of a HumanEval row: its docstring on one line, which calls the function `name`; None where it has none."""
    functions = [part for part in ast.parse(row["prompt"] + "    pass\n").body if isinstance(part, ast.FunctionDef)]
    told = next((ast.get_docstring(part) for part in functions if part.name == row["entry_point"]), None)
    if told is None:
        return None
    prose = re.sub(rf"\b{row['entry_point']}\b", name, " ".join(told.split()))
    return Problem(f"prose-{row['task_id']}", f"Write a function. {prose}", (StdinTest("", "0"),))


def run(config: DecontaminateBenchmark) -> int:
    """All of them."""
    data, started = Path(config.data), time.monotonic()
    problems = problems_of(data / "leetcode" / "LeetCodeDataset-v0.3.1-test.jsonl.gz")
    exams = list(evaluation_problems(str(data / "qwq_lcb_prompts")))
    for times in TIMES:
        found = overlapping(problems, exams * times, config.containment)
        print(
            f"LeetCode v0.3.1 test, {len(exams)} prompts of LiveCodeBench v5 named {times} times: {len(found)} of {len(problems)}"
        )
    copies = [edited(exam, copy, config.seed) for copy in range(max(TIMES) - 1) for exam in exams]
    found = overlapping(problems, [*exams, *copies], config.containment)
    print(f"the same beside {max(TIMES) - 1} edited copies of each: {len(found)} of {len(problems)}", flush=True)
    own = data / "humaneval" / "HumanEval.jsonl.gz"
    for name, some in (("LiveCodeBench", exams), ("HumanEval", list(evaluation_problems(str(own))))):
        for count in COPIES:
            row = ", ".join(kept_copies(some, count, share, config) for share in EDITED)
            print(f"kept of {count} edited copies of each of {LEAKED} problems of {name}: {row}", flush=True)
    for name in ("", "solve"):
        rows = map(dict, stream_rows(own))
        told = [prose for row in rows if (prose := as_prose(row, name or row["entry_point"])) is not None]
        found = overlapping(told, list(evaluation_problems(str(own))), config.containment)
        right = sum(pair.id == f"prose-{pair.eval_id}" for pair in found)
        missed = ", ".join(sorted({one.id for one in told} - {pair.id for pair in found}))
        print(
            f"HumanEval as prose, {name or 'its own name'}: {right} of {len(told)} are found; not: {missed}", flush=True
        )
    file = data / "leetcode" / "LeetCodeDataset-v0.2.0-train.jsonl.gz"
    train = problems_of(file)[1::2]
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as even:
        even.writelines(json.dumps(row) + "\n" for row in itertools.islice(stream_rows(file), 0, None, 2))
        even.flush()
        found = overlapping(train, list(evaluation_problems(even.name)), config.containment)
    print(f"LeetCode v0.2.0 train, odd against even: {len(found)} of {len(train)}")
    for pair in found:
        print(f"    {pair.id} ~ {pair.eval_id}: {pair.why}, {pair.share:.2f}")
    print(f"{time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    run_script(DecontaminateBenchmark, run, __doc__ or "")
