"""β · KL(π ‖ π_ref), as a part of the advantages (Schulman's k1 estimate; Ouyang et al. 2022, arXiv 2203.02155).

Each sampled token's advantage loses β · (log q − log p_ref − c), c being the mean of that gap over the tokens of one optimizer step. Centring
leaves the step's mean advantage as it was.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from code_rl.algorithm.datums import Example, with_advantages


def penalise_kl(
    examples: Sequence[Example], reference: Sequence[Sequence[float]], coefficient: float
) -> tuple[list[Example], float]:
    """The examples of one optimizer step with the penalty in their advantages, and the mean gap, an estimate of the divergence.

    `reference` holds log p_ref of each example's sampled tokens; `coefficient` is β.
    """
    gaps = [
        example.array("logprobs")[example.sampled].astype(np.float64) - np.asarray(logprobs, dtype=np.float64)
        for example, logprobs in zip(examples, reference, strict=True)
    ]
    mean = float(np.concatenate(gaps).mean())
    penalised = []
    for example, gap in zip(examples, gaps, strict=True):
        advantages_T = example.array("advantages").copy()
        advantages_T[example.sampled] -= (coefficient * (gap - mean)).astype(np.float32)
        penalised.append(with_advantages(example, advantages_T))
    return penalised, mean
