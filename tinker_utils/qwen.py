"""Renderers of the Qwen3 and Qwen3.5 families."""

from code_rl.policy.renderers.qwen3 import (
    Qwen3DisableThinkingRenderer,
    Qwen3InstructRenderer,
    Qwen3Renderer,
    Qwen3ThinkingRenderer,
    Qwen35DisableThinkingRenderer,
    Qwen35Renderer,
)

__all__ = [
    "Qwen3DisableThinkingRenderer",
    "Qwen3InstructRenderer",
    "Qwen3Renderer",
    "Qwen3ThinkingRenderer",
    "Qwen35DisableThinkingRenderer",
    "Qwen35Renderer",
]
