"""Messages to tokens and back."""

from code_rl.policy.renderers import Message, Renderer, get_renderer

__all__ = ["Message", "Renderer", "get_renderer"]
