"""Sandbox Fusion: its wire protocol (`protocol`), and an Executor that runs submissions on such
servers (`client`). A harness (`payload`) is sent with each request.

Our own server uses `protocol` too.
"""
