"""Graders that can be audited: one file for each kind of target.

`audit.scorecard` imports `base`, the contract; the verb also `function` and `ours`; `audit.process`
runs `confined` as a process.
"""
