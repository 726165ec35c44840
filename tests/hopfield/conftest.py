"""What the tests of the Hopfield core share."""

import jax
import numpy as np
import pytest


@pytest.fixture
def x64():
    """Double precision for one test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def rng():
    return np.random.default_rng(7)
