"""From a problem to a trajectory."""
