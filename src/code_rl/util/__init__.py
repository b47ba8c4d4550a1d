"""Errors, files, concurrency, settings: what every wing uses."""
