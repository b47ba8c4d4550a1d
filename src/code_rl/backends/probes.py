"""Small experiments on a remote back end when a run starts: its context, its loss, what its sampled log-probabilities are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from code_rl.algorithm.datums import make_datum
from code_rl.backends.names import source_of
from code_rl.errors import BackendError, ConfigError

if TYPE_CHECKING:
    from code_rl.backends.remote import RemoteSamplingClient, RemoteTrainingClient

# Drawn so hot that a tempered log-probability is far from the policy's own; in bfloat16 the same number computed twice differs
# by a few hundredths.
_PROBE_TOKENS, _PROBE_TEMPERATURE, _APART = 16, 3.0, 0.2


def load_tokenizer(model_name: str, tokenizer_id: str | None = None) -> Any:
    """The model's tokenizer, by its own name or the one that the server gives. Raises ConfigError when neither can be had.

    Loaded here, not through the SDK, which misreads local folders.
    """
    from transformers import AutoTokenizer

    failures = []
    for name in dict.fromkeys(each for each in (model_name, tokenizer_id) if each):
        try:
            return AutoTokenizer.from_pretrained(source_of(name))
        except (OSError, ValueError, ConfigError) as error:
            failures.append(" ".join(str(error).split())[:200])
    raise ConfigError(f"model {model_name!r} has no usable tokenizer here: {'; '.join(failures)}")


def context_of(model_name: str, told: int | None) -> int:
    """Tokens of context: what the server says, else what the model's configuration says. Raises ConfigError without either."""
    if told is not None:
        return told
    try:
        source = source_of(model_name)
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(Path(source) if Path(source).is_dir() else source)
        return int(config.max_position_embeddings)
    except (OSError, ValueError, ConfigError, AttributeError) as error:
        raise ConfigError(
            f"the server does not say how long the context of {model_name!r} is, and its configuration cannot be read here: "
            f"{' '.join(str(error).split())[:200]}"
        ) from error


async def probe_loss(trainer: RemoteTrainingClient, loss: str, settings: Mapping[str, float], token: int) -> None:
    """Run one forward pass over two tokens with the run's loss. Raises ConfigError, naming the loss, when it is refused."""
    datum = make_datum([token, token], [-1.0], 1, 1.0)
    try:
        await trainer.forward([datum], loss, settings)
    except BackendError as error:
        named = f"loss={loss}" + "".join(f" {key}={value:g}" for key, value in settings.items())
        raise ConfigError(f"{named} is not honoured by this back end: {error}") from error


async def probe_scaling(sampler: RemoteSamplingClient, token: int) -> bool:
    """True when sampled log-probabilities belong to the tempered distribution, False when they are the policy's own.

    Draws a few tokens at a high temperature and has the same tokens scored at temperature 1.
    """
    from tinker import types

    prompt = [token, token]
    parameters = types.SamplingParams(max_tokens=_PROBE_TOKENS, temperature=_PROBE_TEMPERATURE, seed=0)
    response = await sampler.sample(types.ModelInput.from_ints(prompt), 1, parameters)
    sequence = response.sequences[0]
    drawn = list(sequence.logprobs or [])
    scored = await sampler.compute_logprobs(types.ModelInput.from_ints([*prompt, *sequence.tokens]))
    gaps = [abs(a - b) for a, b in zip(drawn, scored[len(prompt) :], strict=True) if b is not None]
    if not gaps:
        raise BackendError("the back end returned no log-probabilities to compare; train at temperature=1")
    return sum(gaps) / len(gaps) > _APART


async def probe_narrowing(sampler: RemoteSamplingClient, token: int, top_p: float, top_k: int) -> None:
    """Raise ConfigError for a back end that draws beyond top_p or top_k, each tried where the run sets it.

    Cut down to the one likeliest token, several draws at a high temperature must be the same.
    """
    from tinker import types

    for name, value, off, narrowest in (("top_p", top_p, 1.0, 1e-6), ("top_k", top_k, -1, 1)):
        if value == off:
            continue
        how: dict[str, Any] = {name: narrowest, "max_tokens": 2, "temperature": _PROBE_TEMPERATURE, "seed": 0}
        prompt = types.ModelInput.from_ints([token, token])
        try:
            drawn = (await sampler.sample(prompt, _PROBE_TOKENS, types.SamplingParams(**how))).sequences
        except BackendError as error:
            raise ConfigError(f"{name}={value:g} is not honoured by this back end: {error}") from error
        if len({tuple(sequence.tokens) for sequence in drawn}) > 1:
            raise ConfigError(
                f"{name}={value:g} is not honoured by this back end: it draws from all tokens; leave it out"
            )
