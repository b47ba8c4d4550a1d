"""The files of a run: `recorder` writes them, `directory` locks the run directory and restores it
for a resume, and `logs` records metrics, also in trackers.
"""
