"""Judges programs: `judge` runs one on a problem's tests and gives a `verdict`; `compare` and `checker` decide outputs.

Verdicts become numbers in `code_rl.rewards`. Others import `judge`, `verdict`, `extract` (the program in an answer), `submission`, and the rules in `compare` and `plain`;
`env` is the course's CodeEnv, `shared` the judge that many callers of one process have in common.
"""
