"""What the tests of the kernels share."""

import sys
from pathlib import Path

import jax
import numpy as np
import pytest

# pytest's importlib mode leaves sys.path alone: `oracles` lies one folder up.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


@pytest.fixture
def x64():
    """Double precision for one test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def rng():
    return np.random.default_rng(5)
