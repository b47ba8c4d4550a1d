"""The objective of a run: the algorithm's parts that its settings choose, and the records of a
scored group and a trained batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from code_rl.engine.losses import POLICY_LOSSES, Loss, get_loss
from code_rl.policy import Group
from code_rl.policy.environments import Environment, get_environment
from code_rl.policy.rewards import Reward, get_reward
from code_rl.training.algorithm.advantages import Estimator, get_estimator, mean, ones
from code_rl.training.algorithm.datums import Example, Floats
from code_rl.training.algorithm.shaping import Shaping, parse_overlong
from code_rl.training.config import Config


@dataclass(frozen=True, slots=True)
class Objective:
    """R, its shaping, A, L and β. `loss_config` is Tinker's `loss_fn_config`, empty for the loss's
    defaults.

    `temperature` is the temperature of the trained log-probabilities, if the back end supports one.
    """

    reward: Reward = field(default_factory=Reward)
    shaping: Shaping = field(default_factory=Shaping)
    estimator: Estimator = mean
    loss: Loss = POLICY_LOSSES["importance_sampling"]
    loss_config: Mapping[str, float] = field(default_factory=dict)
    kl_coef: float = 0.0
    temperature: float = 1.0

    @property
    def compares(self) -> bool:
        """True if rewards compare the members of a group: for every estimator but `ones`."""
        return self.estimator is not ones


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    """A group with its shaped rewards_G (None without a verdict), advantages_G (None if masked),
    mask_reasons_G (None if not masked) and the parts_G of the rewards before shaping.

    `skipped` is the reason why the whole group is not trained on: `all_masked`, `rewards_alike`,
    `no_advantage`, or None.
    """

    group: Group
    rewards_G: tuple[float | None, ...]
    advantages_G: tuple[float | None, ...]
    mask_reasons_G: tuple[str | None, ...]
    skipped: str | None
    parts_G: tuple[Mapping[str, float] | None, ...]

    @property
    def trained(self) -> list[tuple[int, float]]:
        """The members to train on as (index in the group, advantage), in order; empty for a skipped
        group. Masked members, and members without a sampled token, are left out."""
        advantages = [] if self.skipped else self.advantages_G
        return [
            (index, advantage)
            for index, advantage in enumerate(advantages)
            if advantage is not None and self.group.trajectories[index].length
        ]


@dataclass(frozen=True, slots=True)
class TrainedBatch:
    """One batch after training: its groups, their examples, and the trainer's log-probabilities of
    each example.

    `divergences` and `gradient_norms` have one value for each optimizer step that reported one.
    """

    groups: Sequence[ScoredGroup]
    examples: Sequence[Example]
    divergences: Sequence[float]
    logprobs: Sequence[Floats]
    gradient_norms: Sequence[float]


def objective_of(config: Config) -> Objective:
    """Return the objective of a run's settings, at temperature 1. A part `package.module:object` is
    imported. Raises ConfigError for a part that cannot be loaded."""
    return Objective(
        reward=get_reward(
            config.reward,
            format_coef=config.format_coef,
            cut_is_wrong=config.overlong == "wrong",
        ),
        shaping=Shaping(*parse_overlong(config.overlong), config.length_coef),
        estimator=get_estimator(config.advantage),
        loss=get_loss(config.loss),
        loss_config=config.loss_config,
        kl_coef=config.kl_coef,
    )


def environment_of(config: Config) -> Environment:
    """Return the environment of a run's settings, with its prompt template and system message.
    Raises ConfigError if a part cannot be loaded or a setting has no effect on it."""
    words = config.prompt, config.system_prompt
    return get_environment(config.environment, config.max_turns, *words)
