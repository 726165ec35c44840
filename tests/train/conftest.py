"""What the tests of training share."""

import sys
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hopfax.train import loop
from hopfax.train.evaluate import make_predictor
from hopfax.train.state import init_states
from hopfax.train.step import make_chunk

# pytest's importlib mode leaves sys.path alone: `tiny` lies here, `oracles` one folder up.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).resolve().parents[1])]


@pytest.fixture
def rng():
    return np.random.default_rng(5)


_make_chunk, _make_predictor = map(cache, (make_chunk, make_predictor))
_init_states = cache(init_states)


@pytest.fixture
def compiled_once(monkeypatch):
    """Lets the calls of `fit` for one model, objective and schedule share what they compile."""

    def fresh_states(model, optimizer, seeds):
        # Training takes its states' buffers: give it copies.
        return jax.tree.map(jnp.copy, _init_states(model, optimizer, tuple(seeds)))

    monkeypatch.setattr(loop, "make_chunk", _make_chunk)
    monkeypatch.setattr(loop, "make_predictor", _make_predictor)
    monkeypatch.setattr(loop, "init_states", fresh_states)
