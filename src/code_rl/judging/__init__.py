"""What a program is worth is seen here: `judge` runs it on a problem's tests and gives a `verdict`; `compare`, `checker`, `interaction` decide outputs.

Verdicts become numbers in `code_rl.rewards`. Others import `judge`, `verdict` and `env` (CodeEnv); `extract` finds the program in an answer.
"""
