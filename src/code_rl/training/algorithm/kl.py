"""β · KL(π ‖ π_ref), as a part of the advantages (Schulman's k1 estimate; Ouyang et al. 2022, arXiv
2203.02155).

Each sampled token's advantage is reduced by β · (log q − log p_ref − c), where c is the mean of log
q − log p_ref over the tokens of one optimizer step. Centering keeps the step's mean advantage.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from code_rl.training.algorithm.datums import Example


def penalise_kl(
    examples: Sequence[Example], reference_logprobs: Sequence[Sequence[float]], beta: float
) -> tuple[list[Example], float | None]:
    """Return the examples of one optimizer step, in order, with the penalty in their advantages,
    and the mean of log q − log p_ref, an estimate of the divergence (None without examples). The
    given examples are not changed.

    `reference_logprobs` are log p_ref of each example's sampled tokens. Raises ValueError if their
    number differs from that of the examples.
    """
    if not examples:
        return [], None
    gaps = [
        example.array("logprobs")[example.sampled].astype(np.float64)
        - np.asarray(logprobs_T, dtype=np.float64)
        for example, logprobs_T in zip(examples, reference_logprobs, strict=True)
    ]
    mean = float(np.concatenate(gaps).mean())
    penalised = []
    for example, gap_T in zip(examples, gaps, strict=True):
        advantages_T = example.array("advantages").copy()
        advantages_T[example.sampled] -= (beta * (gap_T - mean)).astype(np.float32)
        penalised.append(example.with_advantages(advantages_T))
    return penalised, mean
