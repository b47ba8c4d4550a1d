"""Is an evaluation bounded by the sandbox? The same stored completions through `code-rl eval` and through `code-rl judge`.

    python benchmarks/evaluation.py [problems=1055] [samples=8] [tests=2] [turns=2]

Problems of the built-in family with the first `tests` of their tests; every completion is another text, so that none shares a run. Wall
seconds of the two whole commands, start-up and files included, in turn; the faster turn of each counts, since a busy machine only adds.
"""

from __future__ import annotations

import dataclasses
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import chz

from code_rl.cli.main import run_script
from code_rl.data.builtin import BuiltinTrainSet
from code_rl.grading.native import write_problems


@chz.chz
class Settings:
    """Size of the evaluation."""

    problems: int = chz.field(default=1055, doc="Problems: LiveCodeBench release_v6 has so many.")
    samples: int = chz.field(default=8, doc="Completions per problem.")
    tests: int = chz.field(default=2, doc="Tests per problem.")
    turns: int = chz.field(default=2, doc="How often each command runs.")


def write(settings: Settings, folder: Path) -> tuple[Path, Path]:
    """Problems, and completions of which every second one is wrong."""
    problems = [
        dataclasses.replace(problem, tests=problem.tests[: settings.tests])
        for problem in BuiltinTrainSet()[: settings.problems]
    ]
    write_problems(folder / "problems.jsonl", problems)
    with (folder / "programs.jsonl").open("w") as file:
        for problem in problems:
            for number in range(settings.samples):
                code = problem.solutions[0] if number % 2 else problem.solutions[0].replace("+", "-")
                row = {"problem_id": problem.id, "program_id": str(number)}
                file.write(json.dumps({**row, "completion": f"```python\n# {number}\n{code}\n```"}) + "\n")
    return folder / "problems.jsonl", folder / "programs.jsonl"


def timed(*words: str) -> tuple[float, float]:
    """(wall seconds, CPU seconds with all children) of a command. CPU seconds mean something on a busy machine too."""
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "code_rl.cli", *words], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - started, cpu


def main(settings: Settings) -> int:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        problems, programs = write(settings, folder)
        timeout, judges, evals = "reward_timeout=6", [], []
        for turn in range(settings.turns):
            out = folder / f"eval-{turn}"
            found = f"out={folder / 'v.jsonl'}"
            judges.append(timed("judge", f"dataset={problems}", f"programs={programs}", found, timeout))
            evals.append(timed("eval", f"benchmark={problems}", f"samples={programs}", f"out={out}", timeout))
        judge, evaluate = min(judges), min(evals)
        verdicts = [
            sorted(map(_verdict, path.read_text().splitlines()))
            for path in (folder / "v.jsonl", out / "verdicts.jsonl")
        ]
        total = settings.problems * settings.samples
        print(f"{total} completions, {settings.tests} tests each; verdicts equal: {verdicts[0] == verdicts[1]}")
        for name, (wall, cpu) in (("judge", judge), ("eval", evaluate)):
            print(
                f"code-rl {name:5} {wall:7.1f} s of wall time, {total / wall:5.0f} programs per second; {cpu:7.1f} s of CPU time"
            )
        print(
            f"wall seconds in turn: judge {[round(wall, 1) for wall, _ in judges]}, eval {[round(wall, 1) for wall, _ in evals]}"
        )
        print(
            f"eval over judge: wall {100 * (evaluate[0] / judge[0] - 1):+.1f}%, CPU {100 * (evaluate[1] / judge[1] - 1):+.1f}%"
        )
    return 0


def _verdict(line: str) -> tuple[str, str, str]:
    row = json.loads(line)
    return row["problem_id"], str(row.get("program_id", row.get("sample"))), row["verdict"]


if __name__ == "__main__":
    run_script(Settings, main, __doc__ or "")
