"""Short heads are multiplied without a matrix product on a CPU, to the same result."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from hopfax.nn import attention
from hopfax.nn.attention import HopfieldAttention, SoftmaxAttention

LAYERS = {
    "softmax": SoftmaxAttention,
    "causal": lambda *args, **kwargs: SoftmaxAttention(*args, causal=True, **kwargs),
    "hopfield": HopfieldAttention,
}


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("tokens", [1, 4, 20])
def test_short_heads_give_what_matrix_products_give(kind, tokens, monkeypatch):
    layer = LAYERS[kind](10, num_heads=2, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (3, tokens, 10))
    mask = jnp.arange(tokens) < jnp.array([[tokens], [1], [max(1, tokens // 2)]])

    def program(x):
        found = layer(x, mask).values
        return jnp.sum(jnp.where(mask[..., None], found**2, 0)), found

    def both():
        (_, found), slope = jax.jit(jax.value_and_grad(program, has_aux=True))(x)
        return found, slope

    assert attention._TINY >= 20**2 * 5
    quick = both()
    monkeypatch.setattr(attention, "_TINY", 0)
    slow = both()
    for mine, theirs in zip(quick, slow, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "dtype", "backend", "wanted"),
    [
        ((8, 16), jnp.float32, "cpu", True),
        ((8, 64), jnp.float32, "cpu", False),
        ((8, 16), jnp.bfloat16, "cpu", False),
        ((8, 16), jnp.float32, "gpu", False),
    ],
)
def test_only_short_float32_heads_on_a_cpu(shape, dtype, backend, wanted, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    assert attention._is_tiny(jnp.zeros((2, 2, *shape), dtype)) is wanted


def test_short_heads_need_no_matrix_product_but_their_projections():
    layer = SoftmaxAttention(8, num_heads=2, rngs=nnx.Rngs(0))
    mask = jnp.ones((3, 4), bool)
    text = jax.jit(lambda x: layer(x, mask).values).lower(jnp.zeros((3, 4, 8))).as_text()
    assert text.count("stablehlo.dot_general") == 4
