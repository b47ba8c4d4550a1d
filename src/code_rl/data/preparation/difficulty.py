"""Stage `difficulty`: how often a model solves each problem, from the verdicts of an evaluation or
of `code-rl judge`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from code_rl.data.preparation.decisions import Decision, OnItem, one_by_one
from code_rl.data.preparation.workspace import Candidate, Workspace
from code_rl.grading import VerdictKind
from code_rl.util.data_files import read_rows
from code_rl.util.errors import ConfigError, DataError

VERDICTS = "verdicts.jsonl"
GREEDY = "greedy"


def judge_rate(passed: int, n: int, solved: str) -> Decision:
    """Keep or drop a problem that was solved `passed` times out of `n`."""
    rate = {"pass_rate": round(passed / n, 4), "samples": n}
    if solved == "drop" and passed in (0, n):
        reason = "never_solved" if passed == 0 else "always_solved"
        return Decision(reason, f"{passed} of {n} samples pass")
    return Decision(metadata={"difficulty": rate})


def verdicts_file(path: str) -> Path:
    """Return the file that `pass_rates=` names: a file of verdicts, or that of an evaluation's
    folder. Raises ConfigError if there is none."""
    given = Path(path).expanduser()
    found = given / VERDICTS if given.is_dir() else given
    if not found.is_file():
        raise ConfigError(
            f"pass_rates={path}: there is no {found}; give the out= of `code-rl eval` or of "
            "`code-rl judge`"
        )
    return found


def read_pass_rates(path: Path) -> Mapping[str, tuple[int, int]]:
    """Return passed and judged samples by problem id, without greedy samples and those without a
    verdict. Raises DataError for other rows."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for where, row in read_rows(str(path)):
        try:
            name, kind = str(row["problem_id"]), VerdictKind(row["verdict"])
        except (KeyError, ValueError) as error:
            raise DataError(f"{where}: a verdict needs problem_id and verdict: {error}") from error
        if row.get("mode") != GREEDY and not kind.undecided:
            counts[name][0] += kind is VerdictKind.PASSED
            counts[name][1] += 1
    return {name: (passed, judged) for name, (passed, judged) in counts.items()}


async def run_difficulty(
    workspace: Workspace, candidates: Sequence[Candidate], on_item: OnItem
) -> list[Decision]:
    """Decide on each remaining problem. One without a verdict is kept, without a rate."""
    rates = read_pass_rates(verdicts_file(str(workspace.config.pass_rates)))

    def decide(candidate: Candidate) -> Decision:
        passed, judged = rates.get(candidate.entry.id, (0, 0))
        return judge_rate(passed, judged, workspace.config.solved) if judged else Decision()

    return one_by_one(candidates, on_item, decide)
