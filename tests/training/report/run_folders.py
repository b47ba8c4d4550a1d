"""Run directories made for tests: small ones that show everything, and one of any size."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from code_rl.training.report import open_run, side_by_side
from tests.paths import ROOT

TOKENIZER = ROOT / "src" / "code_rl" / "engine" / "local" / "tiny" / "tokenizer.json"

PROGRAMS = {
    "passed": "n = int(input())\nprint(sum(int(x) for x in input().split()))  # add up",
    "wrong_answer": "n = int(input())\nprint(max(int(x) for x in input().split()))",
    "runtime_error": "print(undefined_name)\nprint(input())",
    "time_limit": "while input() or True:\n    pass",
    "compile_error": "def f(:\n    pass",
    "no_code": "",
    "sandbox_error": "print(input())",
}
CONFIG = {
    "recipe": "tiny",
    "backend": "embedded",
    "model_name": "tiny",
    "dataset": "builtin",
    "executor": "embedded",
    "learning_rate": 0.002,
    "lora_rank": 32,
    "max_tokens": 128,
    "max_steps": 12,
    "seed": 0,
    "resolved": {"prompts": 3, "completions": 6},
}


def rewind(folder: Path, step: int) -> None:
    """Drop the records from `step` on, as a resume from there does."""
    for name in ("metrics.jsonl", "rollouts.jsonl"):
        lines = (folder / name).read_text().splitlines(keepends=True)
        (folder / name).write_text("".join(line for line in lines if json.loads(line)["step"] < step))


def overview(folder: Path) -> dict[str, Any]:
    """Everything that the page and the terminal say of a run."""
    (view,) = side_by_side([open_run(folder)])
    return view


def overview_of(
    folder: Path, records: Sequence[Mapping[str, Any]], config: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The overview of a run with these metrics and settings, and without rollouts."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config or {}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return overview(folder)


def write_run(folder: Path, steps: int = 12, seed: int = 0, config: dict[str, Any] | None = None) -> Path:
    """A run that learns: `steps` steps of three groups of six, two held-out splits, every kind of verdict."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.joinpath("tokenizer.json").write_bytes(TOKENIZER.read_bytes())
    folder.joinpath("config.json").write_text(json.dumps(CONFIG | {"max_steps": steps} | (config or {})))
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    with (folder / "metrics.jsonl").open("w") as metrics, (folder / "rollouts.jsonl").open("w") as rollouts:
        metrics.write(json.dumps({"step": -1, **evaluation(0.2, 0.3)}) + "\n")
        for step in range(steps):
            groups = list(make_groups(step, steps, random.Random(f"{seed}/{step}"), tokenizer))
            rollouts.writelines(json.dumps(group) + "\n" for group in groups)
            record = step_record(step, groups)
            if step == steps - 1:
                record |= evaluation(0.6, 0.5)
            metrics.write(json.dumps(record) + "\n")
    return folder


def make_groups(step: int, steps: int, draw: random.Random, tokenizer: Tokenizer) -> Iterator[dict[str, Any]]:
    """Three groups: one problem that comes back every step, and two of its own."""
    for number, problem in enumerate(("sums/again", f"sums/{step}a", f"sums/{step}b")):
        kinds = list(PROGRAMS) if step % 5 == 2 else ["passed", "wrong_answer", "runtime_error", "no_code"]
        weights = [1 + 6 * step / steps if kind == "passed" else 1 for kind in kinds]
        samples = [completion(kind, draw, tokenizer) for kind in draw.choices(kinds, weights, k=6)]
        yield group_line(step, number, problem, samples, tokenizer)


def group_line(
    step: int, number: int, problem: str, samples: list[dict[str, Any]], tokenizer: Tokenizer
) -> dict[str, Any]:
    """One line of rollouts.jsonl."""
    statement = f"Add {problem} up.\nPrint the sum of the n integers on the second line."
    return {
        "step": step,
        "group": number,
        "attempt": 0,
        "problem_id": problem,
        "statement": statement,
        "public_tests": [{"test": 0, "call": False, "input": "3\n1 2 3\n", "expected": "6\n"}],
        "prompt_tokens": tokenizer.encode(statement).ids,
        "completions": samples,
    }


def completion(kind: str, draw: random.Random, tokenizer: Tokenizer) -> dict[str, Any]:
    """One completion with the verdict asked for."""
    text = f"Read, then add.\n```python\n{PROGRAMS[kind]}\n```" if PROGRAMS[kind] else "I would rather not."
    tokens = tokenizer.encode(text).ids
    passed = 8 if kind == "passed" else 0 if kind in ("no_code", "compile_error") else draw.randrange(3)
    failure = {"test": passed, "public": passed == 0, "message": f"{kind}: expected '6', got '3'"}
    return {
        "text": text,
        "reward": None if kind == "sandbox_error" else float(kind == "passed"),
        "advantage": None if kind == "sandbox_error" else draw.uniform(-1, 1),
        "verdict": kind,
        "passed": passed,
        "total": 8,
        "failure": None if kind in ("passed", "no_code") else failure,
        "truncated": False,
        "masked": None,
        "tokens": tokens,
        "logprobs": [-draw.expovariate(2.0) for _ in tokens],
    }


