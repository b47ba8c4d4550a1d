"""`python train.py key=value …`: the entry that students know, with the four functions of the algorithm."""

from __future__ import annotations

import sys

from code_rl.algorithm.advantages import compute_advantages, should_skip
from code_rl.algorithm.datums import make_datum, train_step
from code_rl.cli import run_verb

__all__ = ["compute_advantages", "make_datum", "should_skip", "train_step"]

if __name__ == "__main__":
    sys.exit(run_verb("train", sys.argv[1:], "python train.py"))
