"""`python train.py key=value ...`, or `python train.py main --key value ...`: the entry that
students know, with the four functions of the algorithm. An old Python can read it, too."""

import sys

try:
    if sys.version_info < (3, 11):  # noqa: UP036 - anybody's Python may run this file
        raise ImportError("it is too old")
    from code_rl.cli.main import run_verb
except ImportError as error:
    if __name__ != "__main__":
        raise
    version = sys.version.split()[0]
    sys.stderr.write(
        "error: "
        + sys.executable
        + " (Python "
        + version
        + ") cannot run code-rl: "
        + str(error)
        + "; run `make train`, or .venv/bin/python train.py with Python 3.11 or later\n"
    )
    sys.exit(2)

if __name__ == "__main__":
    words = sys.argv[1:]
    sys.exit(run_verb("train", words[1:] if words[:1] == ["main"] else words, "python train.py"))

# For `from train import ...`; the verb loads them itself, and says it where the extra is missing.
from code_rl import compute_advantages, make_datum, should_skip, train_step

__all__ = ["compute_advantages", "make_datum", "should_skip", "train_step"]
