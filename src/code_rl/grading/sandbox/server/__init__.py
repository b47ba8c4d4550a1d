"""The parts of our Sandbox Fusion server: admission, requests, runs; `application` puts them
together.

The verb imports `application`, and for its limits `runs`; every server of ours `admission` (who is
let in, how it listens and ends).
"""