def step_record(step: int, groups: list[dict[str, Any]]) -> dict[str, Any]:
    """The line of metrics.jsonl that belongs to these groups."""
    samples = list(itertools.chain.from_iterable(group["completions"] for group in groups))
    rewards = [sample["reward"] for sample in samples if sample["reward"] is not None]
    kinds = [sample["verdict"] for sample in samples]
    return {
        "step": step,
        "mean_reward": sum(rewards) / len(rewards),
        "mean_correct": kinds.count("passed") / len(kinds),
        "format_rate": 1 - kinds.count("no_code") / len(kinds),
        "groups_skipped": 0,
        "groups_total": len(groups),
        "n_datums": len(samples),
        "loss": -0.01,
        "kl_sample_train": 1e-7,
        "ratio_max": 1e-6,
        "entropy": 0.5 / (1 + step),
        "truncated_rate": 0.0,
        "tokens/prompt": 60,
        "tokens/completion": sum(len(sample["tokens"]) for sample in samples),
        **{f"verdicts/{kind}": kinds.count(kind) for kind in sorted(set(kinds))},
        **{f"masked/{kind}": kinds.count(kind) for kind in {"sandbox_error"} & set(kinds)},
        "time/sample": 0.4,
        "time/score": 0.3,
        "time/train": 0.2,
        "time/step": 1.0,
        "a_metric_of_tomorrow": 0.5,
    }


def evaluation(first: float, second: float) -> dict[str, Any]:
    """Two splits, evaluated with samples."""
    found: dict[str, Any] = {"time/eval": 3.0, "tokens/eval": 900}
    for name, score in (("constants", first), ("compositions", second)):
        found |= {f"eval/{name}/pass@1": score, f"eval/{name}/pass@1_low": score - 0.05}
        found |= {f"eval/{name}/pass@1_high": score + 0.05, f"eval/{name}/pass@8": min(1.0, score + 0.3)}
        found |= {f"eval/{name}/mean_correct": score + 0.1, f"eval/{name}/format_rate": 0.9}
        found[f"eval/{name}/problems"] = 64
    mean = (first + second) / 2
    return found | {
        "eval/pass@1": mean,
        "eval/pass@8": mean + 0.3,
        "eval/pass@k": mean + 0.3,
        "eval/mean_correct": mean + 0.1,
    }


def write_large_run(folder: Path, steps: int, groups: int = 8, completions: int = 16, tokens: int = 110) -> Path:
    """A run of any size, quickly: lines are put together from a few hundred completions with texts of their own."""
    write_run(folder, steps=1, config={"max_steps": steps})
    draw = random.Random(0)
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    kinds = [kind for kind in PROGRAMS if kind != "sandbox_error"]
    pool = [_varied(kind, number, tokens, draw, tokenizer) for kind in kinds for number in range(60)]
    parts = [(sample["verdict"], json.dumps(sample)) for sample in pool]
    with (folder / "metrics.jsonl").open("w") as metrics, (folder / "rollouts.jsonl").open("w") as rollouts:
        metrics.write(json.dumps({"step": -1, **evaluation(0.2, 0.3)}) + "\n")
        for step in range(steps):
            counts: dict[str, int] = {}
            for number in range(groups):
                chosen = draw.choices(parts, k=completions)
                for kind, _ in chosen:
                    counts[kind] = counts.get(kind, 0) + 1
                problem = f"large/{draw.randrange(4096)}"
                head = json.dumps({**group_line(step, number, problem, [], tokenizer), "completions": None})
                rollouts.write(head[: -len("null}")] + "[" + ", ".join(text for _, text in chosen) + "]}\n")
            correct = counts.get("passed", 0) / (groups * completions)
            record = {"mean_reward": correct, "mean_correct": correct, "format_rate": 1.0, "loss": draw.gauss(0, 0.01)}
            record |= {"groups_skipped": 1, "groups_total": groups, "tokens/completion": tokens * groups * completions}
            record |= {f"verdicts/{kind}": count for kind, count in counts.items()}
            record |= {"time/sample": 3.0, "time/score": 1.0, "time/train": 2.0, "time/step": 6.0}
            record |= {f"more/{name}": draw.random() for name in range(12)}
            if step % 100 == 99 or step == steps - 1:
                record |= evaluation(0.2 + 0.4 * step / steps, 0.3 + 0.3 * step / steps)
            metrics.write(json.dumps({"step": step, **record}) + "\n")
    return folder


def _varied(kind: str, number: int, tokens: int, draw: random.Random, tokenizer: Tokenizer) -> dict[str, Any]:
    sample = completion(kind, draw, tokenizer)
    filler = "\n".join(f"v{draw.randrange(10**6)} = {draw.randrange(10**4)}" for _ in range(max(1, tokens // 12)))
    sample["text"] = sample["text"].replace("```python\n", f"```python\n# {number}\n{filler}\n")
    sample["tokens"] = (tokenizer.encode(sample["text"]).ids * 3)[:tokens]
    sample["logprobs"] = [-draw.expovariate(2.0) for _ in sample["tokens"]]
    return sample


def findings(view: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The findings of an overview by name, the worst first."""
    return {finding["name"]: finding for finding in view["findings"]}
