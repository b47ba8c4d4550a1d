"""What a run leaves on disk, written by `recorder` and read again by `resume` and `recorded_run`.

`directory` and `lock` make it one process's own, `journal` has what was decided, `inflight` what was sampled and judged, `checkpoints` the weights,
`trackers` and `logs` carry it elsewhere, `smoke` reads its first steps. Others may import each.
"""
