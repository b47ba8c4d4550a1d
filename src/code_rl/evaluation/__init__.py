"""Problem sets put to a model, and what came of it: `code-rl eval` and the training loop's own evaluations.

`runner` asks (`ask`), keeps (`samples`) and judges; `benchmarks` is what is asked. Others import `figures` (pass@k, intervals), `evaluate`, and for a pass rate `ask`, `samples` and `settings`.
"""
