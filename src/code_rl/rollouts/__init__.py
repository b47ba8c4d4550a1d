"""Rollouts: trajectories sampled from a snapshot of the weights, judged as they come, a batch at a time."""
