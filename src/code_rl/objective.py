"""What a run optimises, from its settings: the parts of the algorithm that can be chosen, and the credit that they give a group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from code_rl.algorithm.advantages import Estimator, get_estimator, mean
from code_rl.algorithm.losses import POLICY_LOSSES, Loss, get_loss
from code_rl.algorithm.shaping import Masked, Member, Shaping
from code_rl.config import Config, loss_config
from code_rl.reward.verdict import VerdictKind
from code_rl.rewards import Reward, get_reward
from code_rl.rollouts.trajectory import Group, Trajectory


@dataclass(frozen=True, slots=True)
class Objective:
    """R, its shaping, A, L and β; `loss_config` is Tinker's `loss_fn_config`, empty for the loss's defaults.

    `temperature` is that of the log-probabilities that are trained, where the back end can be told.
    """

    reward: Reward = field(default_factory=Reward)
    shaping: Shaping = field(default_factory=Shaping)
    estimator: Estimator = mean
    loss: Loss = POLICY_LOSSES["importance_sampling"]
    loss_config: Mapping[str, float] = field(default_factory=dict)
    kl_coef: float = 0.0
    temperature: float = 1.0

    def members(self, group: Group) -> list[Member]:
        """R(τ_i) of each trajectory, beside what shaping looks at."""
        return [self._member(trajectory, group.max_tokens) for trajectory in group.trajectories]

    def _member(self, trajectory: Trajectory, max_tokens: int) -> Member:
        reward, verdict = self.reward.of(trajectory), trajectory.verdict
        return Member(
            reward=reward,
            correctness=0.0 if reward is None else self.reward.earned(trajectory),
            tokens=trajectory.length,
            max_tokens=max_tokens,
            truncated=trajectory.truncated,
            no_verdict="checker_error" if verdict.kind is VerdictKind.CHECKER_ERROR else "sandbox_error",
        )


@dataclass(frozen=True, slots=True)
class Credit:
    """One group's rewards_G (None without a verdict), advantages_G (None where masked) and masked_G (why, or None).

    `skipped`: nothing of it is trained on.
    """

    rewards_G: tuple[float | None, ...]  # noqa: N815
    advantages_G: tuple[float | None, ...]  # noqa: N815
    masked_G: tuple[Masked | None, ...]  # noqa: N815
    skipped: bool

    @property
    def trained(self) -> list[tuple[int, float]]:
        """Which members are trained on, in order, with their advantages."""
        advantages = [] if self.skipped else self.advantages_G
        return [(index, advantage) for index, advantage in enumerate(advantages) if advantage is not None]


def objective_of(config: Config) -> Objective:
    """The objective that a run's settings mean. Raises ConfigError for a part that cannot be loaded."""
    return Objective(
        reward=get_reward(
            config.reward,
            format_coef=config.format_coef,
            threshold=config.reward_threshold,
            turn_discount=config.turn_discount,
        ),
        shaping=Shaping(
            overlong=config.overlong,
            buffer=config.overlong_buffer or 0,
            penalty=1.0 if config.overlong_penalty is None else config.overlong_penalty,
            length_coef=config.length_coef,
        ),
        estimator=get_estimator(config.advantage),
        loss=get_loss(config.loss),
        loss_config=loss_config(config),
        kl_coef=config.kl_coef,
    )


def solved_alike(group: Group) -> bool:
    """True when the programs of a group that have a verdict are all right or all wrong: correctness alone tells none from another."""
    verdicts = [trajectory.verdict for trajectory in group.trajectories]
    return len({verdict.correct for verdict in verdicts if not verdict.ours}) < 2
