"""From `dataset=` to problems that a run draws from: `dataset` finds the files, `resolve` runs what only a run tells, `on_disk` keeps the result for random access.

`catalogue` and `fetch` know public files, `functions` is the set that comes with the package. `load` is what a run calls. Others may import each.
"""
