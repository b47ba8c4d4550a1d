"""Sandbox Fusion: its wire protocol (`protocol`), and an Executor that runs submissions on such
servers (`client`); `remote` travels there.

Our own server speaks `protocol` too; the audit of such a server also imports `transport` and a
program of `remote`.
"""
