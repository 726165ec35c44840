"""Robust encoders and noise stability, in JAX."""

__version__ = "0.1.0"
