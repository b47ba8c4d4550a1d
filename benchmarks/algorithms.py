"""Which loss matters, at which staleness; and the steps that a curriculum saves. The built-in model, several seeds.

    python benchmarks/algorithms.py [part=losses|curriculum] [out=algorithms] [seconds=S] [losses=…] [lags=…] [seeds=…] [steps=N]

`losses`: every loss with samples 0, 4 and 16 steps old, equal steps and batches: held-out Pass@1 (mean of the splits, with a 95% t interval over
seeds), its difference from importance_sampling at the same K (paired by seed), entropy, the share of tokens clipped or masked, tokens. `curriculum`: tokens until a held-out score is reached on a mixture of which 60%
teaches nothing: 30% that the base model solved 4 times of 4, 30% that carry another problem's tests and are never solved. Finished cells are in
`out/PART.jsonl` and are not repeated; a cut one goes on from its checkpoint. The curriculum's 100 problems recur from step 13 on: give it steps=60.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import chz
from rich.console import Console
from rich.table import Table

from code_rl.cli.main import main as code_rl
from code_rl.cli.main import run_script
from code_rl.cli.train import train_command
from code_rl.data.builtin import BuiltinTrainSet
from code_rl.engine.local import share_cores
from code_rl.engine.losses import POLICY_LOSSES
from code_rl.grading import Problem
from code_rl.grading.native import write_problems
from code_rl.training import read_metrics
from code_rl.util.errors import ConfigError
from code_rl.util.files import KeyedLog

Row = dict[str, Any]
TINY = {"recipe": "tiny", "backend": "embedded", "executor": "embedded", "threads": "1", "save_every": "10"}
T95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
CANDIDATES, EASY, USEFUL, HARD = 500, 30, 40, 30
ORDERS: dict[str, dict[str, str]] = {
    "uniform": {},
    "solve_rate": {"curriculum": "solve_rate"},
    "dynamic_sampling=2": {"dynamic_sampling": "2"},
}


@chz.chz
class AlgorithmsConfig:
    """Settings of the tables."""

    part: str = chz.field(default="losses", doc="losses or curriculum.")
    out: str = chz.field(default="algorithms", doc="Folder of finished cells and runs under way.")
    losses: str = chz.field(default=",".join(POLICY_LOSSES), doc="Losses, comma-separated.")
    lags: str = chz.field(default="0,4,16", doc="Steps off-policy, comma-separated.")
    seeds: str = chz.field(default="0,1,2,3,4", doc="RL seeds, comma-separated.")
    steps: int = chz.field(default=30, doc="Training steps of each run.")
    target: float = chz.field(default=0.5, doc="Held-out Pass@1 that the curriculum part waits for.")
    eval_limit: int = chz.field(default=64, doc="Held-out problems a split.")
    eval_samples: int = chz.field(default=4, doc="Completions a problem.")
    seconds: float = chz.field(default=math.inf, doc="Begin no further run after so many seconds.")


def main(config: AlgorithmsConfig) -> int:
    share_cores()
    out = Path(config.out)
    out.mkdir(parents=True, exist_ok=True)
    seeds = config.seeds.split(",")
    if config.part not in ("losses", "curriculum"):
        raise ConfigError(f"part={config.part} must be losses or curriculum")
    if config.part == "curriculum":
        mixture = mixed_problems(out)
        cells = [
            Cell(order, {**given, "dataset": str(mixture), "test_dataset": "builtin"}, seed)
            for seed in seeds
            for order, given in ORDERS.items()
        ]
        show_curriculum(finished(config, cells, lambda records: reached(records, config.target)))
        return 0
    cells = [
        Cell(f"{loss} K={lag}", {"loss": loss, "max_steps_off_policy": lag}, seed)
        for seed in seeds
        for lag in config.lags.split(",")
        for loss in config.losses.split(",")
    ]
    show_losses(finished(config, cells, learned))
    return 0


class Cell:
    """One run of a table: its row's name, settings and seed."""

    def __init__(self, name: str, settings: Mapping[str, str], seed: str) -> None:
        self.name, self.settings, self.seed = name, settings, seed
        self.folder = f"{name.replace(' ', '-').replace('=', '')}-{seed}"


