"""What the tests of the modules share."""

import sys
from pathlib import Path

import jax
import numpy as np
import pytest

# pytest's importlib mode leaves sys.path alone: `oracles` lies one folder up, and
# `released_program` here.
sys.path[:0] = [str(folder) for folder in Path(__file__).resolve().parents[:2]]


@pytest.fixture
def x64():
    """Double precision for one test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def rng():
    return np.random.default_rng(11)


@pytest.fixture
def redraw(rng):
    """Draws every parameter of a model, biases and scales too: no zero hides a bug."""

    def redraw(model, *, scale=0.5, dtype=np.float32):
        return jax.tree.map(
            lambda leaf: jax.numpy.asarray(scale * rng.normal(size=leaf.shape), dtype),
            jax.eval_shape(model.init, jax.random.key(0)),
        )

    return redraw
