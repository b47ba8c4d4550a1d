"""Sandbox Fusion: its wire protocol (`protocol`), and an Executor that runs submissions on such servers (`client`).

`remote` travels there. Others import `FusionClient` from here.
"""

from code_rl.sandbox.fusion.client import FusionClient

__all__ = ["FusionClient"]
