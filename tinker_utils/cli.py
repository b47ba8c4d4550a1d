"""Log directory management."""

from code_rl.training.runs.directory import check_log_dir

__all__ = ["check_log_dir"]
