"""The effect of each GRPO+ setting on the embedded default: held-out Pass@1 after a few steps, several seeds, one row per setting.

Runs already in `out` are not repeated, so that the table can be made in parts.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import tempfile
import time
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import chz
from rich.console import Console
from rich.table import Table

from code_rl.cli.main import run_script
from code_rl.cli.train import train_command
from code_rl.engine.local import share_cores
from code_rl.training import read_metrics

VARIANTS: dict[str, dict[str, str]] = {
    "default": {},
    "advantage=mean_std": {"advantage": "mean_std"},
    "advantage=leave_one_out": {"advantage": "leave_one_out"},
    "dynamic_sampling=2": {"dynamic_sampling": "2"},
    "max_steps_off_policy=1": {"max_steps_off_policy": "1"},
    "num_substeps=4": {"num_substeps": "4"},
    "num_substeps=4 ppo 0.2/0.2": {"num_substeps": "4", "loss": "ppo"},
    "num_substeps=4 ppo 0.2/0.28": {"num_substeps": "4", "loss": "ppo", "clip_low": "0.2", "clip_high": "0.28"},
    "num_substeps=4 cispo": {"num_substeps": "4", "loss": "cispo"},
    "48 tokens, judged": {"max_tokens": "48"},
    "48 tokens, mask": {"max_tokens": "48", "overlong": "mask"},
    "48 tokens, mask_loss": {"max_tokens": "48", "overlong": "mask_loss"},
    "48 then 128 tokens, mask": {"max_tokens_schedule": "0:48,8:128", "overlong": "mask"},
}


@chz.chz
class AblationConfig:
    """Settings of the table."""

    out: str = chz.field(
        default="ablation.jsonl", doc="JSON lines file of finished runs; read first, then appended to."
    )
    seeds: str = chz.field(default="0,1,2", doc="RL seeds, comma-separated.")
    steps: int = chz.field(default=15, doc="Training steps of each run.")
    eval_limit: int = chz.field(default=64, doc="Held-out problems a split.")
    eval_samples: int = chz.field(default=4, doc="Completions a problem.")
    seconds: float = chz.field(default=math.inf, doc="Begin no further run after so many seconds.")


def measure(config: AblationConfig, variant: str, seed: int) -> dict[str, Any]:
    """One run; the evaluation before training is that of the first step's weights and the same for all."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        given = {
            "recipe": "tiny", "backend": "embedded", "executor": "embedded", "threads": "1", "seed": str(seed), "save_every": "0",
            "max_steps": str(config.steps), "eval_every": "0", "eval_limit": str(config.eval_limit),
            "eval_samples": str(config.eval_samples), "log_path": f"{folder}/run", **VARIANTS[variant],
        }  # fmt: skip
        started = time.perf_counter()
        train_command(given)
        records = read_metrics(Path(folder) / "run")
    steps = [record for record in records if record["step"] >= 0]
    last = records[-1]
    return {
        "variant": variant, "seed": seed, "steps": config.steps, "before": records[0]["eval/pass@1"], "pass@1": last["eval/pass@1"],
        "greedy": last["eval/mean_correct"], "truncated": mean(record["truncated_rate"] for record in steps),
        "skipped": sum(r["groups_skipped"] for r in steps) / sum(r["groups_total"] for r in steps),
        "datums": mean(record["n_datums"] for record in steps), "entropy": steps[-1]["entropy"],
        "clip_fraction": mean(record.get("clip_fraction") or 0.0 for record in steps),
        "tokens": sum(record["tokens/completion"] for record in steps), "wall_s": time.perf_counter() - started,
    }  # fmt: skip


def main(config: AblationConfig) -> int:
    share_cores()
    path = Path(config.out)
    done = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = [row for row in done if row["steps"] == config.steps]
    known = {(row["variant"], row["seed"]) for row in done}
    started = time.monotonic()
    for seed in map(int, config.seeds.split(",")):
        for variant in VARIANTS:
            if (variant, seed) in known or time.monotonic() - started > config.seconds:
                continue
            done.append(measure(config, variant, seed))
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(done[-1]) + "\n")
    show(done)
    return 0


def show(rows: list[dict[str, Any]]) -> None:
    table = Table(title="held-out Pass@1 (mean of three splits), mean ± standard deviation over seeds")
    columns = (
        "variant",
        "seeds",
        "before",
        "Pass@1 after",
        "greedy",
        "groups skipped",
        "datums",
        "truncated",
        "clipped",
        "entropy",
        "tokens",
    )
    for name in columns:
        table.add_column(name, justify="left" if name == "variant" else "right")
    for variant in VARIANTS:
        own = [row for row in rows if row["variant"] == variant]
        if not own:
            continue
        scores = [100 * row["pass@1"] for row in own]
        spread = f" ± {stdev(scores):.1f}" if len(scores) > 1 else ""

        def of(name: str, own: list[dict[str, Any]] = own) -> float:
            return float(mean(row[name] for row in own))

        table.add_row(
            variant, str(len(own)), f"{100 * of('before'):.1f}", f"{mean(scores):.1f}{spread}", f"{100 * of('greedy'):.1f}",
            f"{100 * of('skipped'):.0f}%", f"{of('datums'):.0f}", f"{100 * of('truncated'):.1f}%", f"{100 * of('clip_fraction'):.2f}%",
            f"{of('entropy'):.3f}", f"{of('tokens'):.0f}",
        )  # fmt: skip
    Console(width=180).print(table)


if __name__ == "__main__":
    run_script(AblationConfig, main, __doc__ or "")