def finished(config: AlgorithmsConfig, cells: Sequence[Cell], measure: Callable[[Sequence[Row]], Row]) -> list[Row]:
    """The rows of all cells; those that are not in the file are run first, as `seconds` allows."""
    shape = {name: getattr(config, name) for name in ("steps", "target", "eval_limit", "eval_samples")}
    log, started = KeyedLog(Path(config.out) / f"{config.part}.jsonl", itemgetter("key")), time.monotonic()
    rows = []
    with contextlib.closing(log):
        for cell in cells:
            key = " ".join([cell.name, f"seed={cell.seed}", *(f"{name}={value}" for name, value in shape.items())])
            row = log.get(key)
            if row is None and time.monotonic() - started <= config.seconds:
                began = time.perf_counter()
                log_path = Path(config.out) / f"{cell.folder}-{config.steps}"
                row = {"key": key, "name": cell.name, "seed": cell.seed, **measure(trained(config, cell, log_path))}
                log.put({**row, "wall_s": time.perf_counter() - began})
                shutil.rmtree(log_path)
            rows += [row] if row is not None else []
    return rows


def trained(config: AlgorithmsConfig, cell: Cell, log_path: Path) -> list[Row]:
    """The metrics of a cell's run. A run that was interrupted ends the program with its exit code."""
    every = "5" if config.part == "curriculum" else "0"
    given = {
        **TINY, "max_steps": str(config.steps), "eval_every": every, "eval_limit": str(config.eval_limit),
        "eval_samples": str(config.eval_samples), "seed": cell.seed, "log_path": str(log_path), **cell.settings,
    }  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):
        code = train_command(given)
    if code:
        raise SystemExit(code)
    return read_metrics(log_path)


def learned(records: Sequence[Row]) -> Row:
    """The result of a run for the losses' table."""
    steps = [record for record in records if record["step"] >= 0]
    taught = [record for record in steps if record["n_datums"]]
    held_back = [share for record in taught if (share := record.get("clip_fraction")) is not None]
    return {
        "before": records[0]["eval/pass@1"], "pass@1": records[-1]["eval/pass@1"], "entropy": steps[-1]["entropy"],
        "held_back": mean(held_back) if held_back else None,
        "ratio_max": max(record["ratio_max"] for record in taught), "kl": mean(record["kl_sample_train"] for record in taught),
        "tokens": sum(record["tokens/completion"] for record in steps),
    }  # fmt: skip


def reached(records: Sequence[Row], target: float) -> Row:
    """Training tokens until an evaluation reached the target, interpolated between two; None if none did."""
    tokens, before = 0, (0, records[0]["eval/pass@1"])
    found: float | None = 0 if before[1] >= target else None
    for record in records[1:]:
        tokens += record["tokens/completion"]
        score = record.get("eval/pass@1")
        if score is None:
            continue
        if found is None and score >= target:
            share = (target - before[1]) / (score - before[1])
            found = before[0] + share * (tokens - before[0])
        before = (tokens, score)
    skipped = sum(r["groups_skipped"] for r in records[1:]) / sum(r["groups_total"] for r in records[1:])
    return {"tokens_to_target": found, "tokens": tokens, "pass@1": before[1], "skipped": skipped, "target": target}


