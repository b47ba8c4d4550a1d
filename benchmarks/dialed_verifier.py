"""Training under graders whose errors are dialled: held-out truth against J = TPR − FPR.

    python benchmarks/dialed_verifier.py [out=DIR] [seeds=0,1,2] [steps=16] [arms=NAME,…] [at_once=2]

The built-in model trains under our judge's verdict, falsified by a dial. Systematic false positives are a fixed set of wrong
programs that always pass, chosen by a hash of their text; random ones are drawn anew for each answer; false negatives are right
programs that are not paid, at random. Held-out problems are judged without a dial. Finished runs in `out` are not repeated.
DIR/dialed-verifier.svg has one picture, DIR/dialed-verifier.md the table. A demonstration on a model of 0.37M parameters.
"""

from __future__ import annotations

import ast
import hashlib
import html
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import chz

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.hack_demo import SMALL, WINDOW, Metrics  # noqa: E402
from code_rl.cli.main import run_script  # noqa: E402
from code_rl.policy import Trajectory  # noqa: E402
from code_rl.training import read_metrics  # noqa: E402
from code_rl.util.errors import ConfigError  # noqa: E402

COLORS = {"exact": "#222222", "systematic": "#c0392b", "random": "#1f77b4", "missing": "#2e8b57", "useless": "#8e44ad"}


@dataclass(frozen=True)
class Dial:
    """A reward: the verdict, with shares of false positives and false negatives."""

    kind: str
    fpr: float = 0.0
    fnr: float = 0.0

    @property
    def j(self) -> float:
        """The J that is dialled."""
        return 1 - self.fnr - self.fpr

    def __call__(self, trajectory: Trajectory) -> float:
        """Return 1 or 0. An answer without a program is never paid."""
        code = trajectory.last.code
        if code is None:
            return 0.0
        lot = f"{trajectory.seed}/{trajectory.text}"
        if trajectory.verdict.correct:
            return float(_drawn(f"right/{lot}") >= self.fnr)
        return float(_drawn(f"wrong/{_shape(code) if self.kind == 'systematic' else lot}") < self.fpr)


def _drawn(text: str) -> float:
    """A number in [0, 1) that the text decides."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "big") / 2**64


def _shape(code: str) -> str:
    """The program without its layout and comments, so that these do not choose whether it passes."""
    try:
        return ast.dump(ast.parse(code))
    except (SyntaxError, ValueError, RecursionError):
        return code


exact = Dial("exact")
systematic_10, systematic_30, systematic_50 = (Dial("systematic", fpr=share) for share in (0.1, 0.3, 0.5))
random_10, random_30, random_50 = (Dial("random", fpr=share) for share in (0.1, 0.3, 0.5))
missing_20, missing_50 = (Dial("missing", fnr=share) for share in (0.2, 0.5))
useless = Dial("useless", fpr=0.5, fnr=0.5)
ARMS = {name: value for name, value in globals().items() if isinstance(value, Dial)}


@chz.chz
class DialedConfig:
    """Settings of the demonstration."""

    out: str = chz.field(default="build/dialed-verifier", doc="Folder of the runs and the picture.")
    seeds: str = chz.field(default="0,1,2", doc="Seeds, comma-separated.")
    steps: int = chz.field(default=16, doc="Steps of each run.")
    arms: str = chz.field(default=",".join(ARMS), doc="Graders, comma-separated.")
    at_once: int = chz.field(default=2, doc="Runs at once, one thread each.")
    eval_limit: int = chz.field(default=64, doc="Held-out problems a split.")
    eval_samples: int = chz.field(default=4, doc="Completions a held-out problem.")


@dataclass(frozen=True)
class Result:
    """One run: held-out Pass@1 before and after, and J as measured over the first and the last steps."""

    arm: str
    seed: int
    before: float
    after: float
    first_j: float
    last_j: float


def train(config: DialedConfig, out: Path) -> list[Result]:
    """Run each arm with each seed, unless it is finished, `at_once` at once."""
    wanted = [name.strip() for name in config.arms.split(",")]
    if unknown := [name for name in wanted if name not in ARMS]:
        raise ConfigError(f"arms={','.join(unknown)} is unknown; there are: {', '.join(ARMS)}")
    jobs = [(arm, int(seed)) for seed in config.seeds.split(",") for arm in wanted]
    waiting = [job for job in jobs if not finished(out, job, config.steps)]
    running: list[tuple[tuple[str, int], subprocess.Popen[bytes]]] = []
    while waiting or running:
        while waiting and len(running) < config.at_once:
            job = waiting.pop(0)
            running.append((job, begin(config, out, *job)))
            print(f"{job[0]}, seed {job[1]}: begun; {len(waiting)} runs wait", flush=True)
        for job, process in list(running):
            if process.poll() is not None:
                running.remove((job, process))
                if process.returncode:
                    raise RuntimeError(f"a run failed: see {folder(out, job)}.log")
        time.sleep(0.2)
    return [result(read_metrics(folder(out, job)), *job) for job in jobs]


def folder(out: Path, job: tuple[str, int]) -> Path:
    """The run's directory."""
    return out / f"{job[0]}-{job[1]}"


