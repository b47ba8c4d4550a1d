"""The course's import names: each module re-exports names of `code_rl`."""
