"""The ids of sampled sequences, for the hosted loss `stable_reinforce`.

The service records data about each sequence as it samples it. The loss finds that data by the
sequence's id, which `tinker.Datum.with_provenance` attaches to every token of a datum. This module
finds a datum's sequences by tokens and the sampler's log-probabilities, so no code between sampling
and training has to carry ids. Ids are valid only for the session.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from code_rl.util.errors import BackendError

if TYPE_CHECKING:
    from tinker import types

MOST = 200_000
"""The number of sequences remembered; the oldest are forgotten first."""


class _Sequence(NamedTuple):
    """A sampled sequence: its id, the length of its prompt, a digest of its log-probabilities."""

    id: str
    start: int
    logprobs: bytes


class RecordedSequences:
    """The sequences sampled in this session."""

    def __init__(self) -> None:
        self._by_tokens: dict[bytes, list[_Sequence]] = {}

    def note(self, prompt: Sequence[int], sequences: Sequence[types.SampledSequence]) -> None:
        """Remember the answers to a prompt."""
        for each in sequences:
            *_, whole = _prefixes([*prompt, *each.tokens])
            logprobs = _digest(np.asarray(each.logprobs or (), np.float32))
            made = _Sequence(each.sequence_id, len(prompt), logprobs)
            self._by_tokens.setdefault(whole, []).append(made)
        while len(self._by_tokens) > MOST:
            del self._by_tokens[next(iter(self._by_tokens))]

    def attached(self, datum: types.Datum) -> types.Datum:
        """Return the datum with the sequence id of each of its tokens. Raises BackendError for a
        datum that was not sampled in this session."""
        from tinker.types import PromptProvenanceSpan, SampledProvenanceSpan

        targets = datum.loss_fn_inputs["target_tokens"].to_numpy()
        tokens = [*datum.model_input.to_ints(), int(targets[-1])]
        spans: list[PromptProvenanceSpan | SampledProvenanceSpan] = []
        done = 0
        for end, found in self._sequences(tokens, datum.loss_fn_inputs["logprobs"].to_numpy()):
            if found.start < done:
                continue
            if found.start > done:
                length = found.start - done
                spans.append(PromptProvenanceSpan(sequence_id=found.id, offset=done, length=length))
            spans.append(SampledProvenanceSpan(sequence_id=found.id, length=end - found.start))
            done = end
        if done < len(tokens):
            raise BackendError(
                f"loss=stable_reinforce: {len(tokens) - done} tokens of an example were not "
                "sampled in this session; resume the run"
            )
        first, last = spans[0], spans[-1]
        shorter = PromptProvenanceSpan(
            sequence_id=first.sequence_id, offset=1, length=first.length - 1
        )
        without_last = SampledProvenanceSpan(sequence_id=last.sequence_id, length=last.length - 1)
        return datum.with_provenance([*spans[:-1], without_last], [shorter, *spans[1:]])

    def _sequences(
        self, tokens: Sequence[int], logprobs_T: np.ndarray
    ) -> Iterator[tuple[int, _Sequence]]:
        """Yield each sequence that ends within the tokens, with the position of its end."""
        for end, whole in enumerate(_prefixes(tokens), 1):
            for each in reversed(self._by_tokens.get(whole, [])):
                if each.logprobs == _digest(logprobs_T[each.start - 1 : end - 1]):
                    yield end, each
                    break


def _prefixes(tokens: Sequence[int]) -> Iterator[bytes]:
    """Yield the digest of the first token, of the first two tokens, and so on."""
    state = hashlib.blake2b(digest_size=16)
    for token in tokens:
        state.update(token.to_bytes(4, "little"))
        yield state.digest()


def _digest(logprobs: np.ndarray) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(logprobs).tobytes(), digest_size=16).digest()
