"""The environment that scores completions."""

from code_rl.grading.env import CodeEnv, StepResult, sandbox_check_correctness

__all__ = ["CodeEnv", "StepResult", "sandbox_check_correctness"]
