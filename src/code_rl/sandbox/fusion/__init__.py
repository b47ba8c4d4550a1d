"""Sandbox Fusion: its wire protocol (`protocol`), and an Executor that runs submissions on such servers (`client`); `remote` travels there."""
