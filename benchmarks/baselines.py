"""Run the short benchmarks and keep their ratios as data, in one file for each kind of machine.

    python -m benchmarks.baselines                              # all of them: under ten minutes on two quiet cores
    python -m benchmarks.baselines only=sandbox,languages
    python -m benchmarks.baselines quick=true                   # a smoke run of all; its figures mean nothing

Each benchmark ends with a line `ratios {…}`: how many times as fast code-rl is, beside each other program. The file
benchmarks/baselines/MACHINE.json has them with the command, the date, the revision, and the load before the first of them. `make docs` writes
benchmarks/results/baselines.md from all of these files.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from code_rl.cli.main import HELP
from code_rl.util.settings import read_arguments

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "benchmarks" / "baselines"
PREFIX = "ratios "
WHOLE = {
    "sandbox": "",
    "many_tests": "tests=1,20,100",
    "engine": "repeats=9",
    "languages": "",
}
"""The benchmarks and their settings."""
QUICK = {
    "sandbox": "seconds=0.5 rounds=1 crowd=4",
    "many_tests": "tests=1,20 seconds=0.5 rounds=1",
    "engine": "repeats=1",
    "languages": "programs=2 rounds=1",
}


def machine() -> dict[str, Any]:
    """Return the processor's name and the cores that this process may use."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE) if info.exists() else []
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"processor": names[0] if names else platform.processor() or platform.machine(), "cores": cores}


def revision() -> str:
    """Return the commit, with `-dirty` if files of it were changed."""
    words = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def measured(name: str, settings: str) -> dict[str, Any]:
    """Run one benchmark and return its command and ratios."""
    words = [f"benchmarks/{name}.py", *settings.split()]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    print(done.stdout, flush=True)
    (line,) = (line for line in done.stdout.splitlines() if line.startswith(PREFIX))
    ratios = json.loads(line.removeprefix(PREFIX))
    rounded = {case: {other: round(ratio, 2) for other, ratio in ratios[case].items()} for case in ratios}
    return {"command": " ".join(["python", *words]), "ratios": rounded}


def main(words: list[str]) -> int:
    if any(word in HELP for word in words):
        print(__doc__)
        return 0
    settings = {"only": ",".join(WHOLE), "quick": "false", **read_arguments(words)}
    quick, names = settings.pop("quick") == "true", settings.pop("only").split(",")
    if wrong := [*settings, *(name for name in names if name not in WHOLE)]:
        print(f"unknown: {wrong[0]}; there are only=, quick=, and the benchmarks {', '.join(WHOLE)}", file=sys.stderr)
        return 2
    kind, today, load = machine(), datetime.now(UTC).date().isoformat(), round(os.getloadavg()[0], 1)
    common = {"quick": quick, "date": today, "revision": revision(), "load": load}
    slug = re.sub(r"[^a-z0-9]+", "-", f"{kind['processor']} {kind['cores']} cores".lower()).strip("-")
    path = FOLDER / f"{slug}.json"
    kept = json.loads(path.read_text())["benchmarks"] if path.exists() else {}
    for name in names:
        kept[name] = {**common, **measured(name, (QUICK if quick else WHOLE)[name])}
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"machine": kind, "benchmarks": dict(sorted(kept.items()))}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
