"""Robust text encoders, Hopfield attention and noise stability, in JAX.

`hopfax.hopfield` has retrieval, key spectra and noise. `hopfax.stability` has noise stability and
influence. `hopfax.nn` has attention layers, models and pretrained encoders. `hopfax.Classifier`
predicts the labels of texts. These are imported at first use. Import the other modules by name:
`fixed_point`, `train`, `data`, `text`.

Example:
    >>> import hopfax, jax.numpy as jnp
    >>> patterns = jnp.eye(3)
    >>> hopfax.hopfield.retrieve(patterns[0], patterns, beta=8.0).value.round(2).tolist()
    [1.0, 0.0, 0.0]
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hopfax import hopfield as hopfield
    from hopfax import nn as nn
    from hopfax import stability as stability
    from hopfax.classifier import Classifier as Classifier

_LAZY = ("hopfield", "nn", "stability")


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return import_module(f"hopfax.{name}")
    if name == "Classifier":
        return import_module("hopfax.classifier").Classifier
    raise AttributeError(f"module 'hopfax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, "Classifier"})


__version__ = "0.1.0"
