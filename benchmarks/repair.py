"""Does repair help? Training in several turns against training with single answers, at the same number of sampled tokens.

    python benchmarks/repair.py [seeds=0,1,2] [steps=30] [max_turns=3] [out=FILE.json] [setting=value …]

For each seed the embedded default is trained twice: with single answers for `steps` steps, and with environment=repair until it has sampled as many
tokens. Held-out success, in per cent, over whole splits:

- single: one answer of the policy trained with single answers (Pass@1);
- resample: the same policy, up to `max_turns` independent answers, the first that passes the public tests is kept;
- repair: one conversation of up to `max_turns` answers of the policy trained with repair;
- first: single answers of that policy.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from code_rl.cli.main import HELP
from code_rl.training import read_metrics
from code_rl.util.settings import read_arguments

ROOT = Path(__file__).parent.parent
SPLITS = ("constants", "compositions", "primitives")
SAMPLES = 9


def command(*words: str) -> None:
    subprocess.run([sys.executable, *words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def train(log_path: Path, settings: Mapping[str, str]) -> list[dict[str, Any]]:
    given = {"recipe": "tiny", "backend": "embedded", "executor": "embedded", "eval_limit": "-1", **settings}
    command("train.py", *(f"{name}={value}" for name, value in given.items()), f"log_path={log_path}")
    return read_metrics(log_path)


def sampled(records: Sequence[Mapping[str, Any]]) -> int:
    return sum(int(record.get("tokens/completion", 0)) for record in records)


def success(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    return {split: 100 * records[-1][f"eval/{split}/pass@1"] for split in SPLITS}


def answers(log_path: Path, out: Path) -> list[list[dict[str, Any]]]:
    """Verdicts of independent answers of a run's last policy, in their order, by problem."""
    command(
        "-m",
        "code_rl.cli",
        "eval",
        "benchmark=builtin",
        f"checkpoint={log_path}",
        f"n={SAMPLES}",
        "greedy=false",
        f"out={out}",
    )
    by_problem = defaultdict(list)
    for line in (
        (out / "builtin" / "verdicts.jsonl" if (out / "builtin").is_dir() else out / "verdicts.jsonl")
        .read_text()
        .splitlines()
    ):
        row = json.loads(line)
        by_problem[row["problem_id"]].append(row)
    return [sorted(rows, key=lambda row: row["sample"]) for rows in by_problem.values()]


def resampled(by_problem: Sequence[Sequence[Mapping[str, Any]]], tries: int) -> float:
    """Success of the first of `tries` answers that no public test refutes, else of the last, in per cent."""
    outcomes = []
    for rows in by_problem:
        for first in range(0, SAMPLES - tries + 1, tries):
            tried = rows[first : first + tries]
            kept = next(
                (row for row in tried if not (row["verdict"] == "no_code" or (row["failure"] or {}).get("public"))),
                tried[-1],
            )
            outcomes.append(kept["verdict"] == "passed")
    return float(100 * sum(outcomes) / len(outcomes))


def single_answers(by_problem: Sequence[Sequence[Mapping[str, Any]]]) -> float:
    outcomes = [row["verdict"] == "passed" for rows in by_problem for row in rows]
    return float(100 * sum(outcomes) / len(outcomes))


def compare(seed: str, steps: int, max_turns: int, more: Mapping[str, str], scratch: Path) -> dict[str, Any]:
    common = {**more, "seed": seed, "save_every": str(steps)}
    records = train(scratch / "single", {**common, "max_steps": str(steps), "eval_every": "0"})
    budget, limit = sampled(records), int(more.get("max_tokens", 128)) * max_turns
    repair = {
        **common,
        "environment": "repair",
        "max_turns": str(max_turns),
        "max_tokens": str(limit),
        "save_every": "1",
    }
    turned, done, per_step = list[dict[str, Any]](), 0, budget / steps * max_turns
    # As many steps as the same number of tokens pays for, less the last
    while sampled(turned) + 1.5 * per_step < budget:
        done = max(done + 1, int(done + (budget - sampled(turned)) / per_step) - 1)
        turned = train(scratch / "repair", {**repair, "max_steps": str(done), "eval_every": "-1"})
        per_step = sampled(turned) / done
    turned = train(scratch / "repair", {**repair, "max_steps": str(done + 1), "eval_every": "0"})
    independent = answers(scratch / "single", scratch / "answers")
    found = {"single": sum(success(records).values()) / len(SPLITS), "resample": resampled(independent, max_turns)}
    found |= {"repair": sum(success(turned).values()) / len(SPLITS)}
    found |= {"first": single_answers(answers(scratch / "repair", scratch / "first"))}
    return {**found, "tokens": [budget, sampled(turned)], "steps": [steps, done + 1]}


def main(words: list[str]) -> int:
    if any(word in HELP for word in words):
        print(__doc__)
        return 0
    settings = read_arguments(words)
    seeds = settings.pop("seeds", "0,1,2").split(",")
    steps, max_turns = int(settings.pop("steps", "30")), int(settings.pop("max_turns", "3"))
    out = settings.pop("out", None)
    found = {}
    for seed in seeds:
        with tempfile.TemporaryDirectory() as scratch:
            row = found[seed] = compare(seed, steps, max_turns, settings, Path(scratch))
        cells = "   ".join(f"{name} {row[name]:5.1f}" for name in ("single", "resample", "repair", "first"))
        print(
            f"seed {seed}:  {cells}   tokens {row['tokens'][0]} and {row['tokens'][1]}, steps {row['steps'][0]} and {row['steps'][1]}",
            flush=True,
        )
    for other in ("single", "resample"):
        rises = [row["repair"] - row[other] for row in found.values()]
        draws = np.random.default_rng(0).choice(rises, (2000, len(rises))).mean(axis=1)
        low, high = np.quantile(draws, [0.025, 0.975])
        print(
            f"repair − {other}: mean {np.mean(rises):+.1f} [{low:+.1f}, {high:+.1f}], smallest {min(rises):+.1f}, over {len(seeds)} seeds"
        )
    if out is not None:
        Path(out).write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
