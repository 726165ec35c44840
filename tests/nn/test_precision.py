"""Blocks in bfloat16: close to float32, with sums and parameters in float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hopfax.nn import decoder, functional, robertha, tinybert, with_precision
from hopfax.nn.precision import LayerNorm, Linear

SIZES = {"width": 16, "num_layers": 2, "ff_width": 32, "max_length": 12}
RNG = np.random.default_rng(4)
LENGTHS = RNG.integers(3, 13, 16)
MASK = np.arange(12) < LENGTHS[:, None]
IDS = np.where(MASK, RNG.integers(1, 50, MASK.shape), 0)
MODELS = {
    "tinybert": tinybert(50, 2, **SIZES),
    "robertha": robertha(50, 2, **SIZES),
    "paper": robertha(50, 2, preset="paper", **SIZES),
    "released": robertha(50, 2, preset="released", **SIZES),
    "no iteration": robertha(50, 2, max_steps=0, **SIZES),
}


@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_close_to_float32(name, redraw):
    model = MODELS[name]
    params = redraw(model, scale=0.3 if name == "paper" else 0.2)  # so that all queries converge
    models = model, with_precision(model, "bfloat16")
    expected, output = (each.apply(params, IDS, MASK) for each in models)
    assert output.logits.dtype == output.encoding.hidden.dtype == jnp.float32
    assert output.encoding.keys.dtype == jnp.bfloat16
    size = np.abs(expected.logits).max()
    error = np.abs(output.logits - expected.logits).max()
    # Measured: 0.1 to 0.7 %. The lower bound excludes float32.
    assert 1e-5 * size < error < 0.02 * size
    keys = np.asarray(output.encoding.keys, np.float32)
    np.testing.assert_allclose(keys, expected.encoding.keys, atol=0.03 * np.abs(keys).max())
    # bfloat16 cannot represent a change of 1e-4: every query would take 50 steps, or one.
    assert output.encoding.converged.all() and expected.encoding.converged.all()
    steps = [each.encoding.num_steps.mean() for each in (output, expected)]
    np.testing.assert_allclose(*steps, rtol=0.2)


def test_gradients_are_close_to_float32_and_in_it(redraw):
    model = MODELS["tinybert"]
    assert with_precision(model, "float32") is model
    params = redraw(model, scale=0.2)
    expected, output = (
        jax.jit(jax.grad(lambda p, m=m: jnp.mean(m.apply(p, IDS, MASK).logits[:, 0])))(params)
        for m in (model, with_precision(model, "bfloat16"))
    )
    assert {leaf.dtype for leaf in jax.tree.leaves(output)} == {jnp.dtype("float32")}
    distance, size = (
        np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(tree)))
        for tree in (jax.tree.map(jnp.subtract, output, expected), expected)
    )
    assert 1e-5 * size < distance < 0.02 * size


@pytest.mark.parametrize(("layer", "sizes"), [(Linear, (2, 3)), (LayerNorm, (2,))])
def test_the_gradient_of_a_bias_is_summed_in_float32(layer, sizes):
    """With the bias in bfloat16, it is 2048."""
    model = functional(lambda rngs: layer(*sizes, rngs=rngs))
    params = model.init(jax.random.key(0))
    params = {n: p.astype(jnp.bfloat16) if p.ndim == 2 else p for n, p in params.items()}

    def total(bias):
        outputs = model.apply(params | {"bias": bias}, jnp.ones((64, 128, 2), jnp.bfloat16))
        assert outputs.dtype == jnp.bfloat16
        return jnp.sum(outputs, dtype=jnp.float32)

    gradient = jax.jit(jax.grad(total))(params["bias"])
    assert gradient.dtype == jnp.float32
    np.testing.assert_array_equal(gradient, 8192)


def test_a_decoder_in_bfloat16_is_close_to_float32(redraw):
    model = decoder(50, 3, reading="each", width=16)
    params = redraw(model, scale=0.2)
    models = model, with_precision(model, "bfloat16")
    expected, output = (each.apply(params, IDS, MASK) for each in models)
    size, error = np.abs(expected).max(), np.abs(output - expected).max()
    assert output.dtype == jnp.float32 and 1e-5 * size < error < 0.02 * size
