"""How good is it? `code-rl eval` and the evaluations of a training run.

`benchmarks` are the problems, `completers` and `endpoint` give samples, `runner` keeps and judges
them (`samples`), `figures` has pass@k and intervals, `results` and `compare` make tables, `rating`
the Codeforces rating.
"""
