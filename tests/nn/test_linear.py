"""The linear layer is flax's, whatever the order in which it sums."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from hopfax.nn.linear import linear


@pytest.mark.parametrize("shape", [(3,), (4, 3), (2, 4, 3), (2, 1, 4, 3), (0, 4, 3)])
def test_values_and_gradients_are_those_of_the_plain_product(shape):
    layer = linear(3, 5, rngs=nnx.Rngs(0))
    kernel, bias = layer.kernel[...], jnp.arange(5.0)
    layer.bias[...] = bias
    x = jax.random.normal(jax.random.key(1), shape)
    weights = jax.random.normal(jax.random.key(2), (*shape[:-1], 5))
    graphdef, _ = nnx.split(layer)

    def ours(kernel, x):
        changed = {"bias": bias, "kernel": kernel}
        return jnp.sum(weights * nnx.merge(graphdef, changed)(x))

    found = jax.grad(ours, (0, 1))(kernel, x)
    np.testing.assert_allclose(layer(x), np.asarray(x) @ kernel + bias, rtol=1e-5, atol=1e-6)
    rows, coming = np.asarray(x).reshape(-1, 3), np.asarray(weights).reshape(-1, 5)
    np.testing.assert_allclose(found[0], rows.T @ coming, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[1], np.asarray(weights) @ kernel.T, rtol=1e-5, atol=1e-6)


def test_the_gradient_of_a_kernel_sums_over_one_axis():
    layer = linear(3, 5, rngs=nnx.Rngs(0))
    graphdef, state = nnx.split(layer)
    x = jnp.ones((2, 4, 3))
    text = str(jax.make_jaxpr(jax.grad(lambda s: nnx.merge(graphdef, s)(x).sum()))(state))
    assert "f32[8,3]" in text
    assert "(([0, 1], [0, 1])" not in text
