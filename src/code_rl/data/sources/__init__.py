"""Readers of public data sets, a file a family of shapes: each turns a raw row into a `Problem`, a
`Draft`, an `Ambiguous` or a `Skipped`.

`shapes` tells which reader a row is for; a reader of your own is one function and its line there.
Others import `shapes` and `records` (what a reader gives), who reads or judges tests `testcases`
and `asserts`; a benchmark, a data set and a wording what is known of their own rows: `humaneval`,
`mbpp`, `livecodebench`, `verl`.
"""