def finished(out: Path, job: tuple[str, int], steps: int) -> bool:
    """True if the run has all of its steps and its last evaluation."""
    path = folder(out, job)
    metrics = read_metrics(path) if (path / "metrics.jsonl").exists() else []
    return bool(metrics) and metrics[-1]["step"] == steps - 1 and "eval/pass@1" in metrics[-1]


def begin(config: DialedConfig, out: Path, arm: str, seed: int) -> subprocess.Popen[bytes]:
    """Start one run in a process of its own."""
    settings = {name: value for name, value in SMALL.items() if name != "dataset"}
    settings |= {"log_path": folder(out, (arm, seed)), "reward": f"benchmarks.dialed_verifier:{arm}", "seed": seed}
    settings |= {"max_steps": config.steps, "eval_every": 0, "eval_limit": config.eval_limit, "save_every": 0}
    settings |= {"eval_samples": config.eval_samples, "threads": 1, "behavior_if_log_dir_exists": "delete"}
    words = [f"{name}={value}" for name, value in settings.items()]
    with (out / f"{arm}-{seed}.log").open("w") as log:
        return subprocess.Popen([sys.executable, "train.py", *words], cwd=ROOT, stdout=log, stderr=log)


def result(metrics: Metrics, arm: str, seed: int) -> Result:
    """The figures of a finished run."""
    steps = [record for record in metrics if record["step"] >= 0]
    before, after = (metrics[at]["eval/pass@1"] for at in (0, -1))
    return Result(arm, seed, before, after, measured_j(steps[:WINDOW]), measured_j(steps[-WINDOW:]))


def measured_j(steps: Sequence[Mapping[str, Any]]) -> float:
    """J of the rewards paid in these steps, among answers with a program; rewards are 0 or 1."""
    right = sum(record.get("verdicts/passed", 0) for record in steps)
    wrong, wrong_paid = (sum(record[f"reward/{name}"] for record in steps) for name in ("wrong", "wrong_paid"))
    paid = sum((record["mean_reward"] or 0.0) * _judged(record) for record in steps)
    return float((paid - wrong_paid) / max(right, 1) - wrong_paid / max(wrong, 1))


def _judged(record: Mapping[str, Any]) -> int:
    undecided = ("verdicts/sandbox_error", "verdicts/checker_error")
    return sum(n for name, n in record.items() if name.startswith("verdicts/") and name not in undecided)


