"""Parts of a user's own that are wrong, each in its own way."""

from __future__ import annotations

import functools

from code_rl.engine.losses import Loss
from code_rl.policy.environments import Reply, Single


def raises(_):
    raise KeyError("mine")


def nan(values):
    return [float("nan")] * len(values) if isinstance(values, list) else float("nan")


def few(rewards):
    return rewards[1:]


async def later(_):
    return 1.0


class Later:
    async def __call__(self, _):
        return 1.0


LATER, LATER_TOO = Later(), functools.partial(later)


def three(trajectory, problem, more):
    return 1.0


class Failing(Single):
    async def reply(self, problem, conversation, grader):
        raise KeyError("mine")


class Plain(Single):
    """Its `reply` is no coroutine function, and it asks for public tests that may not exist."""

    def reply(self, problem, conversation, grader):
        return self._judged(problem, conversation, grader)

    async def _judged(self, problem, conversation, grader):
        verdict = await grader.judge_public("print()")
        assert (verdict.correct, verdict.total) == (True, 0)
        return await super().reply(problem, conversation, grader)


class Endless(Single):
    """Goes on for ever, whatever it says of its turns."""

    async def reply(self, problem, conversation, grader):
        return Reply(None, await grader.judge_public(None), tuple(self.begin(problem)))


class Hasty(Single):
    """Takes the public tests for all."""

    async def reply(self, problem, conversation, grader):
        return Reply("print()", await grader.judge_public("print()"))


class Mute(Single):
    async def reply(self, problem, conversation, grader):
        return None


class Unready(Single):
    def __init__(self, more):
        super().__init__()


SHORT = Loss("short", lambda ops, logprobs, inputs, settings: (logprobs * inputs["advantages"])[:1], {})
TORCH_ONLY = Loss(
    "torch_only", lambda ops, logprobs, inputs, settings: logprobs.clamp(max=0) * inputs["advantages"], {}
)
FLAT = Loss("flat", lambda ops, logprobs, inputs, settings: inputs["advantages"] * 1.0, {})
NOT_FINITE = Loss("not_finite", lambda ops, logprobs, inputs, settings: logprobs + float("nan"), {})
UNSET = Loss("unset", lambda ops, logprobs, inputs, settings: logprobs * settings["scale"], {"scale": None})
STRANGE = Loss("strange", lambda ops, logprobs, inputs, settings: logprobs, {}, inputs=("colour",))
PLAIN = Loss("plain", lambda ops, logprobs, inputs, settings: -(logprobs * inputs["advantages"]), {})


def huge(values):
    return [1e300, *values[1:]] if isinstance(values, list) else 1e300


def leaves(_):
    raise SystemExit(3)


class Numbered(Single):
    """Its program is no text."""

    async def reply(self, problem, conversation, grader):
        return Reply(7, await grader.judge_public("print()"), tuple(self.begin(problem)))  # type: ignore[arg-type]


class Halved(Single):
    """Says half a character."""

    def begin(self, problem):
        return [{"role": "user", "content": "\ud800"}]


def _long(ops, logprobs, inputs, settings):
    """Well on the two tokens that it is tried on."""
    if len(logprobs) == 2:
        return logprobs * inputs["advantages"]
    if settings["factor"]:
        return inputs["advantages"] * settings["factor"]
    raise RuntimeError("mine")


LATE, LATE_FLAT, LATE_NAN = (Loss("late", _long, {"factor": factor}) for factor in (0.0, 1.0, float("nan")))


def text(_):
    return "1"


def sentence(problem):
    return problem.statement
