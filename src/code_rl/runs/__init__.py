"""What a run leaves on disk, written by `recorder` and read again by `resume` and `recording`.

`directory` and `lock` make it one process's own, `journal` has what was decided, `inflight` what was sampled and judged, `checkpoints` the weights.
`files` (whole lines, files replaced at once, marks) serves the whole tree; others import `directory`, `inflight`, `recorder` and `recording` too.
"""
