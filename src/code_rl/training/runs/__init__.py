"""The files of a run: `recorder` writes them, `directory` locks the run directory, `resume` chooses
where a run starts and restores its files, and `metrics_log` writes metrics, also to trackers.
"""
