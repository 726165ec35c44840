"""Robust text encoders, Hopfield attention and noise stability, in JAX.

Import the part you want, for instance `from hopfax import hopfield, stability`: `hopfield` for
retrieval, key spectra and noise, `stability` for noise stability and influence, `fixed_point` for
the loop below them, `random` for jax's random numbers in less time, `kernels` for retrieval on a
GPU, `nn` for models, `train` for training, `data` for GLUE, SuperGLUE and synthetic tasks, `text`
for corrupted texts.
"""

__version__ = "0.1.0"
