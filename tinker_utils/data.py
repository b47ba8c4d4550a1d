"""From rows of a dataset to prompts."""

from code_rl.policy.prompts import build_question

__all__ = ["build_question"]
