"""From tokens to training examples, and the optimizer step on them.

A target is a token that the model is to predict from the tokens before it. The policy's tokens have
the sampler's logprobs and an advantage. All other tokens (prompts, an environment's messages) have
zeros and are not trained on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from code_rl.engine.losses import POLICY_LOSSES, SEQUENCE, Loss, loss_settings
from code_rl.util.door import Lazy
from code_rl.util.registry import attribute_errors_to, require_finite

if TYPE_CHECKING:
    import tinker
    from tinker import types

    from code_rl.policy import Turn
else:
    tinker, types = Lazy("tinker"), Lazy("tinker.types")

Floats = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]


class Segment(NamedTuple):
    """The tokens of one example: a prompt, then one token for each of `logprobs`, None where the
    policy did not write the token."""

    tokens: list[int]
    logprobs: list[float | None]

    @property
    def prompt_length(self) -> int:
        """Number of tokens before the first that the policy wrote."""
        return len(self.tokens) - len(self.logprobs)


@dataclass(frozen=True, slots=True)
class Example:
    """A datum, and the segment that it was made from."""

    datum: types.Datum
    segment: Segment

    @property
    def sampled(self) -> Ints:
        """The indices, ascending, of the targets that the policy sampled, among the T − 1
        targets."""
        before = [False] * (self.segment.prompt_length - 1)
        return np.flatnonzero(before + [each is not None for each in self.segment.logprobs])

    def array(self, name: str) -> Floats:
        """Return a field of the datum, such as `logprobs`, [T − 1]. It may share memory with the
        datum: copy it before changing it. Raises KeyError for an unknown field."""
        array: Floats = self.datum.loss_fn_inputs[name].to_numpy()
        return array

    def with_advantages(self, advantages: Floats) -> Example:
        """Return a copy of the example with these advantages of its targets, float32 [T − 1]; the
        segment is shared."""
        inputs = {
            **self.datum.loss_fn_inputs,
            "advantages": types.TensorData.from_numpy(advantages),
        }
        return Example(
            types.Datum(model_input=self.datum.model_input, loss_fn_inputs=inputs), self.segment
        )


def segments(turns: Sequence[Turn]) -> list[Segment]:
    """Join a trajectory's turns, in order, where a prompt extends the tokens before it. A renderer
    with the extension property gives one segment, others may give several.

    Turns without a sampled token are left out. The tokens that a prompt adds get the logprob None,
    so they are not trained on.
    """
    found: list[Segment] = []
    for turn in turns:
        if not turn.tokens:
            continue
        prompt, written = list(turn.prompt_tokens), list[float | None]()
        if found and prompt[: len(found[-1].tokens)] == found[-1].tokens:
            tokens, written = found.pop()
            written = written + [None] * (len(prompt) - len(tokens))
        found.append(Segment([*prompt, *turn.tokens], [*written, *turn.logprobs]))
    return found


def make_datum(
    tokens: list[int], logprobs: Sequence[float | None], ob_len: int, advantage: float
) -> types.Datum:
    """Return one training example, shifted by one: inputs `tokens[:-1]`, targets `tokens[1:]`.

    Args:
        tokens: prompt and completion, T tokens.
        logprobs: the sampler's log-probability of each token after the prompt; None for tokens that
            the policy did not write.
        ob_len: number of prompt tokens ("observation length"), or one less (the shifted count). The
            lengths of the other arguments decide which one is meant.
        advantage: the advantage of the whole completion.

    Returns:
        A datum of length T - 1 whose `logprobs` and `advantages` are zero where the policy did not
        write the target.

    Raises:
        ValueError: the lengths fit neither reading of `ob_len`, or a logprob or the advantage is
            not finite.
    """
    start = len(tokens) - 1 - len(logprobs)
    if start < 0 or ob_len not in (start, start + 1):
        raise ValueError(
            f"lengths do not fit: {len(tokens)} tokens, {len(logprobs)} completion logprobs and "
            f"ob_len={ob_len}; wanted ob_len + one logprob per completion token = {len(tokens)}"
        )
    require_finite([advantage], "advantage")
    require_finite([logprob for logprob in logprobs if logprob is not None], "logprob")
    logprobs_T = np.zeros(len(tokens) - 1, dtype=np.float32)
    advantages_T = np.zeros(len(tokens) - 1, dtype=np.float32)
    logprobs_T[start:] = [0.0 if logprob is None else logprob for logprob in logprobs]
    advantages_T[start:] = [0.0 if logprob is None else advantage for logprob in logprobs]
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": types.TensorData.from_numpy(np.asarray(tokens[1:], dtype=np.int64)),
            "logprobs": types.TensorData.from_numpy(logprobs_T),
            "advantages": types.TensorData.from_numpy(advantages_T),
        },
    )


def train_step(
    training_client: tinker.TrainingClient,
    datums: list[types.Datum],
    adam_params: types.AdamParams,
    loss: Loss = POLICY_LOSSES["importance_sampling"],
    loss_config: Mapping[str, float] | None = None,
    temperature: float = 1.0,
) -> None:
    """Take one optimizer step and block until it is done; without datums, do nothing. `loss_config`
    None means the loss's own settings. Raises what the back end raises.

    Both requests are submitted before either is awaited, so a remote service can pipeline them.
    """
    if datums:
        gradients = forward_backward(training_client, datums, loss, loss_config, temperature)
        step = training_client.optim_step(adam_params)
        gradients.result(), step.result()


def forward_backward(
    training_client: tinker.TrainingClient,
    datums: list[types.Datum],
    loss: Loss,
    loss_config: Mapping[str, float] | None = None,
    temperature: float = 1.0,
) -> tinker.APIFuture[types.ForwardBackwardOutput]:
    """Submit the gradient of `loss`, summed over the tokens of `datums`, and return its future; the
    weights do not change until an optimizer step. A loss of the user's own, or one that the back
    end does not have, is computed here in torch. `loss_config` None means the loss's own settings.

    `temperature` is the temperature of the policy's log-probabilities. It is sent only if it is not
    1, since not every back end accepts one.
    """
    more = {} if temperature == 1 else {"temperature": temperature}
    client: Any = training_client  # only some back ends accept a temperature
    future: tinker.APIFuture[types.ForwardBackwardOutput]
    datums = [with_sequence(datum, loss) for datum in datums]
    if not loss.by_name:
        future = client.forward_backward_custom(datums, _custom(loss, loss_config), **more)
    else:
        settings = {**(loss_config or {}), **more}
        future = client.forward_backward(datums, loss.name, *([settings] if settings else []))
    return future


def with_sequence(datum: types.Datum, loss: Loss) -> types.Datum:
    """Return the datum, with its sampled tokens (log q or A is not 0) marked by 1 in a field of
    float32 if `loss` reads that mark; else the same datum."""
    fields = datum.loss_fn_inputs
    if SEQUENCE not in loss.inputs or SEQUENCE in fields:
        return datum
    sampled = [fields[name].to_numpy() != 0 for name in ("logprobs", "advantages")]
    mask = types.TensorData.from_numpy(np.any(sampled, axis=0).astype(np.float32))
    return types.Datum(model_input=datum.model_input, loss_fn_inputs={**fields, SEQUENCE: mask})


def _custom(loss: Loss, loss_config: Mapping[str, float] | None) -> Any:
    """Wrap `loss` for `forward_backward_custom`: a function from datums and their logprobs to one
    number and metrics. Positions without a signal are not passed to the loss; `loss_config` None
    means its own settings.

    The function raises ConfigError, with the loss's name, for an exception in the loss and for a
    gradient that is missing or not finite.
    """
    settings = loss_settings(loss, loss_config)

    def total(datums: list[types.Datum], logprobs: list[Any]) -> tuple[Any, dict[str, float]]:
        """Return the summed loss with its gradient, and its value as `loss:sum`. Raises ConfigError
        as `_custom` says."""
        import torch

        parts = []
        with attribute_errors_to("loss", loss.name):
            for datum, logprobs_T in zip(datums, logprobs, strict=True):
                fields = {name: each.to_torch() for name, each in datum.loss_fn_inputs.items()}
                signal = torch.stack([fields[name] != 0 for name in loss.signal]).any(dim=0)
                if not signal.any():
                    parts.append(0 * logprobs_T.sum())
                    continue
                inputs = {name: fields[name][signal].to(logprobs_T.dtype) for name in loss.inputs}
                parts.append(loss.checked(torch, logprobs_T[signal], inputs, settings).sum())
            whole = torch.stack(parts).sum()
            if not whole.requires_grad:
                raise ValueError("its formula has no gradient: nothing would be learned")
            slopes = torch.autograd.grad(whole, logprobs, retain_graph=True, allow_unused=True)
            if None in slopes or not all(bool(each.isfinite().all()) for each in slopes):
                raise ValueError("its gradient is missing, or not finite, for one of the datums")
        return whole, {"loss:sum": float(whole.detach())}

    return total
