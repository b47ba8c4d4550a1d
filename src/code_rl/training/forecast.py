"""`dry_run=true`: the resolved settings, and the expected tokens, sandbox CPU, time and money.
Nothing is started or measured.

A forecast assumes lengths and speeds. The `[assume]` table of `prices=FILE` overrides the defaults
below; every assumption is printed beside the forecast.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import chz

from code_rl.data.load import count_splits
from code_rl.engine import BUILT_IN, BackendKind
from code_rl.engine.local import memory_lines
from code_rl.engine.names import built_in_context
from code_rl.training.budget import Prices, Tokens, read_prices
from code_rl.training.config import (
    Config,
    batch_shape,
    doubtful,
    unused,
)
from code_rl.training.report.text import duration
from code_rl.util.errors import DataError

ASSUMED: Mapping[str, tuple[str, float, float]] = {
    "prompt_tokens": ("tokens of a prompt", 600.0, 64.0),
    "completion_share": ("mean completion, of its token limit", 0.4, 0.4),
    "code_rate": ("completions that hold a program", 0.9, 0.9),
    "program_cpu_s": ("CPU seconds to judge a program on all its tests", 1.0, 0.007),
    "sandbox_cpus": ("processor cores of the sandbox", 16.0, float(os.cpu_count() or 1)),
    "sample_tokens_per_s": ("tokens a second that the sampler gives in all", 20000.0, 17000.0),
    "train_tokens_per_s": ("tokens a second that the trainer takes", 20000.0, 28000.0),
    "eval_problems": ("held-out problems, where eval_limit=-1", 687.0, 687.0),
}
"""(meaning, usual value, value for the built-in model on the embedded engine, on the machine of
README's table)"""

FUNCTIONS_PROMPT = {"prompt_tokens": 190.0}  # from SmolLM2's tokenizer
SMOLLM2_SPEEDS = {"sample_tokens_per_s": 600.0, "train_tokens_per_s": 900.0}
"""The embedded engine's speeds with SmolLM2-135M on two cores."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The forecast of one run of `steps` steps (100 if max_steps=-1)."""

    steps: int
    tokens: Tokens
    sandbox_cpu_s: float
    step_s: float
    eval_s: float
    cost: float | None


def forecast(config: Config, assume: Mapping[str, float], prices: Prices | None) -> Expected:
    """Return the forecast from the settings and assumptions, all of `ASSUMED`; the cost is None
    without `prices`. Nothing is measured, and no model is loaded. Raises ConfigError for a batch
    that cannot be divided."""
    shape, steps = batch_shape(config), config.max_steps if config.max_steps > 0 else 100
    completions, prompt = shape.prompts * shape.samples_per_prompt, assume["prompt_tokens"]
    # What the built-in model's context leaves; no other model is read for a forecast.
    context = built_in_context() if config.model_name == BUILT_IN else None
    room = 2**62 if context is None else max(1, context - int(prompt))
    schedule, share = config.schedule(room), assume["completion_share"]
    limits = [schedule.stages[schedule.stage(step, [])].max_tokens for step in range(steps)]
    first, sampled = (completions * share * limit for limit in (limits[0], sum(limits)))
    evaluated, length = _evaluated(config, steps, assume), share * min(config.max_tokens, room)
    tokens = Tokens(
        prefill=int((steps * completions + evaluated) * prompt),
        sample=int(sampled + evaluated * length),
        train=int(sampled + steps * completions * prompt),
    )
    cpu_s = assume["code_rate"] * assume["program_cpu_s"]
    parts = (
        first / assume["sample_tokens_per_s"],
        completions * cpu_s / assume["sandbox_cpus"],
        (first + completions * prompt) / assume["train_tokens_per_s"],
    )
    return Expected(
        steps=steps,
        tokens=tokens,
        sandbox_cpu_s=(steps * completions + evaluated) * cpu_s,
        # The slowest part if stages overlap.
        step_s=max(parts) if config.max_steps_off_policy else sum(parts),
        eval_s=evaluated
        * (length / assume["sample_tokens_per_s"] + cpu_s / assume["sandbox_cpus"]),
        cost=prices.cost(tokens) if prices is not None else None,
    )


def _evaluated(config: Config, steps: int, assume: Mapping[str, float]) -> float:
    """Return the number of completions of all evaluations: two full ones, and greedy ones
    between."""
    if config.eval_every < 0:
        return 0.0
    splits = count_splits(config.dataset, config.test_dataset)
    problems = splits * config.eval_limit if config.eval_limit > 0 else assume["eval_problems"]
    between = (steps - 1) // config.eval_every if config.eval_every else 0
    return problems * (2 * (1 + config.eval_samples) + between)


def assumptions(config: Config, given: Mapping[str, float]) -> dict[str, float]:
    """Return the assumptions of a run, one for each name of `ASSUMED`: the `given` ones, else the
    defaults for its back end and data set. Raises DataError for an unknown name."""
    for name in given:
        if name not in ASSUMED:
            raise DataError(f"[assume] has no {name!r}; there are: {', '.join(ASSUMED)}")
    embedded = config.backend == BackendKind.EMBEDDED
    built_in = embedded and config.model_name == BUILT_IN
    here = {"program_cpu_s"} if config.dataset in ("builtin", "functions") else set[str]()
    here |= {"sandbox_cpus"} if config.executor == "embedded" else set[str]()
    usual = {name: values[built_in or name in here] for name, (_, *values) in ASSUMED.items()}
    speeds = SMOLLM2_SPEEDS if embedded and not built_in else {}
    prompt = FUNCTIONS_PROMPT if config.dataset == "functions" else {}
    return usual | prompt | speeds | dict(given)


def _cost(config: Config, cost: float | None, currency: str) -> str:
    """Return the expected cost as text; `cost` is None without a price table."""
    if cost is not None:
        return f"{cost:,.2f} {currency}"
    if config.backend == BackendKind.EMBEDDED:
        return "none for the embedded engine"
    return "unknown without prices=FILE.toml: [price] prefill, sample, train per million tokens"


def forecast_lines(config: Config) -> list[str]:
    """Return the lines that `dry_run=true` prints. Raises ConfigError or DataError for an unusable
    price table, unknown assumptions, or a batch that cannot be divided."""
    prices, given = read_prices(config.prices) if config.prices is not None else (None, {})
    assume = assumptions(config, given)
    expected = forecast(config, assume, prices)
    tokens, shape = expected.tokens, batch_shape(config)
    lines = ["settings, resolved:"]
    lines += [f"  {name} = {value}" for name, value in chz.asdict(config).items()]
    lines += [*unused(config), *doubtful(config)]
    total_s = expected.steps * expected.step_s + expected.eval_s
    lines += [
        "",
        f"forecast for {expected.steps} steps of "
        f"{shape}{' (max_steps=-1: 100 assumed)' if config.max_steps < 0 else ''}",
        f"  tokens: {tokens.total:,} (prefill {tokens.prefill:,}, sampled {tokens.sample:,}, "
        f"trained {tokens.train:,})",
        f"  sandbox: {expected.sandbox_cpu_s:,.0f} CPU-seconds",
        f"  time: {expected.step_s:,.{0 if expected.step_s >= 10 else 1}f} s a step, "
        f"{86400 / expected.step_s:,.0f} steps a day with "
        f"max_steps_off_policy={config.max_steps_off_policy}, evaluations aside",
        f"  in all: {duration(total_s)}, {duration(expected.eval_s)} of it evaluations",
        f"  cost: {_cost(config, expected.cost, prices.currency if prices else '')}",
    ]
    for name, cap, figure in (
        ("max_tokens_total", config.max_tokens_total, tokens.total),
        ("max_cost", config.max_cost, expected.cost),
    ):
        if cap is not None and figure is not None and figure > cap:
            lines.append(
                f"  {name}={cap:g} would stop the run early, after about "
                f"{100 * cap / figure:.0f}% of it"
            )
    if config.backend == BackendKind.EMBEDDED:
        lines += [f"  {line}" for line in memory_lines(config, config.training)]
    lines += ["", "assumed:"]
    lines += [
        f"  {name} = {assume[name]:g}  ({meaning})" for name, (meaning, *_) in ASSUMED.items()
    ]
    return lines
