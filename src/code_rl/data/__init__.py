"""Which problems? From `dataset=` to problems that a run draws from.

`load` is the entry of a run; `dataset` finds the files, `sources/` has a reader for each shape of
rows, `resolve` runs reference solutions, `on_disk` keeps the result for random access. `builtin/`
makes the built-in problems, `preparation/` is `code-rl prepare`.
"""
