"""One part of each kind, as a user would bring it: a file of their own, named by its path. docs/extending.md shows these."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import chz

from code_rl import Grader, Loss, Problem, ProblemView, Reply, Single, StdinTest, Trajectory, extract_code
from code_rl.data.preparation.workspace import Candidate, Decision, OnItem, Workspace, one_by_one
from code_rl.data.sources.records import Origin, Row
from code_rl.data.sources.shapes import Shape
from code_rl.policy.renderers import Message
from code_rl.training.curriculum import History
from code_rl.util.settings import make_settings


def median(rewards_G: list[float]) -> list[float]:
    """An advantage: how much better than the median member."""
    middle = sorted(rewards_G)[len(rewards_G) // 2]
    return [reward - middle for reward in rewards_G]


def concise(rewards_G: list[float], trajectories_G: Sequence[Trajectory]) -> list[float]:
    """An advantage that sees more than rewards: right answers are compared by length too."""
    lengths = [trajectory.length for trajectory in trajectories_G]
    best = min(lengths)
    scores = [reward * best / length for reward, length in zip(rewards_G, lengths, strict=True)]
    return [score - sum(scores) / len(scores) for score in scores]


def frontier(history: History, step: int) -> float:
    """A curriculum: problems that were never tried, and those that are solved sometimes."""
    return 1.0 if history.groups == 0 or 0.2 < history.solve_rate < 0.8 else 0.01


def short(trajectory: Trajectory) -> float:
    """A reward: right answers earn more the shorter they are."""
    return 1.0 + 1.0 / trajectory.length if trajectory.verdict.correct else 0.0


def graded(trajectory: Trajectory) -> dict[str, float]:
    """A reward of named parts."""
    right = 1.0 if trajectory.verdict.correct else 0.0
    return {"correct": right, "brevity": 0.2 * right / trajectory.length}


def _reinforce(ops: ModuleType, logprobs: Any, inputs: Any, settings: Any) -> Any:
    return -(settings["scale"] * inputs["advantages"] * logprobs)


REINFORCE = Loss("reinforce", _reinforce, {"scale": 1.0})
"""A loss: no importance ratio at all."""


def _icepop(ops: ModuleType, logprobs: Any, inputs: Any, settings: Any) -> Any:
    ratio = ops.exp(logprobs - inputs["logprobs"])
    kept = (ratio >= settings["low"]) & (ratio <= settings["high"])
    return -ops.where(kept, ratio * inputs["advantages"], 0 * logprobs)


ICEPOP = Loss("icepop", _icepop, {"low": 0.5, "high": 5.0}, limits={"low": 0.0, "high": math.inf})
"""A loss that masks tokens by their ratio (IcePop); without `limits` nothing is masked."""


def _importance(ops: ModuleType, logprobs: Any, inputs: Any, settings: Any) -> Any:
    return -(ops.exp(logprobs - inputs["logprobs"]) * inputs["advantages"])


SAME_AS_BUILT_IN = Loss("mine", _importance, {})


def brief(problem: ProblemView) -> list[Message]:
    """A prompt template: the problem, and one request."""
    return [{"role": "user", "content": f"{problem.statement}\n\nAnswer with one Python program in a code block."}]


class Twice:
    """An environment: the same question is put twice, and the second answer counts."""

    max_turns = 2

    def begin(self, problem: ProblemView) -> list[Message]:
        return Single().begin(problem)

    async def reply(self, problem: ProblemView, conversation: Sequence[Message], grader: Grader) -> Reply:
        code = extract_code(conversation[-1]["content"])
        if len(conversation) == 2:
            return Reply(code, await grader.judge_public(code), tuple(self.begin(problem)))
        return Reply(code, await grader.judge(code))


def sums() -> list[Problem]:
    """A benchmark: problems, or a function that gives them."""
    program = "print(sum(map(int, input().split())))"
    return [
        Problem(f"sum-{n}", "Print the sum.", (StdinTest(f"{n} 2\n", f"{n + 2}\n"),), solutions=(program,))
        for n in range(3)
    ]


def pairs() -> Iterator[Problem]:
    """A data set: rows of a shape of one's own, and who reads one."""
    for number, line in enumerate(Path("pairs.jsonl").read_text().splitlines()):
        row = json.loads(line)
        tests = tuple(StdinTest(given, wanted) for given, wanted in row["pairs"])
        yield Problem(f"pairs/{number}", row["task"], tests)


def _read(row: Row, origin: Origin) -> Problem:
    return Problem(origin.row_id, row["task"], tuple(StdinTest(given, wanted) for given, wanted in row["pairs"]))


SHAPE = Shape("pairs", frozenset({"task", "pairs"}), _read)
"""A shape of rows: the columns that tell, and who reads one."""


async def run_shorten(workspace: Workspace, candidates: Sequence[Candidate], on_item: OnItem) -> list[Decision]:
    """A stage of prepare: problems whose id is one letter."""

    def decide(one: Candidate) -> Decision:
        return Decision() if len(one.entry.id) == 1 else Decision("long_name", one.entry.id)

    return one_by_one(candidates, on_item, decide)


@chz.chz
class GreetConfig:
    """Greet somebody."""

    name: str = chz.field(default="world", doc="Whom.")


def greet_command(given: Mapping[str, str]) -> int:
    """A verb: settings in, an exit code out."""
    print(f"hello, {make_settings(GreetConfig, given).name}")
    return 0
