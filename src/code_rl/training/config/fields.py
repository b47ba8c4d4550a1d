"""The settings of a training run. Each field declares its default, meaning and range once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import chz

from code_rl.data.load import parse_difficulty
from code_rl.engine import BackendKind, TrainingOptions
from code_rl.engine.losses import HIGH, LOW, POLICY_LOSSES, get_loss
from code_rl.policy.environments import ENVIRONMENTS
from code_rl.policy.prompt_templates import PROMPTS
from code_rl.policy.renderers import check_renderer
from code_rl.policy.rewards import REWARDS
from code_rl.training.algorithm.advantages import ESTIMATORS, get_estimator
from code_rl.training.algorithm.lengths import ContextSchedule, LengthStage, parse_schedule
from code_rl.training.algorithm.shaping import parse_overlong
from code_rl.training.curriculum import CURRICULA, get_curriculum
from code_rl.util.errors import ConfigError
from code_rl.util.options import (
    ABOVE_0,
    ALL_OR_SOME,
    AT_LEAST_0,
    AT_LEAST_1,
    FROM_0,
    Check,
    SamplingOptions,
    SandboxOptions,
    check_that,
)
from code_rl.util.registry import GIVEN


def check_part(find: Callable[[str], object], settings: Any, name: str) -> None:
    """Raise ConfigError unless `find` finds the part that the setting `name` of `settings` names.
    An object given to this process is not checked here."""
    if not getattr(settings, name).startswith(GIVEN):
        find(getattr(settings, name))


def _difficulty(settings: Any, name: str) -> None:
    """Raise ConfigError for a `difficulty` that cannot be read; None means no filter."""
    text = getattr(settings, name)
    if text is not None:
        parse_difficulty(text)


CLIPPED = {
    name: loss.defaults
    for name, loss in POLICY_LOSSES.items()
    if {LOW, HIGH} & loss.defaults.keys()
}


def _own_clip(bound: str) -> str:
    """Return each loss's own clip range for `bound` (LOW or HIGH) as text, its distance from 1, for
    the settings' documentation."""
    return ", ".join(
        f"{abs(1 - (given[bound] or 0)):g} for {name}"
        for name, given in CLIPPED.items()
        if bound in given
    )


@dataclass(frozen=True, slots=True)
class SettingFacts:
    """When a setting may change, and where it holds: a resume keeps it if it is `fixed`.

    `note` is its meaning on a back end (empty: a setting of the loop). Back ends that are not
    `honoured` refuse it, with `refusal`. A resume, the back ends and the documents read these.
    """

    fixed: bool = True
    note: str = ""
    honoured: tuple[BackendKind, ...] = tuple(BackendKind)
    refusal: str = ""


FIXED, MUTABLE = SettingFacts(), SettingFacts(fixed=False)


def embedded(note: str, refusal: str, fixed: bool = False) -> SettingFacts:
    """Return the facts of a setting that only the embedded engine supports; `refusal` says why
    others refuse it."""
    return SettingFacts(fixed, note, (BackendKind.EMBEDDED,), refusal)


def setting(default: Any, doc: str, check: Check | None = None, facts: SettingFacts = FIXED) -> Any:
    """Declare a field of `Config`. `doc` is its text in `--help` and in the settings page; `check`
    raises ConfigError for a value out of range (None: any value)."""
    return chz.field(default=default, doc=doc, validator=check, metadata={"facts": facts})


_OF_THE_ENGINE = ("of the embedded engine", "the server has its own")
_SENT = SettingFacts(note="sent with every sample; a remote back end that ignores it is refused")
INHERITED = {
    "backend": FIXED,
    "model_name": SettingFacts(
        note="embedded: tiny, a folder or a hub id; else a model that the server lists or can load"
    ),
    "device": embedded(*_OF_THE_ENGINE),
    "dtype": embedded(*_OF_THE_ENGINE, fixed=True),
    "threads": embedded(*_OF_THE_ENGINE),
    "renderer": FIXED,
    "max_tokens": SettingFacts(note="capped by the model's context"),
    "temperature": SettingFacts(note="other than 0 and 1: see Capabilities"),
    "top_p": _SENT,
    "top_k": _SENT,
    "system_prompt": FIXED,
    "seed": SettingFacts(
        note="repeatable bit for bit on the embedded engine, else as the server keeps seeds"
    ),
    **dict.fromkeys(chz.chz_fields(SandboxOptions), MUTABLE),
    "language": FIXED,
}
"""The facts about settings that other verbs have, too."""


