"""The files of a run, written by `recorder` and read again by `resume`.

`directory` locks it, `trackers` and `logs` carry metrics elsewhere, `smoke` reads its first steps.
"""
