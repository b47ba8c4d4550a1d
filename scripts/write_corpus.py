"""Write the corpora of `code-rl audit grader=` from those of the tests: `python scripts/write_corpus.py [check]`.

The programs of tests/grading/corpus and tests/grading/walls are the source; `check` compares and writes nothing (a test runs it). Mutants are wrong versions of the reference
solutions of built-in problems, kept where a plain run of the tests, outside any sandbox of ours, says that they fail.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from code_rl.data.builtin import BuiltinTrainSet  # noqa: E402
from code_rl.data.preparation.verification.attempts import mutants  # noqa: E402
from code_rl.grading.native import problem_to_json  # noqa: E402
from code_rl.grading.problem import Problem, StdinTest  # noqa: E402
from tests.grading.corpus.cheats_call import CHEATS_CALL  # noqa: E402
from tests.grading.corpus.cheats_stdin import CHEATS_STDIN  # noqa: E402
from tests.grading.corpus.honest_call import HONEST_CALL  # noqa: E402
from tests.grading.corpus.honest_stdin import HONEST_STDIN  # noqa: E402
from tests.grading.corpus.leaks import LEAKS  # noqa: E402
from tests.grading.walls.between import BETWEEN  # noqa: E402
from tests.grading.walls.blame import BLAME  # noqa: E402
from tests.grading.walls.holders import HOLDERS  # noqa: E402
from tests.grading.walls.honest import HONEST  # noqa: E402
from tests.grading.walls.thieves import OWNERS, THIEVES  # noqa: E402

FOLDER = ROOT / "src" / "code_rl" / "grading" / "audit" / "corpus"
MUTATED, MUTANTS_EACH = 60, 3
LONGEST = 1 << 15
"""Characters; the few programs that are long by intent stay in the tests."""
CHEAT, HONEST_KIND, MUTANT, OWNER, TROUBLE = "cheat", "honest", "mutant", "owner", "trouble"


def _rows() -> Iterator[tuple[dict[str, Any], Problem]]:
    for entry in (*CHEATS_STDIN, *CHEATS_CALL, *LEAKS):
        yield _row(entry.name, CHEAT, entry.kind, entry.code), entry.problem
    for walls_entry in BETWEEN:
        yield _row(walls_entry.name, CHEAT, "remembers between tests", walls_entry.code), walls_entry.problem
    for walls_entry in THIEVES:
        yield _row(walls_entry.name, CHEAT, "searches memory for others", walls_entry.code), walls_entry.problem
    for walls_entry in HOLDERS:
        yield _row(walls_entry.name, CHEAT, "holds the grader", walls_entry.code), walls_entry.problem
    for walls_entry in BLAME:
        yield _row(walls_entry.name, TROUBLE, "makes trouble", walls_entry.code), walls_entry.problem
    for walls_entry in OWNERS:
        yield _row(walls_entry.name, OWNER, "to be stolen from", walls_entry.code), walls_entry.problem
    for entry in (*HONEST_STDIN, *HONEST_CALL):
        yield _row(entry.name, HONEST_KIND, entry.kind, entry.code), entry.problem
    for walls_entry in HONEST:
        form = "call idiom" if walls_entry.problem.calls else "stdin idiom"
        yield _row(walls_entry.name, HONEST_KIND, form, walls_entry.code), walls_entry.problem
    for problem in _builtin():
        for number, code in enumerate(_killed(problem)):
            yield _row(f"{problem.id}-{number}", MUTANT, "mutant", code), problem


def _row(name: str, kind: str, group: str, code: str) -> dict[str, Any]:
    return {"name": name, "kind": kind, "class": group, "code": code}


def _builtin() -> Sequence[Problem]:
    return BuiltinTrainSet(MUTATED)[:]


def _killed(problem: Problem) -> list[str]:
    wrong = (code for code in mutants(problem.solutions[0], 4 * MUTANTS_EACH, problem.id) if not _passes(code, problem))
    return list(itertools.islice(wrong, MUTANTS_EACH))


def _passes(code: str, problem: Problem) -> bool:
    """Whether a program that ends by itself gives what the tests expect; run in this process."""
    for test in problem.tests:
        try:
            if isinstance(test, StdinTest):
                given, printed = io.StringIO(test.input), io.StringIO()
                stdin, sys.stdin = sys.stdin, given
                try:
                    with contextlib.redirect_stdout(printed):
                        exec(code, {"__name__": "__main__"})  # noqa: S102 - a mutant of our own program
                finally:
                    sys.stdin = stdin
                right = printed.getvalue().split() == test.expected.split()
            else:
                names: dict[str, Any] = {}
                exec(code, names)  # noqa: S102
                right = getattr(names["Solution"](), str(problem.fn_name))(*test.args) == test.expected
        except Exception:  # noqa: BLE001
            return False
        if not right:
            return False
    return True


def texts() -> dict[str, str]:
    """File name -> what it should hold."""
    problems: dict[str, tuple[str, Problem]] = {}
    programs = []
    names: set[str] = set()
    for row, problem in _rows():
        if len(row["code"]) > LONGEST:
            continue
        key = json.dumps(problem_to_json(problem), sort_keys=True)
        if key not in problems:
            taken = {kept.id for _, kept in problems.values()}
            name = next(name for n in itertools.count() if (name := problem.id + (f"-{n}" if n else "")) not in taken)
            problems[key] = (name, dataclasses.replace(problem, id=name, solutions=()))
        row["name"] = next(
            name for n in itertools.count() if (name := row["name"] + (f"-{n}" if n else "")) not in names
        )
        names.add(row["name"])
        programs.append(row | {"problem": problems[key][0]})
    return {
        "programs.jsonl": _lines(programs),
        "problems.jsonl": _lines(problem_to_json(problem) for _, problem in problems.values()),
    }


def _lines(rows: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=True) + "\n" for row in rows)


def main() -> int:
    """Write, or with `check` say what is out of step."""
    old = [
        name for name, text in texts().items() if not (FOLDER / name).is_file() or (FOLDER / name).read_text() != text
    ]
    if sys.argv[1:] == ["check"]:
        print(f"out of step: {', '.join(old)}; run {sys.argv[0]}" if old else "in step")
        return int(bool(old))
    for name, text in texts().items():
        (FOLDER / name).write_text(text)
    print(f"written: {', '.join(old) or 'nothing changed'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
