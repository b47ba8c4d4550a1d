"""The algorithm: pure functions without I/O, one idea a file. It knows records (`rollouts.trajectory`) and nothing else of the tree."""
