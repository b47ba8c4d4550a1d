"""Records of a policy's actions: turns, trajectories, groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from code_rl.grading import Problem, Verdict
from code_rl.policy.renderers.base import Message


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer: its prompt tokens, its T sampled tokens with the sampler's log-probabilities, and
    its verdict.

    `text` is the answer; `reasoning` is the think block before it, or None. `code` is the program
    found in `text`. `messages` are the environment's reply, empty after the last turn.
    """

    prompt_tokens: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    truncated: bool
    code: str | None
    verdict: Verdict
    messages: tuple[Message, ...] = ()
    reasoning: str | None = None


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One attempt at a problem, in one or more turns. Each turn sees the earlier ones; the last is
    judged.

    `seed` is derived from the run's seed, the step, the slot in the batch and the member, never
    from samples.
    """

    turns: tuple[Turn, ...]
    seed: int = 0

    @property
    def last(self) -> Turn:
        """The turn whose answer counts. A trajectory has at least one."""
        return self.turns[-1]

    @property
    def verdict(self) -> Verdict:
        """The verdict on the last answer, on all tests."""
        return self.last.verdict

    @property
    def text(self) -> str:
        """The last answer."""
        return self.last.text

    @property
    def reasoning(self) -> str | None:
        """The think block before the last answer, None without one."""
        return self.last.reasoning

    @property
    def format_ok(self) -> bool:
        """True if a program was found in the last answer, right or wrong."""
        return self.last.code is not None

    @property
    def truncated(self) -> bool:
        """True if the last answer was cut at the token limit, with no stop sequence."""
        return self.last.truncated

    @property
    def length(self) -> int:
        """Tokens sampled, over all turns; prompts and the environment's messages do not count."""
        return sum(len(turn.tokens) for turn in self.turns)

    @property
    def prefilled(self) -> int:
        """Prompt tokens read before sampling, over all turns; a later prompt repeats the earlier
        ones, which count again."""
        return sum(len(turn.prompt_tokens) for turn in self.turns)

    @property
    def logprobs(self) -> Sequence[float]:
        """The sampler's log-probability of every sampled token, in the order of turns and
        tokens."""
        return [logprob for turn in self.turns for logprob in turn.logprobs]


@dataclass(frozen=True, slots=True)
class Group:
    """One problem and its G trajectories. `sample_s` is the time from the first request to the last
    answer, in seconds.

    `max_tokens` is the token limit of each trajectory; the context may leave less for a later turn.
    `policy_step` is the number of training steps behind the weights. The group is attempt number
    `attempt` at `slot` of its batch.
    """

    problem: Problem
    trajectories: tuple[Trajectory, ...]
    sample_s: float
    max_tokens: int
    policy_step: int = 0
    slot: int = 0
    attempt: int = 0

    @property
    def where(self) -> str:
        """The group's place in its batch as text, such as `group 3 attempt 1`; attempt 0 is not
        named."""
        return f"group {self.slot}" + (f" attempt {self.attempt}" if self.attempt else "")

    @property
    def prompt_tokens(self) -> tuple[int, ...]:
        """The prompt of the first turn, which all trajectories share. The group has at least
        one."""
        return self.trajectories[0].turns[0].prompt_tokens

    @property
    def solved_alike(self) -> bool:
        """True if the programs with a verdict are all right or all wrong; `dynamic_sampling` then
        resamples the slot.

        Training uses another rule (`loop.score_group`), which compares rewards: they can differ
        between wrong programs.
        """
        verdicts = [trajectory.verdict for trajectory in self.trajectories]
        return len({verdict.correct for verdict in verdicts if not verdict.undecided}) < 2
