"""Soak: many steps of the embedded default at reduced size; memory, descriptors, threads, processes, mounts and temporary files stay flat.

    python tests/training/faults/soak.py steps=2000 [limit_s=240] [folder=DIR]

One process trains, and looks at itself and its sandbox after every 25 steps. With limit_s it stops after so many seconds (SIGTERM to itself: the
run's own stop) and goes on in the same folder the next time, until the steps are done; each process is held to flatness by itself, after a
warm-up of 100 steps. Prints one JSON object with the first and the last looks.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

RUN = {
    "backend": "embedded", "executor": "embedded", "sandbox_concurrency": "2", "threads": "1", "batch_size": "4", "group_size": "2",
    "max_tokens": "48", "save_every": "50", "keep_checkpoints": "2", "eval_every": "100", "eval_limit": "2", "eval_samples": "1",
}  # fmt: skip
EVERY, WARM_UP = 25, 100
ROOM_MB = 24.0
"""Resident memory may grow by so much after the warm-up: allocators keep what varies."""
POOL_THREADS = min(32, (os.cpu_count() or 1) + 4)
"""asyncio's own pool has at most so many threads, and makes each when it is first needed; there are many more saves and evaluations."""


@dataclass(frozen=True, slots=True)
class Look:
    """The resources of the process and its descendants after `step` steps."""

    step: int
    memory_mb: float
    descriptors: int
    threads: int
    processes: int
    mounts: int
    temporary: int
    sandbox_mb: float


def look(step: int, temporary: Path) -> Look:
    from tests.training.faults.strikes import descendants

    children = descendants(os.getpid())
    return Look(
        step=step,
        memory_mb=round(resident(os.getpid()), 1),
        descriptors=len(os.listdir("/proc/self/fd")),
        threads=len(os.listdir("/proc/self/task")),
        processes=len(children),
        mounts=len(Path("/proc/self/mounts").read_text().splitlines()),
        temporary=sum(1 for _ in temporary.rglob("*")),
        sandbox_mb=round(sum(map(resident, children)), 1),
    )


def resident(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except OSError:
        return 0.0


def grown(looks: list[Look]) -> list[str]:
    """The resources that did not stay flat. Processes come and go with the submissions: the fewest of a stretch count."""
    if len(looks) < 8:
        return []
    half = len(looks) // 2
    early, late = looks[:half], looks[half:]
    wrong = []
    for name, room in (
        ("memory_mb", ROOM_MB),
        ("sandbox_mb", ROOM_MB),
        ("descriptors", 0),
        ("threads", POOL_THREADS),
        ("processes", 0),
        ("mounts", 0),
        ("temporary", 0),
    ):
        before, after = (min(getattr(each, name) for each in part) for part in (early, late))
        if after > before + room:
            wrong.append(f"{name} grew from {before} to {after}")
    return wrong


def main(words: list[str]) -> int:
    asked = dict(word.split("=", 1) for word in words)
    folder = Path(asked["folder"]) if "folder" in asked else Path(tempfile.mkdtemp(prefix="code-rl-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
    sys.path.insert(0, str(Path(__file__).parents[3]))
    os.environ.setdefault("OMP_NUM_THREADS", "1")

    from tests.verbs import train_command
    from tinker_utils.log import MultiplexLogger

    looks: list[Look] = []
    first: list[int] = []
    log_metrics = MultiplexLogger.log_metrics

    def logged(self: Any, metrics: Any, step: int) -> None:
        log_metrics(self, metrics, step)
        first.append(step)
        if step - first[0] >= WARM_UP and step % EVERY == 0:
            looks.append(look(step, temporary))

    MultiplexLogger.log_metrics = logged  # type: ignore[method-assign, assignment]
    run = folder / "run"
    words_given = (
        {"log_path": str(run), "max_steps": asked["steps"]}
        if run.exists()
        else {**RUN, "log_path": str(run), "max_steps": asked["steps"]}
    )
    if "limit_s" in asked:
        threading.Timer(float(asked["limit_s"]), os.kill, (os.getpid(), signal.SIGTERM)).start()
    began = time.monotonic()
    sys.stdout = open(folder / "output.txt", "a")  # noqa: SIM115 - until the end
    code = train_command(words_given)
    sys.stdout = sys.__stdout__
    wrong = grown(looks)
    shown = [asdict(each) for each in (looks[:2] + looks[-2:] if len(looks) > 4 else looks)]
    print(json.dumps({"code": code, "steps": [first[0], first[-1]] if first else [], "seconds": round(time.monotonic() - began), "looks": shown, "wrong": wrong}), flush=True)  # fmt: skip
    os._exit(1 if wrong or code not in (0, 143) else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
