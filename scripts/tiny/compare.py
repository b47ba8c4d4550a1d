"""Run the whole job from several pretrained folders and print one table: the evidence by which the shipped one was chosen.

    python -m scripts.tiny.compare models=DIR,DIR seeds=0,1 out=DIR [max_steps=30] [eval_limit=64]

Every cell comes from `train.py recipe=tiny model_name=DIR seed=S`: the real loop, engine, sandbox and judge. Runs that are
already under `out` are read, not repeated. Figures are percentages: Pass@1 at temperature 1, greedy Pass@1, format rate.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from code_rl.data.builtin import SPLITS


def run(model: str, seed: int, out: Path, settings: dict[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metrics of the first and the last evaluation of one training run; raises CalledProcessError when the run failed."""
    log_path = out / f"{Path(model).parent.name}-{Path(model).name}-seed{seed}"
    rows = _metrics(log_path)
    if len(rows) < 2:
        words = {"recipe": "tiny", "backend": "embedded", "eval_every": "0", "save_every": "0", **settings}
        words |= {
            "model_name": model,
            "seed": str(seed),
            "log_path": str(log_path),
            "behavior_if_log_dir_exists": "delete",
        }
        command = [sys.executable, "train.py", *(f"{key}={value}" for key, value in words.items())]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        rows = _metrics(log_path)
    return rows[0], rows[-1]


def _metrics(log_path: Path) -> list[dict[str, Any]]:
    """The rows with an evaluation, oldest first."""
    path = log_path / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [row for row in map(json.loads, lines) if "eval/mean_correct" in row]


def main(words: list[str]) -> None:
    """Run the missing parts and print the table as Markdown."""
    settings = dict(word.split("=", 1) for word in words)
    models, seeds = settings.pop("models").split(","), settings.pop("seeds").split(",")
    out = Path(settings.pop("out"))
    out.mkdir(parents=True, exist_ok=True)
    names = [f"{split} {figure}" for split in SPLITS for figure in ("pass@1", "greedy")]
    print(f"| model | seed | {' | '.join(names)} | format |")
    print("|---" * (len(names) + 3) + "|")
    for model in models:
        for seed in seeds:
            first, last = run(model, int(seed), out, settings)
            keys = [f"eval/{split}/{key}" for split in SPLITS for key in ("pass@1", "mean_correct")]
            cells = [f"{100 * first[key]:.1f} → {100 * last[key]:.1f}" for key in [*keys, "eval/format_rate"]]
            print(f"| {model} | {seed} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
