"""The parts of our Sandbox Fusion server: admission, bodies, requests, runs; `application` puts them together.

The verb imports `application`, and for its limits `bodies` and `runs`; every server of ours `admission` (who is let in, how it listens and ends).
"""
