"""Errors, files, concurrency and settings, for every wing."""
