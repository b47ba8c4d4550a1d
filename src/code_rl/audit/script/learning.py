"""A minute of training on the built-in model with a student's four functions: does the share of right answers rise?

The functions run where they are confined; what their `train_step` submits is submitted here, in its order, to the engine.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from code_rl.audit.checklist import Check, found, shown
from code_rl.audit.script.calls import datum_of
from code_rl.audit.script.student import SilentError, Student

if TYPE_CHECKING:
    from code_rl.trajectory import Trajectory

PART, RISES = "learning", "the share of right answers rises"
WINDOW = 4
RISE = 0.2
"""Of the share of right answers, between the means of the first and the last WINDOW steps: ours rises by 0.3 to 0.5 (5 seeds), without learning by less than 0.1."""
_PROBLEMS, _ANSWERS, _MAX_TOKENS, _RATE = 8, 16, 64, 2e-3


class _RefusedError(Exception):
    """One of the functions, or the engine, did not go on."""


async def check_learning(student: Student, steps: int, shift: int) -> list[Check]:
    """So many steps; `shift` is 1 where the student reads `ob_len` as targets of the prompt."""
    shares: list[float] = []
    try:
        await _train(student, steps, shift, shares)
    except SilentError as silent:
        return [found(PART, RISES, silent.mistake, words=silent.words)]
    except _RefusedError as error:
        return [found(PART, RISES, "training_stops", words={"step": len(shares), "why": error})]
    rise = sum(shares[-WINDOW:]) / WINDOW - sum(shares[:WINDOW]) / WINDOW
    given = f"{steps} steps of {_PROBLEMS} problems × {_ANSWERS} answers on the built-in model"
    told = given, f"at least +{RISE}", f"{rise:+.2f}: {shown([round(share, 2) for share in shares])}"
    return [Check(PART, RISES, "passed", "", "", *told) if rise >= RISE else found(PART, RISES, "no_learning", *told)]


async def _train(student: Student, steps: int, shift: int, shares: list[float]) -> None:
    from code_rl.backends.embedded import EmbeddedService
    from code_rl.problems.builtin import BuiltinTrainSet
    from code_rl.renderers import get_renderer
    from code_rl.rollouts.sample import Policy, Sampling
    from code_rl.sandbox.connect import connect_executor

    problems = BuiltinTrainSet()
    batch = [problems[index] for index in random.Random(0).sample(range(len(problems)), _PROBLEMS)]
    trainer: Any = await EmbeddedService().create_lora_training_client("tiny", rank=32, seed=0)
    renderer, executor = get_renderer("auto", trainer.get_tokenizer()), connect_executor("embedded")
    try:
        for step in range(steps):
            sampler = await trainer.save_weights_and_get_sampling_client()
            policy = Policy(sampler, renderer, executor, context=trainer.max_context_length(), step=step)
            sampling = Sampling(max_tokens=_MAX_TOKENS)
            groups = await asyncio.gather(
                *(policy.roll_out(problem, _ANSWERS, sampling, seed=step) for problem in batch)
            )
            datums = [datum for group in groups for datum in await _learned(student, group.trajectories, shift)]
            if datums:
                await _step(student, trainer, datums)
            right = [each.verdict.correct for group in groups for each in group.trajectories]
            shares.append(sum(right) / len(right))
    finally:
        await executor.aclose()


async def _learned(student: Student, group: tuple[Trajectory, ...], shift: int) -> list[Any]:
    """The datums of a group, by three of the functions."""
    advantages = await _value(student, "compute_advantages", [float(each.verdict.correct) for each in group])
    if not isinstance(advantages, list) or len(advantages) != len(group):
        raise _RefusedError(f"compute_advantages gives no number for each of {len(group)} rewards: {shown(advantages)}")
    if await _value(student, "should_skip", advantages):
        return []
    datums = []
    for trajectory, advantage in zip(group, advantages, strict=True):
        turn = trajectory.last
        tokens, prompt = [*turn.prompt_tokens, *turn.tokens], len(turn.prompt_tokens)
        if turn.tokens:
            datums.append(await _value(student, "make_datum", tokens, list(turn.logprobs), prompt - shift, advantage))
    return datums


async def _step(student: Student, trainer: Any, datums: list[Any]) -> None:
    from tinker import types

    call = await student.call("train_step", datums, {"learning_rate": _RATE})
    requests = [event[1:] for event in call.get("events", []) if event[0] == "submit" and event[1] != "forward"]
    if "failed" in call:
        raise _RefusedError(f"train_step raised {call['failed']}")
    try:
        futures = [
            trainer.optim_step(types.AdamParams(**content))
            if name == "optim_step"
            else trainer.forward_backward(
                [datum_of(each) for each in content["datums"]], content["loss"], content["config"]
            )
            for name, content in requests
        ]
        for future in futures:
            await asyncio.to_thread(future.result)
    except Exception as error:
        raise _RefusedError(f"the service refuses what train_step sends: {error}") from error


async def _value(student: Student, function: str, *arguments: Any) -> Any:
    call = await student.call(function, *arguments)
    if "failed" in call:
        raise _RefusedError(f"{function} raised {call['failed']}")
    return call["value"]
