"""Rollouts: `choice` says which problems, `sample` draws and judges the trajectories of one, `batches` those of a step.

`trajectory` has the records that everything above imports; `lengths` says how many tokens an answer may have.
"""
