"""The settings of a training run: every field says once all that is to be known of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import chz

from code_rl.data.load import parse_difficulty
from code_rl.engine.losses import HIGH, LOW, POLICY_LOSSES, get_loss
from code_rl.policy.environments import ENVIRONMENTS
from code_rl.policy.prompt_templates import PROMPTS
from code_rl.policy.renderers import renderer_names
from code_rl.policy.rewards import REWARDS
from code_rl.training.algorithm.advantages import ESTIMATORS, get_estimator
from code_rl.training.algorithm.lengths import parse_schedule
from code_rl.training.algorithm.shaping import parse_overlong
from code_rl.training.config.setting import (
    ANYWHERE,
    FIXED,
    MUTABLE,
    embedded,
    everywhere,
    facts_of,
    hosted,
    setting,
)
from code_rl.training.curriculum import CURRICULA, get_curriculum
from code_rl.util.errors import ConfigError
from code_rl.util.registry import GIVEN, described
from code_rl.util.setting import (
    ABOVE_0,
    AT_LEAST_0,
    AT_LEAST_1,
    EXECUTOR_DOC,
    FROM_0,
    ISOLATION_DOC,
    check_that,
)


def check_part(find: Callable[[str], object], settings: Any, name: str) -> None:
    """Raise ConfigError unless `find` knows the part that the setting names; an object is looked
    for when it is used."""
    if not getattr(settings, name).startswith(GIVEN):
        find(getattr(settings, name))


def _difficulty(settings: Any, name: str) -> None:
    text = getattr(settings, name)
    if text is not None:
        parse_difficulty(text)


CLIPPED = {
    name: loss.defaults
    for name, loss in POLICY_LOSSES.items()
    if {LOW, HIGH} & loss.defaults.keys()
}


def _own_clip(bound: str) -> str:
    """Return each loss's own clip range, in words."""
    return ", ".join(
        f"{abs(1 - (given[bound] or 0)):g} for {name}"
        for name, given in CLIPPED.items()
        if bound in given
    )


