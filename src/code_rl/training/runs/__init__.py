"""The files of a run: `recorder` writes them and `resume` reads them.

`directory` locks the run directory; `logs` and `trackers` record metrics.
"""
