"""SmolLM2-135M-Instruct: the embedded engine beside transformers' `generate` and vLLM's CPU build, and its step beside TRL's GRPOTrainer.

    python benchmarks/real.py [part=all|sample|step] [threads=2] [rounds=3] [prompts=8] [group=8] [new_tokens=64] [dtypes=bfloat16,float32]
                              [vllm_python=PYTHON] [trl_python=PYTHON] [vllm=compiled,eager] [vllm_preload=LIB:LIB]

The comparison. Prompts are the first problems of `dataset=functions` as recipe `smollm2` words them; every completion has `new_tokens` tokens,
whatever it says, drawn at temperature 1 from the whole distribution. `sample`: prompts × group completions, given token ids. `step`: the same with LoRA (rank 32, the
seven projections), a reward, an update on all of them, and the weights back to the sampler; no KL term. Ours returns the log-probabilities that training
needs; the samplers beside it are not asked for them.

How. Each contestant is a process (`real_peers.py`), loaded and warmed by one turn. Then they take turns, and whoever does not run is stopped, so that a neighbour's noise
hits all and no idle server takes part. Ratios are of turns in the same round: the median, and the range over rounds. CPU seconds are those of all the contestant's processes and threads.

vLLM at its best, as far as it was sought: threads bound to cores, compiled and eager, a block of 32 tokens so that completions share their prompt's prefill, its cache emptied before each
turn, Intel's OpenMP and tcmalloc preloaded where `vllm_preload` names them. Its environment: vLLM's CPU build (its own installation page). That of TRL: `python -m venv trl && trl/bin/pip install trl peft datasets
accelerate torch transformers`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, Literal

import chz

from code_rl.cli.main import run_script
from code_rl.util.errors import ConfigError

PEERS = Path(__file__).parent / "real_peers.py"
MODEL = "smollm2"
_WARM_TOKENS = 4
INSTALL = {
    "vllm": "vllm_python= names no Python that has vllm; vLLM's installation page has its CPU build",
    "trl": "trl_python= names no Python that has trl: python -m venv trl && trl/bin/pip install trl peft datasets accelerate torch transformers",
}


@chz.chz
class Options:
    """Size of the work, and where the others are installed."""

    part: Literal["all", "sample", "step"] = chz.field(default="all", doc="What is measured.")
    threads: int = chz.field(default=2, doc="CPU threads of each contestant.")
    rounds: int = chz.field(default=3, doc="Turns of each contestant, after one that is not counted.")
    prompts: int = chz.field(default=8, doc="Prompts.")
    group: int = chz.field(default=8, doc="Completions of each.")
    new_tokens: int = chz.field(default=64, doc="Tokens of each completion.")
    dtypes: str = chz.field(default="bfloat16,float32", doc="Of weights and activations, comma-separated.")
    vllm_python: str = chz.field(default=sys.executable, doc="Python of an environment with vLLM.")
    trl_python: str = chz.field(default=sys.executable, doc="Python of an environment with TRL.")
    wait: Literal["default", "passive"] = chz.field(
        default="default",
        doc="What OpenMP threads do between loops: as their library sets it, or sleep at once, as a busy machine wants it.",
    )
    vllm: str = chz.field(default="compiled,eager", doc="How vLLM runs the model, comma-separated.")
    vllm_preload: str = chz.field(default="", doc="Libraries for vLLM's LD_PRELOAD, colon-separated.")

    @chz.validate
    def _known(self) -> None:
        for name, given, known in (
            ("dtypes", self.dtypes, ("bfloat16", "float32")),
            ("vllm", self.vllm, ("compiled", "eager")),
        ):
            if not set(given.split(",")) <= set(known):
                raise ConfigError(f"{name}={given} must name {' or '.join(known)}, comma-separated")
        for name in ("threads", "rounds", "prompts", "group", "new_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1")


@dataclass
class Contestant:
    """A process that takes turns; (wall seconds, CPU seconds) of each turn that counts."""

    name: str
    dtype: str
    process: subprocess.Popen[str]
    found: list[tuple[float, float]] = field(default_factory=list)
    tokens: int = 0

    def turn(self, new_tokens: int) -> tuple[float, float]:
        assert self.process.stdin is not None
        os.killpg(self.process.pid, signal.SIGCONT)
        cpu, start = self._cpu(), time.perf_counter()
        self.process.stdin.write(f"{new_tokens}\n")
        self.process.stdin.flush()
        self.tokens = self.hear()["tokens"]
        taken = time.perf_counter() - start, self._cpu() - cpu
        os.killpg(self.process.pid, signal.SIGSTOP)
        return taken

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.name}, {self.dtype}: ended with exit code {self.process.wait()}; its messages are above")
        words: dict[str, Any] = json.loads(line)
        return words

    def _cpu(self) -> float:
        """CPU seconds of all processes of its session."""
        ticks = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            if int(fields[3]) == self.process.pid:
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def read_prompts(model: str, count: int) -> list[list[int]]:
    """Token ids of the first problems' prompts."""
    from transformers import AutoTokenizer

    from code_rl.data import load_problems
    from code_rl.policy.prompt_templates import get_prompt_template
    from code_rl.policy.renderers import get_renderer

    renderer, worded = get_renderer("auto", AutoTokenizer.from_pretrained(model)), get_prompt_template()
    return [renderer.prompt_tokens(worded(problem.view())) for problem in load_problems("functions", count)]