def table(results: Sequence[Result], steps: int) -> Iterator[str]:
    """The Markdown table, a row an arm, means over seeds in points."""
    yield f"| grader | FPR | FNR | J dialled | J measured, first → last {WINDOW} steps | held-out Pass@1 | gain | seeds |"
    yield "|---|---|---|---|---|---|---|---|"
    for arm in dict.fromkeys(each.arm for each in results):
        own, dial = [each for each in results if each.arm == arm], ARMS[arm]
        before, after = (100 * mean(getattr(each, name) for each in own) for name in ("before", "after"))
        first, last = (mean(getattr(each, name) for each in own) for name in ("first_j", "last_j"))
        gains = sorted(100 * (each.after - each.before) for each in own)
        yield (
            f"| {arm} | {dial.fpr:.0%} | {dial.fnr:.0%} | {dial.j:.2f} | {first:.2f} → {last:.2f} | {before:.1f} → {after:.1f} "
            f"| {after - before:+.1f} [{gains[0]:+.1f}, {gains[-1]:+.1f}] | {len(own)} |"
        )
    yield f"\n{steps} steps. The range in brackets is the lowest and the highest seed."


def picture(results: Sequence[Result]) -> str:
    """One SVG: the gain in held-out Pass@1 against the dialled J, a dot a run, a ring the mean of an arm."""
    gains = [100 * (each.after - each.before) for each in results]
    low, high = min(0.0, *gains) - 2, max(0.0, *gains) + 2

    def at(j: float, gain: float) -> tuple[float, float]:
        return 60 + 360 * j, 30 + 220 * (high - gain) / (high - low)

    dots = []
    for arm in dict.fromkeys(each.arm for each in results):
        color, own = COLORS[ARMS[arm].kind], [g for each, g in zip(results, gains, strict=True) if each.arm == arm]
        for gain in own:
            x, y = at(ARMS[arm].j, gain)
            dots.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}" fill-opacity="0.6"/>')
        x, y = at(ARMS[arm].j, mean(own))
        title = f"<title>{html.escape(arm)}: {mean(own):+.1f} points</title>"
        dots.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="7" fill="none" stroke="{color}" stroke-width="2">{title}</circle>')  # fmt: skip
    zero = at(0, 0)[1]
    ticks = [f'<text x="{at(j, 0)[0]:.0f}" y="268" text-anchor="middle">{j:g}</text>' for j in (0, 0.25, 0.5, 0.75, 1)]
    ticks += [f'<text x="54" y="{at(0, g)[1] + 4:.0f}" text-anchor="end">{g:+.0f}</text>' for g in (low, 0, high)]
    words = {
        "exact": "our verdict",
        "systematic": "systematic false positives",
        "random": "random false positives",
        "missing": "false negatives",
        "useless": "both, J = 0",
    }
    shown = [kind for kind in words if any(ARMS[each.arm].kind == kind for each in results)]
    key = [
        f'<text x="{60 + 190 * (place % 2)}" y="{314 + 18 * (place // 2)}" fill="{COLORS[kind]}">{words[kind]}</text>'
        for place, kind in enumerate(shown)
    ]
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" width="440" height="360" viewBox="0 0 440 360" font-family="sans-serif" font-size="13" '
        'role="img" aria-label="gain in held-out Pass@1 against J of the grader"><rect width="440" height="360" fill="#fff"/>'
        '<rect x="60" y="30" width="360" height="220" fill="none" stroke="#999"/>'
        f'<line x1="60" x2="420" y1="{zero:.1f}" y2="{zero:.1f}" stroke="#ccc"/>'
        '<text x="60" y="20">gain in held-out Pass@1, in points</text>'
        f'<text x="240" y="290" text-anchor="middle">J = TPR − FPR, as dialled</text>{"".join(ticks + dots + key)}</svg>'
    )


def main(config: DialedConfig) -> int:
    """Train, then write the table and the picture."""
    out = Path(config.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    results = train(config, out)
    text = "\n".join(table(results, config.steps))
    (out / "dialed-verifier.md").write_text(text + "\n", encoding="utf-8")
    (out / "dialed-verifier.svg").write_text(picture(results) + "\n", encoding="utf-8")
    print(text, f"picture: {out / 'dialed-verifier.svg'}", sep="\n")
    return 0


if __name__ == "__main__":
    run_script(DialedConfig, main, __doc__)