@chz.chz
class Config:
    """Settings of a training run. A recipe (recipe=NAME) sets several at once; what is written
    beside it wins."""

    recipe: str | None = setting(
        None,
        FIXED,
        ANYWHERE,
        "Named settings to start from. None: tiny for the built-in model (the embedded default); "
        "qwen3-4b off the embedded engine.",
    )
    backend: str = setting(
        "auto",
        FIXED,
        ANYWHERE,
        "Where the model lives: embedded, tinker (hosted; TINKER_API_KEY, or TINKER_BASE_URL), "
        "or a server's http://host:port. "
        "auto: tinker if one of those two is set in the environment or in .env, else embedded.",
    )
    model_name: str | None = setting(
        None,
        FIXED,
        everywhere(
            "embedded: a folder, a hub id or tiny; else a name that the server lists, or a "
            "folder or hub id that it could load, asked at the start"
        ),
        "'tiny' (built in), 'smollm2' (SmolLM2-135M-Instruct), a local folder, a .gguf file, or "
        "a hub id of a causal LM: Qwen2, Qwen3 and Llama are fast, others go through transformers.",
    )
    device: str = setting(
        "auto",
        MUTABLE,
        embedded("where the engine computes", "the server has its own"),
        "Device of the embedded engine: auto, cpu, cuda or mps.",
    )
    dtype: str = setting(
        "auto",
        FIXED,
        embedded(
            "its weights and activations; adapters and optimizer state are always float32",
            "the server has its own",
        ),
        "Weights and activations of the embedded engine: auto (bfloat16 on cuda, else float32), "
        "float32, or bfloat16: about twice as fast on CPUs with AVX-512 BF16 or AMX.",
        check=check_that(
            lambda name: name in ("auto", "float32", "bfloat16"), "auto, float32 or bfloat16"
        ),
    )
    threads: int | None = setting(
        None,
        MUTABLE,
        embedded("CPU threads of the engine", "the server has its own"),
        "CPU threads of the embedded engine (None: torch's choice). With overlap on few cores, 1.",
        check=AT_LEAST_1,
    )
    sampler: str | None = setting(
        None,
        MUTABLE,
        embedded(
            "a vLLM server draws all completions, with every step's adapter",
            "it draws its own completions",
        ),
        "vLLM server that samples for the embedded trainer, http://host:port[/v1]; its key, if "
        "it wants one, in CODE_RL_SERVER_KEY. None: the engine samples.",
    )
    sampler_dir: str | None = setting(
        None,
        MUTABLE,
        embedded("with sampler=", "there are no adapters to hand over"),
        "With sampler=: folder that this machine and vLLM's see under the same path, for "
        "adapters (None: checkpoints/adapters in the run directory).",
    )
    renderer: str = setting(
        "auto",
        FIXED,
        ANYWHERE,
        f"How conversations become tokens: {', '.join(renderer_names())}. auto: the one that "
        "agrees with the model's chat template; "
        "chat_template: the tokenizer's own, whatever it is.",
        check=check_that(
            lambda name: name in renderer_names(), f"one of {', '.join(renderer_names())}"
        ),
    )
    dataset: str = setting(
        "builtin",
        FIXED,
        ANYWHERE,
        "Training problems: 'builtin', 'functions', a name (deepcoder, code-r1, taco, leetcode, "
        "…) or hub id as name[@revision][:split], "
        "a file (.jsonl, .json, .parquet, .gz, .zst), a folder[:split], package.module:object of "
        "your own, or several with commas. docs/data.md lists the names.",
    )
    test_dataset: str | None = setting(
        None,
        FIXED,
        ANYWHERE,
        "Held-out problems, in the same words as dataset=. None: those that belong to the dataset "
        "(builtin, deepcoder, code-r1, leetcode, a prepared folder, … have some).",
        check=check_that(
            lambda name: bool(name.strip()), "a name or a path; leave it out for the dataset's own"
        ),
    )
    executor: str = setting("auto", MUTABLE, ANYWHERE, EXECUTOR_DOC)
    isolation: Literal["auto", "full", "landlock", "none"] = setting(
        "auto", MUTABLE, ANYWHERE, ISOLATION_DOC
    )
    sandbox_concurrency: int | None = setting(
        None,
        MUTABLE,
        ANYWHERE,
        "Programs in flight at once (None: the executor's default).",
        check=AT_LEAST_1,
    )
    batch_size: int = setting(
        128,
        FIXED,
        ANYWHERE,
        "Completions per step in all, when groups_per_batch is not given.",
        check=AT_LEAST_1,
    )
    group_size: int = setting(
        8,
        FIXED,
        ANYWHERE,
        "Without groups_per_batch: prompts per step, so that each gets batch_size // group_size "
        "completions. With groups_per_batch: completions per prompt.",
        check=AT_LEAST_1,
    )
    groups_per_batch: int | None = setting(
        None, FIXED, ANYWHERE, "Prompts per step (tinker-cookbook's convention).", check=AT_LEAST_1
    )
    learning_rate: float = setting(
        4e-5, FIXED, everywhere("sent with every step"), "Adam's learning rate.", check=ABOVE_0
    )
    grad_clip_norm: float = setting(
        0.0,
        FIXED,
        everywhere("sent with every step"),
        "A gradient whose norm is above this is scaled down to it; 0: none.",
        check=FROM_0,
    )
    loss: str = setting(
        "importance_sampling",
        FIXED,
        everywhere(
            "sent by name where the back end has it (embedded: all; else probed at the start with "
            "two tokens); else, and a loss of your own, computed here"
        ),
        f"Loss per token, as Tinker defines it: {described(POLICY_LOSSES)}; or "
        "package.module:object, a Loss of your own.",
        check=lambda settings, name: check_part(get_loss, settings, name),
    )
    clip_low: float | None = setting(
        None,
        FIXED,
        everywhere("probed together with the loss"),
        f"Ratios are clipped at 1 - clip_low (None: the loss's own, {_own_clip(LOW)}).",
        check=check_that(lambda low: 0 < low <= 1, "above 0 and at most 1"),
    )
    clip_high: float | None = setting(
        None,
        FIXED,
        everywhere("probed together with the loss"),
        f"Ratios are clipped at 1 + clip_high (None: the loss's own, {_own_clip(HIGH)}). "
        "Clip-higher: above clip_low.",
        check=ABOVE_0,
    )
    kl_coef: float = setting(
        0.0,
        FIXED,
        everywhere(
            "above 0, the base model's log-probabilities are asked of a sampling client of its own"
        ),
        "Weight of a KL term against the base model, in the advantages; 0: none, nothing is "
        "computed.",
        check=FROM_0,
    )
    advantage: str = setting(
        "mean",
        FIXED,
        ANYWHERE,
        f"What a group's rewards r become: {described(ESTIMATORS)}; or package.module:function "
        "of your own.",
        check=lambda settings, name: check_part(get_estimator, settings, name),
    )
    overlong: str = setting(
        "judged",
        FIXED,
        ANYWHERE,
        "Completions cut off at their token limit: as judged; masked out of loss and baseline "
        "(mask); out of the loss only (mask_loss); counted as wrong (wrong); or a reward that "
        "sinks by 1 over the last TOKENS before the limit (penalty:TOKENS).",
        check=lambda settings, name: check_part(parse_overlong, settings, name),
    )
    length_coef: float = setting(
        0.0,
        FIXED,
        ANYWHERE,
        "What a completion as long as its token limit loses of its reward; a shorter one in "
        "proportion.",
        check=FROM_0,
    )
    dynamic_sampling: int = setting(
        0,
        FIXED,
        ANYWHERE,
        "How often a place in the batch whose answers are all right or all wrong is filled again "
        "with another problem; 0: never.",
        check=AT_LEAST_0,
    )
    curriculum: str = setting(
        "uniform",
        FIXED,
        ANYWHERE,
        f"How likely a problem is to be drawn: {described(CURRICULA)}; or package.module:function "
        "of your own.",
        check=lambda settings, name: check_part(get_curriculum, settings, name),
    )
    difficulty: str | None = setting(
        None,
        FIXED,
        ANYWHERE,
        "Train only on problems whose pass rate, which `code-rl prepare pass_rates=` stored, is "
        "in LOW..HIGH.",
        check=_difficulty,
    )
    min_tests: int = setting(
        1, FIXED, ANYWHERE, "Train only on problems that have so many tests.", check=AT_LEAST_1
    )
    max_tests: int | None = setting(
        None,
        FIXED,
        ANYWHERE,
        "Tests of a training problem that are run at most (None: all): the public ones, then "
        "those with the longest inputs.",
        check=AT_LEAST_1,
    )
    canary: float = setting(
        0.0,
        MUTABLE,
        ANYWHERE,
        "Impossible problems made from the run's own, sampled and judged beside each batch and "
        "never trained on, as a share of its prompts. One that is passed is an alarm: the tests "
        "leak, or the judge is cheated. 0: none.",
        check=check_that(lambda share: 0 <= share <= 1, "a share from 0 to 1"),
    )
    lora_rank: int = setting(
        32,
        FIXED,
        everywhere("fixed when the training client is created"),
        "Rank of the LoRA adapters.",
        check=AT_LEAST_1,
    )
    max_tokens: int = setting(
        24576,
        FIXED,
        everywhere("capped to what the model's context leaves; the context is asked"),
        "Tokens per completion at most; capped to what the model's context leaves.",
        check=AT_LEAST_1,
    )
    max_tokens_schedule: str | None = setting(
        None,
        FIXED,
        ANYWHERE,
        "Token limits of training by stage: '0:16384,200:32768'; a stage may begin at a step, at "
        "truncated>SHARE or at "
        "plateau, which look at 20 steps. max_tokens is then the limit of evaluations.",
    )
    max_steps_off_policy: int = setting(
        0,
        FIXED,
        ANYWHERE,
        "K: a batch is sampled with the weights of K steps before it is trained on, while those "
        "steps train. 0: one stage\nwaits for the other.",
        check=AT_LEAST_0,
    )
    num_substeps: int = setting(
        1,
        FIXED,
        ANYWHERE,
        "Optimizer steps per batch, each on its share of the prompts.",
        check=AT_LEAST_1,
    )
    num_minibatches: int = setting(
        1,
        FIXED,
        ANYWHERE,
        "Micro-batches per optimizer step, whose gradients add up; each goes to the trainer as "
        "soon as its groups are scored.",
        check=AT_LEAST_1,
    )
    temperature: float = setting(
        1.0,
        FIXED,
        everywhere(
            "other than 1, passes are computed at it too where the back end can; refused where "
            "only its samples are scaled by it, said where nothing is"
        ),
        "Sampling temperature in training and in pass@k evaluation.",
        check=FROM_0,
    )
    top_p: float = setting(
        1.0,
        FIXED,
        everywhere(
            "sent with every sample; a remote back end is tried, and refused if it draws beyond it"
        ),
        "Draw only from the likeliest tokens that have this share of the mass together, in "
        "training and in evaluations; 1: from all. The log-probabilities "
        "that are trained on stay those of the whole distribution.",
        check=check_that(lambda share: 0 < share <= 1, "above 0 and at most 1"),
    )
    top_k: int = setting(
        -1,
        FIXED,
        everywhere("as top_p"),
        "Draw only from so many of the likeliest tokens; -1: from all.",
        check=check_that(lambda count: count == -1 or count >= 1, "-1 (all) or at least 1"),
    )
    prompt: str | None = setting(
        None,
        FIXED,
        ANYWHERE,
        f"How a problem is worded: {described(PROMPTS)}; or package.module:function of your own. "
        "None: livecodebench.",
    )
    system_prompt: str | None = setting(
        None,
        FIXED,
        ANYWHERE,
        "System message before the problem, in place of the template's own; empty: none. None: as "
        "the template has it.",
    )
    reward: str = setting(
        "correctness",
        FIXED,
        ANYWHERE,
        f"What a program earns: {described(REWARDS)}; or package.module:function of your own.",
    )
    environment: str = setting(
        "single",
        FIXED,
        ANYWHERE,
        f"What a problem is to the policy: {described(ENVIRONMENTS)}; or package.module:Class of "
        "your own.",
    )
    max_turns: int | None = setting(
        None,
        FIXED,
        ANYWHERE,
        "With environment=repair: answers of one attempt at most (None: 3).",
        check=AT_LEAST_1,
    )
    format_coef: float = setting(
        0.1,
        FIXED,
        ANYWHERE,
        "Weight of the format score (-1 without a fenced block, else 0).",
        check=FROM_0,
    )
    reward_timeout: float = setting(
        6.0,
        FIXED,
        ANYWHERE,
        "CPU seconds per test at most; a problem's own lower limit wins.",
        check=ABOVE_0,
    )
    max_steps: int = setting(
        -1,
        MUTABLE,
        ANYWHERE,
        "Training steps; -1 trains until it is stopped.",
        check=check_that(
            lambda steps: steps == -1 or steps >= 1, "-1 (until stopped) or at least 1"
        ),
    )
    eval_every: int = setting(
        10,
        MUTABLE,
        ANYWHERE,
        "Greedy evaluation every so many steps; the full one comes before and after. -1: none at "
        "all; 0: only those two.",
        check=check_that(lambda steps: steps >= -1, "-1 or above"),
    )
    eval_limit: int = setting(
        64,
        FIXED,
        ANYWHERE,
        "Held-out problems per split that evaluations use (a fixed subsample); -1: all.",
        check=check_that(
            lambda count: count == -1 or count >= 1, "-1 (all problems) or at least 1"
        ),
    )
    eval_samples: int = setting(
        8,
        FIXED,
        ANYWHERE,
        "Completions per problem of the full evaluations, for Pass@1 and Pass@k.",
        check=AT_LEAST_1,
    )
    save_every: int = setting(
        10,
        MUTABLE,
        ANYWHERE,
        "Checkpoint every so many steps, and at the end. 0: never.",
        check=check_that(lambda steps: steps >= 0, "0 (never) or above"),
    )
    keep_checkpoints: int | None = setting(
        None,
        MUTABLE,
        embedded(
            "older files are deleted", "hosted Tinker takes checkpoint_ttl_days, servers keep all"
        ),
        "Checkpoints to keep, the newest ones (None: all); at least 2, so that there is one to "
        "fall back to.",
        check=check_that(lambda count: count >= 2, "at least 2"),
    )
    checkpoint_ttl_days: float | None = setting(
        None,
        MUTABLE,
        hosted("expiry of saved checkpoints", "its checkpoints stay until they are deleted"),
        "Days after which hosted Tinker may delete a checkpoint (None: never).",
        check=check_that(lambda days: 1 / 24 <= days <= 3650, "from 1/24 (an hour) to 3650"),
    )
    patience: float = setting(
        600.0,
        MUTABLE,
        ANYWHERE,
        "Seconds that a remote back end or the sandbox may be gone before the run stops, "
        "resumable; one request to a server that is well may take 12 times that.",
        check=ABOVE_0,
    )
    max_tokens_total: int | None = setting(
        None,
        MUTABLE,
        ANYWHERE,
        "Hard cap on tokens (prefilled, sampled and trained): the run stops with a checkpoint "
        "before one could be passed.",
        check=AT_LEAST_1,
    )
    max_cost: float | None = setting(
        None, MUTABLE, ANYWHERE, "Hard cap on cost, by the price table of prices=.", check=ABOVE_0
    )
    prices: str | None = setting(
        None,
        MUTABLE,
        ANYWHERE,
        "TOML file: [price] prefill, sample, train (money per million tokens); [assume] what "
        "dry_run should assume.",
    )
    dry_run: bool = setting(
        False,
        MUTABLE,
        ANYWHERE,
        "Print the settings as resolved and a forecast of tokens, sandbox CPU, time and cost, "
        "and stop.",
    )
    seed: int = setting(
        0,
        FIXED,
        everywhere(
            "of the LoRA initialisation and of every sample; bit-for-bit repeatable on the "
            "embedded engine, elsewhere as far as the server keeps seeds"
        ),
        "Seed of everything: problem order, LoRA initialisation, sampling.",
        check=check_that(lambda seed: 0 <= seed < 2**31, "in [0, 2**31)"),
    )
    log_to: str = setting(
        "",
        MUTABLE,
        ANYWHERE,
        "Trackers that get the metrics too, comma-separated: wandb, tensorboard.",
    )
    init_from: str | None = setting(
        None,
        FIXED,
        ANYWHERE,
        "RUN/CHECKPOINT of another run, whose weights and optimizer this one begins with. "
        "Everything else is as in any new run.",
    )
    log_path: str | None = setting(
        None, MUTABLE, ANYWHERE, "Run directory (None: ~/code-rl-logs/<date-time>)."
    )
    behavior_if_log_dir_exists: Literal["resume", "ask", "delete", "raise"] = setting(
        "resume", MUTABLE, ANYWHERE, "What to do when log_path holds an earlier run."
    )

    @property
    def loss_config(self) -> dict[str, float]:
        """`loss_fn_config` as Tinker names it; empty where the loss's own defaults are meant."""
        bounds = {LOW: (-1, self.clip_low), HIGH: (1, self.clip_high)}
        return {
            name: 1 + sign * given for name, (sign, given) in bounds.items() if given is not None
        }

    @property
    def longest_completion(self) -> int:
        """The largest token limit of training and evaluations."""
        stages = (
            parse_schedule(self.max_tokens_schedule) if self.max_tokens_schedule is not None else ()
        )
        return max([self.max_tokens, *(stage.max_tokens for stage in stages)])

    @chz.validate
    def _nothing_is_ignored(self) -> None:
        for name, bound in (("clip_low", LOW), ("clip_high", HIGH)):
            clipped = [f"loss={each}" for each, given in CLIPPED.items() if bound in given]
            if getattr(self, name) is not None and bound not in get_loss(self.loss).defaults:
                raise ConfigError(
                    f"{name}={getattr(self, name)} has no effect with loss={self.loss}, which has "
                    f"no such bound; choose {' or '.join(clipped)}"
                )
        if self.sampler_dir is not None and self.sampler is None:
            raise ConfigError(f"sampler_dir={self.sampler_dir} has no effect without sampler=")
        stages = (
            parse_schedule(self.max_tokens_schedule) if self.max_tokens_schedule is not None else ()
        )
        if stages:
            refuse_buffer(
                self, [stage.max_tokens for stage in stages], "a limit of max_tokens_schedule"
            )
        else:
            refuse_buffer(self, [self.max_tokens], f"max_tokens={self.max_tokens}")
        if self.max_cost is not None and self.prices is None:
            raise ConfigError(f"max_cost={self.max_cost} needs prices=FILE.toml, the price table")


def refuse_buffer(config: Config, limits: Sequence[int], what: str) -> None:
    """Raise ConfigError when the reward would sink from the first token of a completion on, under
    one of the token limits."""
    if parse_overlong(config.overlong)[1] >= min(limits):
        raise ConfigError(
            f"overlong={config.overlong} is not below {min(limits)}, {what}: even the shortest "
            "answer would be penalized"
        )


FACTS = facts_of(Config)
