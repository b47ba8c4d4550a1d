"""Does it learn, and does it learn on every seed? The embedded default trained once per seed, evaluated on whole splits.

    python benchmarks/learning.py [seeds=0,1,2,3,4] [out=FILE.json] [setting=value …]

One line per seed: Pass@1 at temperature 1 before and after, per split, in per cent; then the mean and the smallest rise. Any
further settings go to the runs as they are.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from code_rl.cli.main import HELP
from code_rl.training import read_metrics
from code_rl.util.settings import read_arguments

ROOT = Path(__file__).parent.parent
DEFAULTS = {"recipe": "tiny", "backend": "embedded", "executor": "embedded", "eval_limit": "-1", "save_every": "0"}


def run(seed: str, settings: dict[str, str], log_path: Path) -> list[dict[str, Any]]:
    words = [
        f"{name}={value}" for name, value in {**DEFAULTS, **settings, "seed": seed, "log_path": str(log_path)}.items()
    ]
    subprocess.run([sys.executable, "train.py", *words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return read_metrics(log_path)


def rises(records: list[dict[str, Any]]) -> dict[str, tuple[float, float]]:
    """Pass@1 before and after, in per cent, by split."""
    before, after = records[0], records[-1]
    splits = [key.split("/")[1] for key in before if key.count("/") == 2 and key.endswith("/pass@1")]
    return {name: (100 * before[f"eval/{name}/pass@1"], 100 * after[f"eval/{name}/pass@1"]) for name in splits}


def main(words: list[str]) -> int:
    if any(word in HELP for word in words):
        print(__doc__)
        return 0
    settings = read_arguments(words)
    seeds = settings.pop("seeds", "0,1,2,3,4").split(",")
    out = settings.pop("out", None)
    found: dict[str, dict[str, tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for seed in seeds:
            records = run(seed, settings, Path(scratch) / seed)
            found[seed] = rises(records)
            cells = [
                f"{name} {before:5.1f} -> {after:5.1f} ({after - before:+5.1f})"
                for name, (before, after) in found[seed].items()
            ]
            print(
                f"seed {seed}:  "
                + "   ".join(cells)
                + f"   {sum(r.get('time/step', 0) for r in records):.0f} s of steps",
                flush=True,
            )
    for name in next(iter(found.values())):
        differences = [found[seed][name][1] - found[seed][name][0] for seed in seeds]
        print(
            f"{name}: mean rise {sum(differences) / len(differences):+.1f}, smallest {min(differences):+.1f}, over {len(seeds)} seeds"
        )
    if out is not None:
        Path(out).write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
