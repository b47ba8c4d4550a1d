"""Graders that can be audited: a file for each kind of target.

`audit.scorecard` imports `base`, what a grader is; the verb also `function` and `ours`;
`audit.process` runs `confined` as a process.
"""
