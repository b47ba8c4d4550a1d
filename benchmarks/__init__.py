"""Measurements, a program each: `python benchmarks/NAME.py`."""
