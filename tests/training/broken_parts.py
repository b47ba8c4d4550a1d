"""Parts of a user's own that are wrong, each in its own way."""

from __future__ import annotations

from code_rl.engine.losses import Loss
from code_rl.policy.environments import Reply, Single


def raises(_):
    raise KeyError("mine")


def nan(values):
    return [float("nan")] * len(values) if isinstance(values, list) else float("nan")


def few(rewards):
    return rewards[1:]


def nothing(_):
    return None


async def later(_):
    return 1.0


class Endless(Single):
    """Goes on for ever, whatever it says of its turns."""

    async def reply(self, problem, conversation, grader):
        return Reply(None, await grader.judge_public(None), tuple(self.begin(problem)))


def quick(trajectory):
    return 1.0 / (1.0 + trajectory.verdict.cpu_s)


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
SCALAR = Loss("scalar", lambda ops, logprobs, inputs, settings: (logprobs * inputs["advantages"]).sum(), {})
TORCH_ONLY = Loss(
    "torch_only", lambda ops, logprobs, inputs, settings: logprobs.clamp(max=0) * inputs["advantages"], {}
)
FLAT = Loss("flat", lambda ops, logprobs, inputs, settings: inputs["advantages"] * 1.0, {})
STRANGE = Loss("strange", lambda ops, logprobs, inputs, settings: logprobs, {}, inputs=("colour",))
UNSET = Loss("unset", lambda ops, logprobs, inputs, settings: logprobs * settings["scale"], {"scale": None})
PLAIN = Loss("plain", lambda ops, logprobs, inputs, settings: -(logprobs * inputs["advantages"]), {})


def huge(values):
    return [1e300, *values[1:]] if isinstance(values, list) else 1e300


def empties(rewards):
    rewards.clear()
    return [0.0]


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


class Chatty(Single):
    """Says more of a message than there is."""

    def begin(self, problem):
        return [{"role": "user", "content": "?", "at": object()}]


def _long(ops, logprobs, inputs, settings):
    """Well on the two tokens that it is tried on."""
    losses = logprobs * inputs["advantages"]
    if len(logprobs) == 2:
        return losses
    if settings["how"] == 0:
        raise RuntimeError("mine")
    return losses + float("nan") if settings["how"] == 1 else inputs["advantages"] * 1.0


LATE, LATE_NAN, LATE_FLAT = (Loss("late", _long, {"how": float(how)}) for how in range(3))


def text(_):
    return "1"


def sentence(problem):
    return problem.statement


def bare(problem):
    return [problem.statement]
