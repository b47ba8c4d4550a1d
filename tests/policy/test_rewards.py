"""Rewards: R = format_coef · format_score + correctness, and none at all for a failure of ours."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from code_rl.grading import Problem, StdinTest, Verdict, VerdictKind, extract_code, judge_async
from code_rl.policy import Policy, Sampling, Trajectory, Turn
from code_rl.policy.renderers import Renderer
from code_rl.policy.rewards import Reward, get_reward
from code_rl.util.errors import SandboxError
from tests.grading.judging.fakes import ScriptedExecutor, printed
from tests.refusals import refused
from tests.training.rollout_support import trajectory

PROBLEM = Problem("p", "", (StdinTest("", "1"), StdinTest("", "1"), StdinTest("", "1"), StdinTest("", "1")))
BLOCK = "```python\nprint(1)\n```"


def judged(text, *answers, reward=None, turns=1):
    """The reward of an answer whose program prints these."""
    reward = reward or Reward()
    executor, code = ScriptedExecutor(answers), extract_code(text)
    verdict = asyncio.run(judge_async(PROBLEM, code, executor, all_tests=reward.all_tests))
    turn = Turn((1,), (2,), (-0.1,), text, False, code, verdict)
    return reward.of(Trajectory((turn,) * turns)), executor


def outputs(text):
    return [printed(output) for output in text]


@pytest.mark.parametrize(
    ("text", "output", "reward"),
    [(BLOCK, "1111", 1.0), (BLOCK, "1112", 0.0), ("print(1)", "1111", -0.1), ("", "1111", -0.1)],
)
def test_correctness_is_all_or_nothing_beside_the_format_term(text, output, reward):
    found, executor = judged(text, *outputs(output))
    assert found == reward
    assert len(executor.jobs) == (1 if text == BLOCK else 0)


def test_the_format_coefficient_is_a_setting():
    assert judged("no block", reward=get_reward("correctness", format_coef=0.5))[0] == -0.5


def test_a_failure_of_ours_is_no_reward():
    assert judged(BLOCK, SandboxError("down"))[0] is None
    broken = Verdict(VerdictKind.CHECKER_ERROR, 0, 1, "checker")
    assert Reward().of(Trajectory((Turn((1,), (2,), (-0.1,), BLOCK, False, "x", broken),))) is None


def test_fraction_is_the_share_of_tests_passed_and_runs_them_all():
    found, _ = judged(BLOCK, *outputs("2121"), reward=get_reward("fraction"))
    assert found == 0.5


def owes(trajectory):
    return -1.2


def test_a_cut_makes_no_negative_reward_smaller():
    reward = get_reward("tests.policy.test_rewards:owes", format_coef=0.0, cut_is_wrong=True)
    assert reward.of(trajectory(0.0, truncated=True)) == -1.2


def lengthy(trajectory):
    return len(trajectory.text)


def test_a_reward_of_ones_own_is_a_function_by_its_path():
    assert judged(BLOCK, *outputs("1112"), reward=get_reward("tests.policy.test_rewards:lengthy"))[0] == len(BLOCK)


@pytest.mark.parametrize(
    "name",
    ["corectness", "no.such.module:f", "tests.policy.test_rewards:absent", "tests.policy.test_rewards:BLOCK"],
)
def test_what_is_no_reward_is_refused_by_name(name):
    with refused("reward"):
        get_reward(name)


def nowhere(trajectory):
    return float("nan")


def test_a_reward_that_is_no_number_is_an_error_that_names_it():
    with refused("reward="):
        judged(BLOCK, *outputs("1111"), reward=get_reward("tests.policy.test_rewards:nowhere"))


def parted(trajectory):
    """The longer part is in the answer only sometimes."""
    return {"correct": 1.0, "brevity": 0.2} if trajectory.verdict.correct else {}


def test_a_reward_of_named_parts_is_their_sum_beside_the_format_term():
    reward = get_reward("tests.policy.test_rewards:parted", format_coef=0.5)
    assert judged(BLOCK, *outputs("1111"), reward=reward)[0] == 1.2
    assert judged(BLOCK, *outputs("1112"), reward=reward)[0] == 0.0
    assert judged("none", reward=reward)[0] == -0.5


def test_an_answer_that_is_cut_earns_nothing_by_any_part():
    reward = get_reward("tests.policy.test_rewards:parted", cut_is_wrong=True)
    assert reward.of(trajectory(1.0, truncated=True)) == 0.0


NO_NUMBERS = (float("nan"), float("inf"), "1", None, [1.0], 10**400)


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        *(({"correct": 1.0, "brevity": value}, ("reward=", "'brevity'")) for value in NO_NUMBERS),
        *(({name: 1.0}, ("reward=",)) for name in ("", 1, None)),
    ],
)
def test_a_part_that_is_no_finite_number_or_has_no_name_is_refused(monkeypatch, parts, named):
    monkeypatch.setitem(globals(), "broken", lambda _: parts)
    with refused(*named):
        get_reward("tests.policy.test_rewards:broken").of(trajectory(1.0))


class Spoken(Renderer):
    """A renderer whose tokens are characters; with `opens_thinking` its prompt begins the think block."""

    def __init__(self, opens_thinking):
        super().__init__(SimpleNamespace(decode=lambda tokens, **_: "".join(map(chr, tokens))))
        self.opens_thinking = opens_thinking

    def prompt_tokens(self, messages):
        return [0]

    def build_supervised_example(self, messages):
        raise NotImplementedError

    def get_stop_sequences(self):
        return [1]


def rolled_out(completion, *answers, opens_thinking=False):
    """The trajectory of a completion that is sampled, rendered, extracted and judged as in a run."""

    async def sample(**_):
        tokens = [*map(ord, completion), 1]
        return SimpleNamespace(
            sequences=[SimpleNamespace(tokens=tokens, logprobs=[-0.1] * len(tokens), stop_reason="stop")]
        )

    sampler: Any = SimpleNamespace(sample=sample)
    policy = Policy(sampler, Spoken(opens_thinking), ScriptedExecutor(answers), 10_000)
    return asyncio.run(policy.roll_out(PROBLEM, 1, Sampling(1000), 0)).trajectories[0]


@pytest.mark.parametrize("opens_thinking", [False, True])
@pytest.mark.parametrize(
    ("text", "reward"),
    [
        (f"<think>add</think>\n<answer>\n{BLOCK}\n</answer>", 1.0),
        (f"<think>add</think>So:<answer>{BLOCK}</answer>\n", 1.0),
        (f"<think></think><answer>{BLOCK}</answer>", 1.0),
        (f"<think>add</think>\n<answer>\n{BLOCK.replace('1', '2')}\n</answer>", 0.0),
        (f"<think>add</think>{BLOCK}", -1.2),
        (f"<think>{BLOCK}</think><answer></answer>", -1.2),
        (f"<think>add</think>{BLOCK}<answer></answer>", -1.2),
        (f"<think>add</think><answer>{BLOCK}</answer>{BLOCK}", -1.2),
        (f"<think>add<answer>{BLOCK}</answer>", -1.2),
        ("<think>add</think><answer>1</answer>", -1.2),
    ],
)
def test_think_answer_is_code_r1_s_reward_less_a_tenth(text, reward, opens_thinking):
    said = text.removeprefix("<think>") if opens_thinking else text
    answers = outputs("2222" if "(2)" in text else "1111")
    found = rolled_out(said, *answers, opens_thinking=opens_thinking)
    assert get_reward("think_answer", format_coef=0.0).of(found) == reward


def test_think_answer_wants_a_think_block():
    said = f"<answer>{BLOCK}</answer><think>add</think>"
    assert get_reward("think_answer", format_coef=0.0).of(rolled_out(said, *outputs("1111"))) == -1.2


@pytest.mark.parametrize("opens_thinking", [False, True])
@pytest.mark.parametrize("prose", ["I ended with </think>.", "<think> and </think> are tags."])
def test_a_program_is_judged_whatever_stands_after_it(opens_thinking, prose):
    opened = "" if opens_thinking else "<think>"
    said = f"{opened}add</think>{BLOCK.replace('1', repr('</think>'))}\n{prose}"
    found = rolled_out(said, *outputs("1111"), opens_thinking=opens_thinking)
    assert (found.last.code, found.reasoning) == ("print('</think>')", "add")
