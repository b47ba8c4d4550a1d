"""The parts of our Sandbox Fusion server: admission, bodies, requests, runs; `application` puts them together."""
