"""Problem sets put to a model, and what came of it: `code-rl eval` and the training loop's own evaluations.

`runner` has samples completed (`completers`), keeps them (`samples`) and judges; `benchmarks` are the problems. Others import `figures` (pass@k, intervals), `evaluate`, and for a pass rate `completers` and
`settings`; verbs also those above, `manifest`, `results`, `compare` and `view`.
"""
