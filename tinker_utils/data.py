"""From rows of a dataset to prompts."""

from code_rl.policy.prompt_templates import build_question

__all__ = ["build_question"]
