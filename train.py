"""`python train.py key=value …`, or `python train.py main --key value …`: the entry that students
know, with the four functions of the algorithm."""

from __future__ import annotations

import sys

from code_rl.cli.main import run_verb

if __name__ == "__main__":
    words = sys.argv[1:]
    sys.exit(run_verb("train", words[1:] if words[:1] == ["main"] else words, "python train.py"))

# For `from train import …`; the verb loads them itself, and says it where the extra is missing.
from code_rl import compute_advantages, make_datum, should_skip, train_step

__all__ = ["compute_advantages", "make_datum", "should_skip", "train_step"]
