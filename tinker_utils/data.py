"""From rows of a dataset to prompts."""

from code_rl.data.prompts import build_question

__all__ = ["build_question"]