def mixed_problems(out: Path) -> Path:
    """The mixture as a file: pass rates are of the untrained model, 4 samples a problem."""
    path, measured = out / "mixture.jsonl", out / "candidates"
    if path.exists():
        return path
    candidates = list(BuiltinTrainSet(CANDIDATES, seed=1))
    write_problems(out / "candidates.jsonl", candidates)
    words = [
        f"benchmark={out / 'candidates.jsonl'}",
        "model_name=tiny",
        "n=4",
        "greedy=false",
        "max_tokens=128",
        f"out={measured}",
    ]
    if code_rl(["eval", *words]) != 0:
        raise SystemExit("the pass rates could not be measured")
    passed: dict[str, list[bool]] = defaultdict(list)
    for line in (measured / "verdicts.jsonl").read_text().splitlines():
        row = json.loads(line)
        passed[row["problem_id"]].append(row["verdict"] == "passed")
    easy = [problem for problem in candidates if all(passed[problem.id])][:EASY]
    useful = [problem for problem in candidates if 0 < sum(passed[problem.id]) < 4]
    rest = useful[USEFUL:]
    if len(easy) < EASY or len(rest) < HARD:
        raise SystemExit(f"only {len(easy)} easy and {len(useful)} useful problems among {CANDIDATES}")
    write_problems(path, [*easy, *useful[:USEFUL], *map(unsolvable, rest[:HARD], rest[1 : HARD + 1])])
    return path


def unsolvable(problem: Problem, other: Problem) -> Problem:
    """The problem with the tests of another: no program that follows the statement passes."""
    return replace(problem, tests=other.tests, fn_name=other.fn_name, starter_code=other.starter_code, solutions=())


def with_interval(values: Sequence[float]) -> str:
    """The mean, with a 95% t interval over seeds, in per cent."""
    scores = [100 * value for value in values]
    half = T95[len(scores)] * stdev(scores) / math.sqrt(len(scores)) if 1 < len(scores) <= max(T95) else math.nan
    return (
        f"{mean(scores):.1f}"
        if math.isnan(half)
        else f"{mean(scores):.1f} [{mean(scores) - half:.1f}, {mean(scores) + half:.1f}]"
    )


def grouped(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["name"]].append(row)
    return found


def show_losses(rows: Sequence[Row]) -> None:
    columns = (
        "loss, K",
        "seeds",
        "Pass@1 after [95%]",
        "entropy",
        "clipped or masked",
        "− importance_sampling",
        "largest |ρ − 1|",
        "tokens",
    )
    table = Table(*columns, title="held-out Pass@1, mean of three splits")
    names = grouped(rows)
    for name, own in names.items():
        plain = {row["seed"]: row["pass@1"] for row in names[f"importance_sampling {name.split()[1]}"]}
        gains = [row["pass@1"] - plain[row["seed"]] for row in own if row["seed"] in plain]
        of = {key: mean(row[key] for row in own) for key in ("entropy", "ratio_max", "tokens")}
        held_back = None if own[0]["held_back"] is None else mean(row["held_back"] for row in own)
        table.add_row(
            name, str(len(own)), with_interval([row["pass@1"] for row in own]), f"{of['entropy']:.3f}", "–" if held_back is None else f"{100 * held_back:.2f}%",
            with_interval(gains) if gains else "–", f"{of['ratio_max']:.2f}", f"{of['tokens']:.0f}",
        )  # fmt: skip
    Console(width=150).print(table)


def show_curriculum(rows: Sequence[Row]) -> None:
    table = Table(
        "order", "seeds", "reached", "tokens to target", "Pass@1 at the end [95%]", "groups skipped", "tokens in all"
    )
    for name, own in grouped(rows).items():
        counts = [row["tokens_to_target"] for row in own if row["tokens_to_target"] is not None]
        table.add_row(
            name, str(len(own)), str(len(counts)), f"{mean(counts):.0f} ({min(counts):.0f}–{max(counts):.0f})" if counts else "–",
            with_interval([row["pass@1"] for row in own]), f"{100 * mean(row['skipped'] for row in own):.0f}%",
            f"{mean(row['tokens'] for row in own):.0f}",
        )  # fmt: skip
    Console(width=150).print(table)


if __name__ == "__main__":
    run_script(AlgorithmsConfig, main, __doc__ or "")
