"""The settings of a training run."""

from __future__ import annotations

import math
from typing import Literal

import chz

from code_rl.errors import ConfigError
from code_rl.grpo import Advantage, Loss
from code_rl.renderers import renderer_names
from code_rl.schedule import parse_schedule


@chz.chz
class Config:
    """Settings of a training run. A recipe (recipe=NAME) sets several at once; what is written beside it wins."""

    recipe: str | None = chz.field(
        default=None, doc="Named settings to start from. On the embedded default, without a model_name, it is 'tiny'."
    )
    backend: str = chz.field(
        default="auto",
        doc="Where the model lives: embedded, tinker (hosted; TINKER_API_KEY, or TINKER_BASE_URL), or a server's http://host:port.\n"
        "auto: tinker if one of those two is set in the environment or in .env, else embedded.",
    )
    model_name: str | None = chz.field(
        default=None, doc="'tiny' (built in), a local folder, or a hub id of a Qwen2, Qwen3 or Llama causal LM."
    )
    device: str = chz.field(default="auto", doc="Device of the embedded engine: auto, cpu, cuda or mps.")
    threads: int | None = chz.field(
        default=None,
        doc="CPU threads of the embedded engine (None: torch's choice). With overlap on few cores, 1.",
    )
    renderer: str = chz.field(
        default="auto",
        doc="How conversations become tokens: auto (the one that agrees with the model's chat template), qwen3_instruct,\n"
        "qwen3, qwen3_thinking, qwen3_disable_thinking, or chat_template (the tokenizer's own, whatever it is).",
    )
    dataset: str = chz.field(
        default="builtin",
        doc="Training problems: 'builtin', a name (deepcoder, code-r1, taco, leetcode, …) or hub id as name[@revision][:split],\n"
        "a file (.jsonl, .json, .parquet, .gz, .zst), a folder[:split], or several with commas. docs/data.md lists the names.",
    )
    test_dataset: str | None = chz.field(
        default=None,
        doc="Held-out problems, in the same words as dataset=. None: those that belong to the dataset (builtin, deepcoder,\n"
        "code-r1, leetcode, a prepared folder, … have some).",
    )
    executor: str = chz.field(
        default="auto",
        doc="Where programs run: 'embedded', or Sandbox Fusion URLs, comma-separated. auto: SANDBOX_URL if set, else embedded.",
    )
    isolation: Literal["auto", "full", "landlock", "none"] = chz.field(
        default="auto",
        doc="Isolation level of the embedded sandbox; auto takes the strongest that this machine allows.",
    )
    sandbox_concurrency: int | None = chz.field(
        default=None, doc="Programs in flight at once (None: the executor's default)."
    )
    batch_size: int = chz.field(default=128, doc="Completions per step in all, when groups_per_batch is not given.")
    group_size: int = chz.field(
        default=8,
        doc="Without groups_per_batch: prompts per step, so that each gets batch_size // group_size completions.\n"
        "With groups_per_batch: completions per prompt.",
    )
    groups_per_batch: int | None = chz.field(default=None, doc="Prompts per step (tinker-cookbook's convention).")
    learning_rate: float = chz.field(default=4e-5, doc="Adam's learning rate.")
    beta1: float = chz.field(default=0.9, doc="Adam's first moment decay.")
    beta2: float = chz.field(default=0.95, doc="Adam's second moment decay.")
    eps: float = chz.field(default=1e-12, doc="Adam's epsilon.")
    loss: Loss = chz.field(
        default="importance_sampling",
        doc="Loss per token, as Tinker defines it: importance_sampling (no clipping), ppo or cispo.",
    )
    clip_low: float | None = chz.field(
        default=None, doc="Ratios are clipped at 1 - clip_low (None: the loss's own, 0.2 for ppo, 1 for cispo)."
    )
    clip_high: float | None = chz.field(
        default=None,
        doc="Ratios are clipped at 1 + clip_high (None: the loss's own, 0.2 for ppo, 3 for cispo). Clip-higher: above clip_low.",
    )
    kl_coef: float = chz.field(
        default=0.0, doc="Weight of a KL term against the base model, in the advantages; 0: none, nothing is computed."
    )
    advantage: Advantage = chz.field(
        default="mean",
        doc="Reward minus the group's mean (mean), that over the group's standard deviation (mean_std), or reward minus the\n"
        "mean of the others (leave_one_out).",
    )
    overlong: Literal["judged", "mask", "mask_loss", "wrong", "penalty"] = chz.field(
        default="judged",
        doc="Completions cut off at their token limit: as judged; masked out of loss and baseline (mask); out of the loss only\n"
        "(mask_loss); counted as wrong (wrong); or a reward that sinks towards the limit (penalty).",
    )
    overlong_buffer: int | None = chz.field(
        default=None, doc="With overlong=penalty: tokens before the limit over which the reward sinks."
    )
    overlong_penalty: float | None = chz.field(
        default=None, doc="With overlong=penalty: what is taken at the limit (None: 1)."
    )
    dynamic_sampling: int = chz.field(
        default=0,
        doc="How often a place in the batch whose group has no variance is filled again with another problem; 0: never.",
    )
    difficulty: str | None = chz.field(
        default=None, doc="Train only on problems whose pass rate, as `code-rl prepare` measured it, is in LOW..HIGH."
    )
    lora_rank: int = chz.field(default=32, doc="Rank of the LoRA adapters.")
    max_tokens: int = chz.field(
        default=24576, doc="Tokens per completion at most; capped to what the model's context leaves."
    )
    max_tokens_schedule: str | None = chz.field(
        default=None,
        doc="Token limits of training by stage: '0:16384,200:32768'; a stage may begin at a step, at truncated>SHARE or at\n"
        "plateau. max_tokens is then the limit of evaluations.",
    )
    schedule_window: int | None = chz.field(default=None, doc="Steps that truncated> and plateau look at (None: 20).")
    max_steps_off_policy: int = chz.field(
        default=0,
        doc="K: a batch is sampled with the weights of K steps before it is trained on, while those steps train. 0: one stage\n"
        "waits for the other.",
    )
    num_substeps: int = chz.field(default=1, doc="Optimizer steps per batch, each on its share of the prompts.")
    num_minibatches: int = chz.field(
        default=1, doc="Requests per optimizer step; each goes to the trainer as soon as its groups are scored."
    )
    sample_request: Literal["auto", "group", "completion"] = chz.field(
        default="auto",
        doc="One sampling request per group, or one per completion, which is then scored the moment it is sampled.\n"
        "auto: completion when max_steps_off_policy is above 0.",
    )
    temperature: float = chz.field(default=1.0, doc="Sampling temperature in training and in pass@k evaluation.")
    format_coef: float = chz.field(default=0.1, doc="Weight of the format score (-1 without a fenced block, else 0).")
    reward_timeout: float = chz.field(
        default=6.0, doc="CPU seconds per test at most; a problem's own lower limit wins."
    )
    max_steps: int = chz.field(default=-1, doc="Training steps; -1 trains until it is stopped.")
    eval_every: int = chz.field(
        default=10,
        doc="Greedy evaluation every so many steps; the full one comes before and after. -1: none at all; 0: only those two.",
    )
    eval_limit: int = chz.field(
        default=64, doc="Held-out problems per split that evaluations use (a fixed subsample); -1: all."
    )
    eval_samples: int = chz.field(
        default=8, doc="Completions per problem of the full evaluations, for Pass@1 and Pass@k."
    )
    save_every: int = chz.field(default=10, doc="Checkpoint every so many steps, and at the end. 0: never.")
    keep_checkpoints: int | None = chz.field(
        default=None,
        doc="Checkpoints to keep, the newest ones (None: all); at least 2, so that there is one to fall back to.",
    )
    checkpoint_ttl_days: float | None = chz.field(
        default=None, doc="Days after which a remote back end may delete a checkpoint (None: never)."
    )
    backend_patience: float = chz.field(
        default=600.0, doc="Seconds that a remote back end may be silent before the run stops, resumable."
    )
    request_patience: float = chz.field(
        default=7200.0,
        doc="Seconds that a remote back end that is well may take over one request before the run stops, resumable.",
    )
    sandbox_patience: float = chz.field(
        default=600.0, doc="Seconds that the sandbox may be gone before the run stops, resumable."
    )
    max_tokens_total: int | None = chz.field(
        default=None,
        doc="Hard cap on tokens (prefilled, sampled and trained): the run stops with a checkpoint before one could be passed.",
    )
    max_cost: float | None = chz.field(default=None, doc="Hard cap on cost, by the price table of prices=.")
    prices: str | None = chz.field(
        default=None,
        doc="TOML file: [price] prefill, sample, train (money per million tokens); [assume] what dry_run should assume.",
    )
    dry_run: bool = chz.field(
        default=False,
        doc="Print the settings as resolved and a forecast of tokens, sandbox CPU, time and cost, and stop.",
    )
    replay: str | None = chz.field(
        default=None,
        doc="Run directory: credit its recorded steps again under the settings of the algorithm given beside it (advantage=,\n"
        "overlong=, loss=, …), without model or sandbox, and stop.",
    )
    verify: bool = chz.field(
        default=False,
        doc="With replay=: compute every reward, advantage and metric again and report what differs; exit code 1 if anything does.",
    )
    replay_out: str | None = chz.field(
        default=None, doc="With replay=: a file that gets the replayed metrics, one JSON object a step."
    )
    seed: int = chz.field(default=0, doc="Seed of everything: problem order, LoRA initialisation, sampling.")
    log_to: str = chz.field(
        default="", doc="Trackers that get the metrics too, comma-separated: wandb, tensorboard, trackio, mlflow."
    )
    log_path: str | None = chz.field(default=None, doc="Run directory (None: ~/code-rl-logs/<date-time>).")
    behavior_if_log_dir_exists: Literal["resume", "ask", "delete", "raise"] = chz.field(
        default="resume", doc="What to do when log_path holds an earlier run."
    )

    @chz.validate
    def _positive(self) -> None:
        for name in (
            "batch_size",
            "group_size",
            "lora_rank",
            "max_tokens",
            "eval_samples",
            "num_substeps",
            "num_minibatches",
        ):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in (
            "groups_per_batch",
            "sandbox_concurrency",
            "threads",
            "overlong_buffer",
            "schedule_window",
            "max_tokens_total",
        ):
            value = getattr(self, name)
            _require(value is None or value >= 1, name, value, "at least 1")
        for name in ("dynamic_sampling", "max_steps_off_policy"):
            _require(getattr(self, name) >= 0, name, getattr(self, name), "0 or above")
        for name in (
            "learning_rate",
            "reward_timeout",
            "eps",
            "backend_patience",
            "request_patience",
            "sandbox_patience",
            "overlong_penalty",
            "clip_high",
            "max_cost",
        ):
            value = getattr(self, name)
            _require(value is None or (math.isfinite(value) and value > 0), name, value, "a finite number above 0")
        for name in ("temperature", "format_coef", "kl_coef"):
            value = getattr(self, name)
            _require(math.isfinite(value) and value >= 0, name, value, "a finite number, 0 or above")
        for name in ("beta1", "beta2"):
            _require(0 <= getattr(self, name) < 1, name, getattr(self, name), "in [0, 1)")
        for name in ("max_steps", "eval_every", "eval_limit"):
            _require(getattr(self, name) >= -1, name, getattr(self, name), "-1 or above")
        _require(self.max_steps != 0, "max_steps", 0, "-1 (until stopped) or at least 1")
        _require(self.eval_limit != 0, "eval_limit", 0, "-1 (all problems) or at least 1")
        _require(self.save_every >= 0, "save_every", self.save_every, "0 (never) or above")
        _require(0 <= self.seed < 2**31, "seed", self.seed, "in [0, 2**31)")
        kept = self.keep_checkpoints
        _require(kept is None or kept >= 2, "keep_checkpoints", kept, "at least 2")
        ttl = self.checkpoint_ttl_days
        _require(ttl is None or 1 / 24 <= ttl <= 3650, "checkpoint_ttl_days", ttl, "from 1/24 (an hour) to 3650")
        _require(self.clip_low is None or 0 < self.clip_low <= 1, "clip_low", self.clip_low, "above 0 and at most 1")
        _require(self.renderer in renderer_names(), "renderer", self.renderer, f"one of {', '.join(renderer_names())}")

    @chz.validate
    def _nothing_is_ignored(self) -> None:
        for name in ("clip_low", "clip_high"):
            if getattr(self, name) is not None and self.loss == "importance_sampling":
                raise ConfigError(
                    f"{name}={getattr(self, name)} has no effect with loss=importance_sampling, which does not clip; "
                    "choose loss=ppo or loss=cispo"
                )
        for name in ("overlong_buffer", "overlong_penalty"):
            if getattr(self, name) is not None and self.overlong != "penalty":
                raise ConfigError(f"{name}={getattr(self, name)} has no effect without overlong=penalty")
        if self.overlong == "penalty" and self.overlong_buffer is None:
            raise ConfigError("overlong=penalty needs overlong_buffer=TOKENS, over which the reward sinks")
        if self.schedule_window is not None and not (self.max_tokens_schedule or "").count(">") + (
            self.max_tokens_schedule or ""
        ).count("plateau"):
            raise ConfigError(
                f"schedule_window={self.schedule_window} has no effect: max_tokens_schedule has no stage that begins at "
                "truncated>SHARE or plateau"
            )
        if self.max_tokens_schedule is not None:
            limits = [stage.max_tokens for stage in parse_schedule(self.max_tokens_schedule)]
            if self.overlong_buffer is not None and self.overlong_buffer > min(limits):
                raise ConfigError(
                    f"overlong_buffer={self.overlong_buffer} is above {min(limits)}, a limit of max_tokens_schedule"
                )
        elif self.overlong_buffer is not None and self.overlong_buffer > self.max_tokens:
            raise ConfigError(f"overlong_buffer={self.overlong_buffer} is above max_tokens={self.max_tokens}")
        if self.max_cost is not None and self.prices is None:
            raise ConfigError(f"max_cost={self.max_cost} needs prices=FILE.toml, the price table")
        if self.difficulty is not None:
            parse_difficulty(self.difficulty)
        for name in ("verify", "replay_out"):
            if getattr(self, name) and self.replay is None:
                raise ConfigError(f"{name}={getattr(self, name)} has no effect without replay=DIR")


def parse_difficulty(text: str) -> tuple[float, float]:
    """`LOW..HIGH` as two pass rates. Raises ConfigError for anything else."""
    low, separator, high = text.partition("..")
    try:
        bounds = float(low), float(high)
    except ValueError:
        separator = ""
        bounds = 0.0, 0.0
    if not separator or not 0 <= bounds[0] <= bounds[1] <= 1:
        raise ConfigError(f"difficulty={text!r} must be LOW..HIGH with 0 <= LOW <= HIGH <= 1, as in 0.1..0.9")
    return bounds


def _require(condition: bool, name: str, value: object, wanted: str) -> None:
    if not condition:
        raise ConfigError(f"{name}={value} must be {wanted}")
