"""The algorithm: pure functions, one idea a file."""
