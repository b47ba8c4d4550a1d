"""Rollouts: `choice` says which problems, `sample` draws and judges the trajectories of one.

Who needs answers imports `sample`: a run, an evaluation, the library; a run also `choice`. The records are in `code_rl.trajectory`; `pipeline` makes batches of them.
"""
