"""What the tests of training share."""

import sys
from pathlib import Path

import numpy as np
import pytest

# pytest's importlib mode leaves sys.path alone: `tiny` lies here, `oracles` one folder up.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).resolve().parents[1])]


@pytest.fixture
def rng():
    return np.random.default_rng(5)
