"""Which problems? From `dataset=` to the problems that a run samples.

`load` opens data sets, whose rows `sources/` reads. `benchmarks` opens the published benchmarks,
`builtin/` generates problems, and `preparation/` is `code-rl prepare`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from code_rl.util.door import door

if TYPE_CHECKING:
    from code_rl.data.dataset import open_dataset, with_absolute_paths
    from code_rl.data.load import find_data, load_dataset, load_problems, load_test_splits
    from code_rl.data.on_disk import ProblemStore
    from code_rl.data.order import ProblemOrder, all_keys, fingerprint_of, subsample, trained_on
else:  # a type checker would take any name for one of ours
    __getattr__ = door(__name__)
