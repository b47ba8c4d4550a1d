"""The parts of our Sandbox Fusion server: admission, bodies, requests, runs; `sandbox.server` puts them together."""