def has(python: str, module: str) -> bool:
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", code], env=_foreign(), check=False).returncode == 0


def _foreign() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def start(options: Options, name: str, who: str, dtype: str, job: dict[str, Any]) -> Contestant:
    """Start a contestant; it loads its model."""
    python, environment = sys.executable, dict(os.environ)
    if who.startswith("vllm"):
        cores = sorted(os.sched_getaffinity(0))[: options.threads]
        python, environment = options.vllm_python, _foreign()
        environment |= {
            "VLLM_TARGET_DEVICE": "cpu",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
            "LD_PRELOAD": options.vllm_preload,
        }
    elif who == "trl_step":
        python, environment = options.trl_python, _foreign()
    if options.wait == "passive":
        environment |= {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}
    environment |= {
        "HF_HUB_OFFLINE": "1",
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    given = json.dumps({**job, "who": who, "dtype": dtype})
    process = subprocess.Popen(
        [python, str(PEERS), given],
        env=environment,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    return Contestant(name, dtype, process)


def compete(options: Options, title: str, entrants: list[tuple[str, str]], job: dict[str, Any]) -> None:
    """Run the rounds and print the table; the first entrant is ours."""
    contestants: list[Contestant] = []
    try:
        for dtype, (name, who) in product(options.dtypes.split(","), entrants):
            began = time.perf_counter()
            contestants.append(start(options, name, who, dtype, job))
            contestants[-1].hear()
            contestants[-1].turn(_WARM_TOKENS)
            print(f"{name}, {dtype}: ready after {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
        for _ in range(options.rounds):
            for contestant in contestants:
                contestant.found.append(contestant.turn(options.new_tokens))
    finally:
        for contestant in contestants:
            contestant.end()
    total = options.prompts * options.group * options.new_tokens
    assert all(contestant.tokens == total for contestant in contestants), [c.tokens for c in contestants]
    print(f"\n{title}, {options.prompts} × {options.group} × {options.new_tokens} tokens, {options.threads} threads")
    print(
        f"  {'':28} {'dtype':9} {'seconds':>8} {'tokens/s':>9} {'per CPU-s':>10}   ours is faster, wall [range]   by CPU-seconds"
    )
    for contestant in contestants:
        ours = next(c for c in contestants if c.dtype == contestant.dtype)
        wall, cpu = (median(turn[i] for turn in contestant.found) for i in (0, 1))
        ratios = [
            [theirs[i] / mine[i] for theirs, mine in zip(contestant.found, ours.found, strict=True)] for i in (0, 1)
        ]
        compared = "   ".join(f"{median(r):6.2f} [{min(r):.2f}, {max(r):.2f}]" for r in ratios)
        print(
            f"  {contestant.name:28} {contestant.dtype:9} {wall:8.2f} {total / wall:9.0f} {total / cpu:10.0f}   "
            + ("" if contestant is ours else compared)
        )


def main(options: Options) -> int:
    from code_rl.engine.names import source_of

    # Stopped processes do not notice that we are gone
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    model = source_of(MODEL)
    job = {"model": model, "prompts": read_prompts(model, options.prompts)} | {
        name: getattr(options, name) for name in ("threads", "group", "new_tokens")
    }
    there = {name: has(python, name) for name, python in (("vllm", options.vllm_python), ("trl", options.trl_python))}
    for name in (name for name, found in there.items() if not found):
        print(f"{name}: skipped, {INSTALL[name]}")
    print(
        f"{model}, prompts of {min(map(len, job['prompts']))} to {max(map(len, job['prompts']))} tokens; load {_load()}"
    )
    if options.part in ("all", "sample"):
        entrants = [("embedded engine", "ours"), ("transformers generate", "generate")]
        compete(
            options,
            "sampling",
            entrants + [(f"vLLM, {how}", f"vllm_{how}") for how in options.vllm.split(",") if there["vllm"]],
            job,
        )
    if options.part in ("all", "step"):
        entrants = [("embedded engine", "our_step")] + [("TRL GRPOTrainer", "trl_step")] * there["trl"]
        compete(options, "one step of RL", entrants, job)
    print(f"load {_load()}")
    return 0


def _load() -> str:
    return ", ".join(f"{each:.1f}" for each in os.getloadavg())


if __name__ == "__main__":
    run_script(Options, main, __doc__ or "")
