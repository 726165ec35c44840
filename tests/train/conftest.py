import signal
import sys
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from hopfax.train import loop, schedule
from hopfax.train.state import init_states
from hopfax.train.step import make_chunk

# pytest's importlib mode leaves sys.path alone: `tiny` is here, `oracles` one folder up.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).resolve().parents[1])]


@pytest.fixture
def default_handler():
    """Python's own SIGINT handler, which a process in the background does not have."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


_make_chunk = cache(make_chunk)
_init_states = cache(init_states)


@pytest.fixture
def compiled_once(monkeypatch):
    """Lets calls of `fit` with the same model, objective and optimizer share compiled programs."""

    def fresh_states(model, optimizer, seeds):
        # Training donates its states' buffers.
        return jax.tree.map(jnp.copy, _init_states(model, optimizer, tuple(seeds)))

    monkeypatch.setattr(loop, "make_chunk", _make_chunk)
    monkeypatch.setattr(loop, "init_states", fresh_states)
    monkeypatch.setattr(schedule, "CHUNK_STEPS", 2)
