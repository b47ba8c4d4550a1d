"""What a run leaves on disk, written by `recorder` and read again by `resume`.

`directory` makes it one process's own, `inflight` has what was sampled and judged, `checkpoints`
the weights, `trackers` and `logs` carry it elsewhere, `smoke` reads its first steps. Others may
import each.
"""
