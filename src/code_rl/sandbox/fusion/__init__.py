"""Sandbox Fusion: its wire protocol, and an Executor (`client`) that runs submissions on such servers."""
