"""The attention layer on the fused kernel, in Pallas's interpreter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from hopfax.nn import HopfieldAttention, functional, robertha

WIDTH, BETA = 6, 3.0
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [0, 0, 0, 0, 0]], bool)


@pytest.fixture
def x(rng):
    return jnp.asarray(rng.normal(size=(*MASK.shape, WIDTH)), jnp.float32)


def layer(implementation="xla", **options):
    options = {"beta": BETA, "implementation": implementation} | options
    return functional(lambda rngs: HopfieldAttention(WIDTH, rngs=rngs, **options))


def evaluated(layer, params, x):
    """Returns the layer's output, and gradients of its outputs at real tokens."""
    weights = jnp.cos(jnp.arange(x.size).reshape(x.shape))

    @jax.jit
    def run(params, x):
        output = layer.apply(params, x, MASK)
        return jnp.sum(jnp.where(MASK[..., None], weights * output.values, 0)), output

    (_, output), slopes = jax.value_and_grad(run, argnums=(0, 1), has_aux=True)(params, x)
    return output, slopes


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stop": "absolute", "query_projection": False, "output_projection": False},
        {"mask_keys": False, "num_heads": 3},
        {"num_heads": 3, "query_projection": False},  # heads of 2: XLA iterates states
    ],
    ids=str,
)
def test_the_kernel_equals_xla(x, redraw, options):
    params = redraw(layer(**options))
    expected, slopes = evaluated(layer("xla", **options), params, x)
    output, others = evaluated(layer("pallas", **options), params, x)
    np.testing.assert_allclose(output.values, expected.values, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(output.keys, expected.keys)
    assert output.num_steps.tolist() == expected.num_steps.tolist()
    assert output.converged.tolist() == expected.converged.tolist()
    assert len(set(np.ravel(output.num_steps).tolist())) > 2
    for one, other in zip(jax.tree.leaves(others), jax.tree.leaves(slopes), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-3 * np.abs(other).max())
    if "mask_keys" not in options:
        assert not np.any(others[1][~MASK])
    if "query" in params:
        assert not np.any(others[0]["query"]["kernel"])
    assert np.abs(others[0]["key"]["kernel"]).max() > 1e-2


def test_the_kernel_is_opt_in(x):
    for options, fused in (({}, False), ({"implementation": "pallas"}, True)):
        attention = HopfieldAttention(WIDTH, rngs=nnx.Rngs(0), **options)
        assert ("pallas_call" in str(jax.make_jaxpr(attention)(x, MASK))) is fused
    model = robertha(10, 3, implementation="pallas", width=8, ff_width=12, max_length=8)
    for block in model.apply(model.init(jax.random.key(0)), method=lambda net: net.blocks):
        assert block.attention.implementation == "pallas"


@pytest.mark.parametrize(
    "options",
    [{"gradient": "unrolled"}, {"scope": "batch"}, {"max_steps": 0}],
    ids=str,
)
def test_unsupported_options_are_errors(options):
    with pytest.raises(ValueError, match='pallas" requires') as error:
        HopfieldAttention(WIDTH, implementation="pallas", rngs=nnx.Rngs(0), **options)
    assert str(next(iter(options.values()))) in str(error.value)
