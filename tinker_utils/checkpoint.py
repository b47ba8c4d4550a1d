"""Saving and finding checkpoints with full optimizer state."""

from code_rl.engine.checkpoints import get_last_checkpoint, save_checkpoint, save_checkpoint_async

__all__ = ["get_last_checkpoint", "save_checkpoint", "save_checkpoint_async"]
