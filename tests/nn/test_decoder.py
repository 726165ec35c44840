"""The decoder against a slow version; causality, padding and initialization."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from nn import slow

from hopfax.nn import decoder
from hopfax.nn.decoder import sinusoids

IDS = np.array([[3, 1, 4, 1, 5], [9, 2, 6, 0, 0]])
MASK = IDS > 0


def test_sinusoids_by_hand():
    output = sinusoids(3, 5)
    assert output.shape == (3, 5)
    for t in range(3):
        for i in range(5):
            angle = t / 10000 ** (2 * (i // 2) / 5)
            np.testing.assert_allclose(
                output[t, i], (np.cos if i % 2 else np.sin)(angle), rtol=1e-6
            )


@pytest.mark.parametrize("norm_first", [True, False])
def test_one_layer_is_the_formula(x64, redraw, norm_first):
    model = decoder(10, 3, width=4, num_layers=1, norm_first=norm_first)
    params = redraw(model, dtype=np.float64)
    own = params["blocks"][0]
    x = np.asarray(params["tokens"]["embedding"])[IDS] * 2 + sinusoids(5, 4)
    relu = partial(np.maximum, 0)
    x = slow.block(own, x, MASK, norm_first=norm_first, activation=relu, causal=True)
    if norm_first:
        x = slow.norm(params["norm"], x)
    expected = slow.linear(params["reader"], np.stack([x[0].mean(0), x[1, :3].mean(0)]))
    np.testing.assert_allclose(model.apply(params, jnp.asarray(IDS), MASK), expected, rtol=1e-9)


def test_initial_parameters_are_the_papers():
    model = decoder(200, 50, width=64)
    params = model.init(jax.random.key(0))
    kernel = params["blocks"][0]["ff_in"]["kernel"]
    assert kernel.shape == (64, 256)
    assert abs(float(kernel.std()) - 0.02) < 5 * 0.02 / (2 * kernel.size) ** 0.5
    assert not params["reader"]["bias"].any()
    bound = (6 / (200 + 64)) ** 0.5
    table = params["tokens"]["embedding"]
    assert bound > float(jnp.abs(table).max()) > 0.99 * bound
    assert "positions" not in params
