"""Benchmarks, side by side with a PyTorch peer; README.md says how to run them."""
