import jax
import jax.numpy as jnp
import numpy as np
import pytest


@pytest.fixture
def rng():
    return np.random.default_rng(11)


@pytest.fixture
def redraw(rng):
    """Draws every parameter of a model, including biases and scales."""

    def redraw(model, *, scale=0.5, dtype=np.float32):
        leaves = jax.eval_shape(model.init, jax.random.key(0))
        return jax.tree.map(lambda x: jnp.asarray(scale * rng.normal(size=x.shape), dtype), leaves)

    return redraw
