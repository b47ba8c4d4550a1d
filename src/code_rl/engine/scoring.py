"""Log-probabilities of given tokens, from a sampling client of any back end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tinker


async def logprobs_of(
    sampler: tinker.SamplingClient, tokens: Sequence[int], temperature: float
) -> list[float | None]:
    """Return the log-probability of each token given the tokens before it (None for the first), at
    this temperature.

    A temperature other than 1 needs a back end that can score at one
    (`Capabilities.pass_temperature`).
    """
    from tinker import types

    from code_rl.engine.remote import from_first

    text = types.ModelInput.from_ints(list(tokens))
    if temperature == 1:
        return list(await ready(sampler.compute_logprobs(text)))
    # As in the SDK: scoring a text requires sampling one token after it, which is ignored.
    scoring = types.SamplingParams(max_tokens=1, temperature=temperature)
    response = await ready(sampler.sample(text, 1, scoring, include_prompt_logprobs=True))
    return from_first(response.prompt_logprobs, len(tokens))


async def gaps_to(
    sampler: tinker.SamplingClient,
    prompt: Sequence[int],
    tokens: Sequence[int],
    logprobs: Sequence[float],
    temperature: float,
) -> list[float]:
    """Return the absolute difference of each token's log-probability from the sampler's own
    score."""
    scored = await logprobs_of(sampler, [*prompt, *tokens], temperature)
    pairs = zip(logprobs, scored[len(prompt) :], strict=True)
    return [abs(a - b) for a, b in pairs if b is not None]


async def ready(value: Any) -> Any:
    """Return the value, or await it if it is a future: SDK versions differ in which calls return
    futures."""
    if hasattr(value, "__await__"):
        return await value
    if hasattr(value, "result"):
        return await asyncio.to_thread(value.result)
    return value
