"""Removing noise by retrieval from a model's vocabulary."""