@chz.chz
class Config(SamplingOptions, SandboxOptions):
    """Settings of a training run. A recipe (recipe=NAME) sets several at once; explicit settings
    win."""

    recipe: str | None = setting(
        None,
        "Settings to start from: a name, or FILE.toml of your own. None: tiny for the built-in "
        "model, none for others on the embedded engine, course on other back ends.",
    )
    sampler: str | None = setting(
        None,
        "vLLM samples for the embedded trainer: vllm (started and ended by the run), or a server's "
        "http://host:port[/v1] (its key: CODE_RL_SERVER_KEY). None: the engine samples.",
        facts=embedded(
            "vLLM samples, with every step's adapter",
            "it draws its own completions",
        ),
    )
    vllm_command: str | None = setting(
        None,
        "With sampler=vllm: the command that starts its server (None: vLLM in this environment). "
        "Its options replace the run's.",
        facts=embedded("how sampler=vllm is started", "there is no sampler to start"),
    )
    sampler_dir: str | None = setting(
        None,
        "With sampler=: folder of adapters, at the same path on both machines (None: "
        "checkpoints/adapters in the run directory).",
        facts=embedded(
            "vLLM samples, with every step's adapter", "there are no adapters to hand over"
        ),
    )
    dataset: str = setting(
        "builtin",
        "Training problems, comma-separated: NAME[@REVISION][:SPLIT] (or a hub id), a file, "
        "FOLDER[:SPLIT], package.module:object. docs/data.md lists the names.",
    )
    test_dataset: str | None = setting(
        None,
        "Held-out problems, as for dataset=. None: the dataset's own.",
        check_that(
            lambda name: bool(name.strip()), "a name or a path; leave it out for the dataset's own"
        ),
    )
    batch_size: int = setting(
        128, "Completions per step, where groups_per_batch is not given.", AT_LEAST_1
    )
    group_size: int = setting(
        8,
        "With groups_per_batch (preferred): completions per prompt. Without it: prompts per step; "
        "batch_size=128 group_size=8 is 8 prompts × 16 completions.",
        AT_LEAST_1,
    )
    groups_per_batch: int | None = setting(
        None, "Prompts per step (tinker-cookbook's convention).", AT_LEAST_1
    )
    learning_rate: float = setting(
        4e-5, "Adam's learning rate.", ABOVE_0, facts=SettingFacts(note="sent with every step")
    )
    grad_clip_norm: float = setting(
        0.0,
        "Maximum gradient norm; larger gradients are scaled down. 0: no limit.",
        FROM_0,
        facts=SettingFacts(note="sent with every step"),
    )
    loss: str = setting(
        "importance_sampling",
        f"Loss per token: {', '.join(POLICY_LOSSES)}, or package.module:object. "
        "docs/grpo-plus.md has the formulas.",
        lambda settings, name: check_part(get_loss, settings, name),
        facts=SettingFacts(
            note="sent by name if the back end has it, else computed here, as is a loss of your own"
        ),
    )
    clip_low: float | None = setting(
        None,
        f"Ratios are clipped at 1 - clip_low (None: the loss's own, {_own_clip(LOW)}).",
        check_that(lambda low: 0 < low <= 1, "above 0 and at most 1"),
        facts=SettingFacts(note="sent with the loss"),
    )
    clip_high: float | None = setting(
        None,
        f"Ratios are clipped at 1 + clip_high (None: the loss's own, {_own_clip(HIGH)}). "
        "Clip-higher: above clip_low.",
        ABOVE_0,
        facts=SettingFacts(note="sent with the loss"),
    )
    kl_coef: float = setting(
        0.0,
        "Weight of a KL term against the base model, in the advantages. 0: not computed.",
        FROM_0,
        facts=SettingFacts(note="above 0, a sampling client of the base model is asked"),
    )
    advantage: str = setting(
        "mean",
        f"Advantage of each completion, from its group's rewards: {', '.join(ESTIMATORS)}, or "
        "package.module:function. docs/grpo-plus.md has the formulas.",
        lambda settings, name: check_part(get_estimator, settings, name),
    )
    overlong: str = setting(
        "judged",
        "Completions cut off at their token limit: judged, mask (out of loss and baseline), "
        "mask_loss, wrong, or penalty:TOKENS (reward falls by 1 over the last TOKENS).",
        lambda settings, name: check_part(parse_overlong, settings, name),
    )
    length_coef: float = setting(
        0.0,
        "Reward lost by a completion at its token limit; shorter ones lose in proportion.",
        FROM_0,
    )
    dynamic_sampling: int = setting(
        0,
        "Times that a group of only right or wrong answers is replaced by another problem's.",
        AT_LEAST_0,
    )
    curriculum: str = setting(
        "uniform",
        f"How problems are drawn: {', '.join(CURRICULA)} (by the running solve rate), or "
        "package.module:function. docs/grpo-plus.md explains it.",
        lambda settings, name: check_part(get_curriculum, settings, name),
    )
    difficulty: str | None = setting(
        None,
        "Train only on problems with a pass rate in LOW..HIGH, from `code-rl prepare pass_rates=`.",
        _difficulty,
    )
    min_tests: int = setting(1, "Train only on problems with at least this many tests.", AT_LEAST_1)
    max_tests: int | None = setting(
        None,
        "Tests run per training problem: the public ones first, then those with the longest "
        "inputs. None: all.",
        AT_LEAST_1,
    )
    canary: float = setting(
        0.0,
        "Impossible problems added to a step, never trained on: canary × prompts on average. A "
        "pass is an alarm. 0: none.",
        check_that(lambda share: 0 <= share <= 1, "a share from 0 to 1"),
        facts=MUTABLE,
    )
    lora_rank: int = setting(
        32,
        "Rank of the LoRA adapters.",
        AT_LEAST_1,
        facts=SettingFacts(note="fixed when the training client is created"),
    )
    max_tokens_schedule: str | None = setting(
        None,
        "Token limits by stage, such as 0:16384,200:32768. A stage begins at a step, at "
        "truncated>SHARE or at plateau (over 20 steps). Evaluations use max_tokens.",
    )
    max_steps_off_policy: int = setting(
        0, "K: sample each batch with weights K steps old, while those steps train.", AT_LEAST_0
    )
    num_substeps: int = setting(
        1, "Optimizer steps per batch, each on its share of the prompts.", AT_LEAST_1
    )
    num_minibatches: int = setting(
        1, "Micro-batches per optimizer step; each is sent when its groups are scored.", AT_LEAST_1
    )
    prompt: str | None = setting(
        None,
        f"Prompt template: {', '.join(PROMPTS)}, or package.module:function. None: "
        "livecodebench. docs/recipes.md describes them.",
    )
    reward: str = setting(
        "correctness",
        f"Reward of a completion: {', '.join(REWARDS)}, or package.module:function. "
        "docs/grpo-plus.md describes them.",
    )
    environment: str = setting(
        "single",
        f"{', '.join(ENVIRONMENTS)} (the last two have several turns: docs/how-it-works.md), or "
        "package.module:Class.",
    )
    max_turns: int | None = setting(
        None,
        "With environment=repair or tools: maximum answers per problem (None: 3 or 4).",
        AT_LEAST_1,
    )
    format_coef: float = setting(
        0.1, "Weight of the format score (-1 without a fenced block, else 0).", FROM_0
    )
    reward_timeout: float = setting(
        6.0, "CPU seconds per test; a problem's own lower limit wins.", ABOVE_0
    )
    max_steps: int = setting(
        -1,
        "Training steps; -1 trains until it is stopped.",
        check_that(lambda steps: steps == -1 or steps >= 1, "-1 (until stopped) or at least 1"),
        facts=MUTABLE,
    )
    eval_every: int = setting(
        10,
        "Steps between greedy evaluations; full ones come before and after. 0: only those two; "
        "-1: none.",
        check_that(lambda steps: steps >= -1, "-1 or above"),
        facts=MUTABLE,
    )
    eval_limit: int = setting(
        64, "Held-out problems per split in evaluations (a fixed subsample). -1: all.", ALL_OR_SOME
    )
    eval_samples: int = setting(
        8, "Completions per problem of the full evaluations, for Pass@1 and Pass@k.", AT_LEAST_1
    )
    save_every: int = setting(
        10,
        "Steps between checkpoints; the last step has one, too. 0: no checkpoints.",
        check_that(lambda steps: steps >= 0, "0 (never) or above"),
        facts=MUTABLE,
    )
    keep_checkpoints: int | None = setting(
        None,
        "Newest checkpoints to keep, at least 2 (None: all).",
        check_that(lambda count: count >= 2, "at least 2"),
        facts=embedded(
            "older files are deleted", "hosted Tinker takes checkpoint_ttl_days, servers keep all"
        ),
    )
    checkpoint_ttl_days: float | None = setting(
        None,
        "Days after which hosted Tinker may delete a checkpoint (None: never).",
        check_that(lambda days: 1 / 24 <= days <= 3650, "from 1/24 (an hour) to 3650"),
        facts=SettingFacts(
            False,
            "expiry of saved checkpoints",
            (BackendKind.TINKER,),
            "its checkpoints stay until they are deleted",
        ),
    )
    max_tokens_total: int | None = setting(
        None,
        "Hard cap on tokens (prefilled, sampled and trained). The run stops before it.",
        AT_LEAST_1,
        facts=MUTABLE,
    )
    max_cost: float | None = setting(
        None, "Hard cap on cost, by the table in prices=.", ABOVE_0, facts=MUTABLE
    )
    prices: str | None = setting(
        None,
        "TOML file: [price] prefill, sample, train (money per million tokens); [assume] for "
        "dry_run.",
        facts=MUTABLE,
    )
    dry_run: bool = setting(
        False,
        "Print the resolved settings and a forecast of tokens, time and cost; then stop.",
        facts=MUTABLE,
    )
    log_to: str = setting(
        "", "Further trackers for the metrics, comma-separated: wandb, tensorboard.", facts=MUTABLE
    )
    init_from: str | None = setting(
        None, "RUN/CHECKPOINT whose weights and optimizer state this run starts with."
    )
    log_path: str | None = setting(
        None, "Run directory (None: ~/code-rl-logs/<date-time>).", facts=MUTABLE
    )
    behavior_if_log_dir_exists: Literal["resume", "ask", "delete", "raise"] = setting(
        "resume", "If log_path holds a run: resume, ask, delete or raise.", facts=MUTABLE
    )

    @property
    def loss_config(self) -> dict[str, float]:
        """The `loss_fn_config` in Tinker's names, as ratios (1 − `clip_low`, 1 + `clip_high`); a
        bound that is None is left out, and the loss's own holds."""
        bounds = {LOW: (-1, self.clip_low), HIGH: (1, self.clip_high)}
        return {
            name: 1 + sign * given for name, (sign, given) in bounds.items() if given is not None
        }

    @property
    def training(self) -> TrainingOptions:
        """The settings that the engine reads beside the sampling options, under the same names."""
        return TrainingOptions(
            **{field.name: getattr(self, field.name) for field in fields(TrainingOptions)}
        )

    def schedule(self, room: int = 2**62) -> ContextSchedule:
        """Return the token limits of training, each at most `room` tokens: the stages of
        `max_tokens_schedule`, or one of `max_tokens`. Raises ConfigError for an unreadable
        schedule."""
        stages: tuple[LengthStage, ...] = (LengthStage(self.max_tokens, at_step=0),)
        if self.max_tokens_schedule is not None:
            stages = parse_schedule(self.max_tokens_schedule)
        stages = tuple(replace(stage, max_tokens=min(stage.max_tokens, room)) for stage in stages)
        return ContextSchedule(stages, lag=self.max_steps_off_policy)

    @property
    def longest_completion(self) -> int:
        """The largest token limit of training, whatever the model's context."""
        return self.schedule().longest

    @chz.validate
    def _nothing_is_ignored(self) -> None:
        """Raise ConfigError for a setting that other settings leave without effect, or that needs
        another one (`max_cost` without `prices`), and for an `overlong` penalty that every answer
        would have. Called by chz at each construction."""
        for name, bound in (("clip_low", LOW), ("clip_high", HIGH)):
            clipped = [f"loss={each}" for each, given in CLIPPED.items() if bound in given]
            if getattr(self, name) is not None and bound not in get_loss(self.loss).defaults:
                raise ConfigError(
                    f"{name}={getattr(self, name)} has no effect with loss={self.loss}, which has "
                    f"no such bound; choose {' or '.join(clipped)}"
                )
        check_renderer(self.renderer)
        if self.sampler_dir is not None and self.sampler is None:
            raise ConfigError(f"sampler_dir={self.sampler_dir} has no effect without sampler=")
        if self.vllm_command is not None and self.sampler != "vllm":
            raise ConfigError(
                f"vllm_command={self.vllm_command} has no effect without sampler=vllm"
            )
        shortest = min(stage.max_tokens for stage in self.schedule().stages)
        if parse_overlong(self.overlong)[1] >= shortest:
            name = "max_tokens" if self.max_tokens_schedule is None else "max_tokens_schedule"
            raise ConfigError(
                f"overlong={self.overlong} is not below {name}={getattr(self, name)}: even the "
                "shortest answer would be penalized"
            )
        if self.max_cost is not None and self.prices is None:
            raise ConfigError(f"max_cost={self.max_cost} needs prices=FILE.toml, the price table")


FACTS = INHERITED | {
    name: (field.metadata or {})["facts"]
    for name, field in chz.chz_fields(Config).items()
    if field.metadata or name not in INHERITED
}
