"""Graders that can be audited: one file for each kind of target.

`audit.scorecard` imports `base`, the contract. The verb also imports `function` and `ours`.
`audit.process` runs `confined` as a process.
"""
