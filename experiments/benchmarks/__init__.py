"""Benchmarks of speed and memory: `python -m experiments.benchmarks`."""
