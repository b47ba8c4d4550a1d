"""Rollouts: `choice` says which problems, `sample` draws and judges the trajectories of one, `lengths` says how many tokens an answer may have.

`trajectory` has the records that everything above imports; `pipeline` makes batches of them.
"""
