"""A few supervised steps before reinforcement learning: a run directory whose checkpoint `init_from=` takes.

    python benchmarks/warm_start.py log_path=DIR max_steps=N [setting=value …]

Trains on the first solution of each training problem, a batch of them a step, with the settings of `train`. Prints the
checkpoint.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from code_rl.cli.main import HELP
from code_rl.engine.losses import POLICY_LOSSES
from code_rl.grading import Problem
from code_rl.policy import Policy
from code_rl.training.algorithm.datums import forward_backward, make_datum
from code_rl.training.assembly import assemble, prepare
from code_rl.training.console import Console
from code_rl.training.run import Run
from code_rl.util.errors import ConfigError
from code_rl.util.settings import read_arguments

Answers = Sequence[tuple[Problem, str]]
"""Problems, each with the text that is to be learned as its answer."""
REST_STEPS = 60
"""Steps without a gradient at the end, so that Adam's momentum does not go on into the run that begins from here."""
Lesson = Callable[[Run, Policy], Awaitable[Answers]]
"""What to learn in the next step, from the weights as they are; nothing: enough is learned."""


async def supervised(given: Mapping[str, Any], lesson: Lesson) -> str:
    """Train on the answers of each lesson for `max_steps` steps at most; returns RUN/CHECKPOINT."""
    config, log_path, _ = prepare({**given, "eval_every": -1, "behavior_if_log_dir_exists": "delete"})
    step = 0
    async with contextlib.AsyncExitStack() as stack:
        run = await assemble(config, log_path, False, Console(config.max_steps), asyncio.Event(), stack)
        while step < config.max_steps and (answers := await lesson(run, await run.policy(step))):
            await _train(run, [datum(run, *each) for each in answers], run.adam_params)
            step += 1
        still = [datum(run, *each, advantage=0.0) for each in (await solutions(run, await run.policy(step)))[:1]]
        for _ in range(REST_STEPS):
            await _train(run, still, run.adam_params.model_copy(update={"learning_rate": 0.0}))
        saving = await run.recorder.begin_checkpoint(run.backend.trainer, step)
        await run.recorder.commit_checkpoint(saving, step, 0)
    return f"{log_path}/{step:06d}"


async def _train(run: Run, datums: list[Any], adam: Any) -> None:
    forward_backward(run.backend.trainer, datums, POLICY_LOSSES["reinforce"], {}, 1.0)
    await run.backend.trainer.optim_step(adam)


def datum(run: Run, problem: Problem, answer: str, advantage: float = 1.0) -> Any:
    """An answer as a supervised target: one advantage on each of its tokens, whatever their probability was."""
    tokens, weights = supervised_tokens(run, problem, answer)
    written = [0.0 if weight else None for weight in weights]
    start = written.index(0.0)
    return make_datum(tokens, written[start:], start, advantage)


def supervised_tokens(run: Run, problem: Problem, answer: str) -> tuple[list[int], list[float]]:
    """The tokens of a problem and its answer; the weight is 1 on those of the answer."""
    return run.renderer.build_supervised_example(
        [*run.environment.begin(problem.view()), {"role": "assistant", "content": answer}]
    )


async def solutions(run: Run, policy: Policy) -> Answers:
    """The first solutions of a batch of training problems, in the run's order; those without one are left out."""
    batch = [chosen.problem for chosen in run.problem_sampler.batch(policy.step)]
    found = [(each, f"```python\n{each.solutions[0].strip()}\n```") for each in batch if each.solutions]
    if not found:
        raise ConfigError(f"dataset={run.config.dataset}: no problem of a batch has a solution to learn from")
    return found


if __name__ == "__main__":
    if any(word in HELP for word in sys.argv[1:]):
        sys.exit(print(__doc__))
    print("init_from=" + asyncio.run(supervised(read_arguments(sys.argv[1:]), solutions)))
