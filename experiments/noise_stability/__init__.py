"""Experiments after *Noise Stability of Transformer Models* (Haris et al., ICLR 2026)."""
