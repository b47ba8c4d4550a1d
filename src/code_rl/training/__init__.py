"""The algorithm and a run."""
