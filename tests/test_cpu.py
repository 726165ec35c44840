from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hopfax import cpu
from hopfax.cpu import fast_key
from hopfax.nn import HopfieldAttention, functional
from hopfax.nn.precision import linear

KEYS = [jax.random.key(seed) for seed in (0, 1, 2**32 - 1)]


@pytest.mark.parametrize("key", KEYS[1:])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64])
@pytest.mark.parametrize("shape", [(), (2, 3, 5), (0, 2)])
def test_bits_equal_those_of_jax(key, dtype, shape):
    with jax.enable_x64(dtype == np.uint64):
        bits = jax.random.bits(fast_key(key), shape, dtype)
        assert bits.dtype == dtype
        np.testing.assert_array_equal(bits, jax.random.bits(key, shape, dtype))


@pytest.mark.parametrize("key", KEYS[1:])
def test_derived_keys_equal_those_of_jax(key):
    for derive in (
        lambda key: jax.random.split(key, 5),
        lambda key: jax.random.split(key, (2, 3)),
        lambda key: jax.random.fold_in(key, 77),
        lambda key: jax.random.fold_in(jax.random.split(key)[1], jnp.uint32(2**32 - 5)),
        jax.jit(jax.random.split),
        lambda key: jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(4)),
    ):
        data, expected = (jax.random.key_data(derive(each)) for each in (fast_key(key), key))
        np.testing.assert_array_equal(data, expected)


def test_other_keys_are_returned_unchanged_and_raw_ones_wrapped(monkeypatch):
    other, old = jax.random.key(0, impl="rbg"), jax.random.PRNGKey(7)
    np.testing.assert_array_equal(jax.random.key_data(fast_key(old)), old)
    assert fast_key(jax.random.split(old, 3)).shape == (3,)
    with pytest.raises(TypeError, match="uint32"):
        fast_key(jnp.zeros(2, int))
    assert fast_key(other) is other
    assert fast_key(fast_key(KEYS[0])).dtype == fast_key(KEYS[0]).dtype
    with jax.threefry_partitionable(False):
        assert fast_key(KEYS[0]) is KEYS[0]
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert fast_key(KEYS[0]) is KEYS[0]


def test_a_group_is_the_largest_divisor_that_fits(monkeypatch):
    def size(texts, cores, elements=2**15):
        monkeypatch.setattr(cpu, "usable_cores", lambda: cores)
        return cpu.group_size(texts, elements=elements)

    assert [size(32, cores) for cores in (1, 2, 3, 16, 64)] == [2, 4, 4, 32, 32]
    assert (size(30, 5), size(31, 4), size(0, 4)) == (10, 1, 1)
    assert size(32, 2, elements=2**20) == 1  # no text fits
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert size(32, 1) == 32


@pytest.mark.parametrize("gradient", ["implicit", "unrolled"])
def test_attention_by_groups_is_attention(monkeypatch, gradient):
    build = partial(HopfieldAttention, 8, beta=30.0, max_steps=30, gradient=gradient)
    params = jax.tree.map(lambda leaf: 25 * leaf, functional(build).init(jax.random.key(0)))
    x = jax.random.normal(jax.random.key(1), (6, 5, 8))
    mask = jnp.arange(5) < jnp.array([5, 2, 4, 1, 5, 3])[:, None]

    monkeypatch.setattr(cpu, "usable_cores", lambda: 1)
    outcomes = []
    for texts in (6, 3):
        monkeypatch.setattr(cpu, "_PER_CORE", texts * 2 * 5**2)
        layer = functional(build)  # nothing compiled for the other size

        @jax.jit
        def run(params, x, layer=layer):
            retrieved = layer.apply(params, x, mask, method="attend")
            return jnp.sum(jnp.where(mask[..., None], retrieved.values, 0) ** 2), retrieved

        assert f"f32[{texts},2,5,5]" in str(jax.make_jaxpr(run)(params, x))
        outcomes.append(jax.value_and_grad(run, (0, 1), has_aux=True)(params, x))
    ((expected_loss, expected), gradient), ((loss, retrieved), grouped_gradient) = outcomes
    assert len(np.unique(expected.num_steps)) > 3  # queries stop at different steps
    np.testing.assert_array_equal(retrieved.num_steps, expected.num_steps)
    np.testing.assert_array_equal(retrieved.converged, expected.converged)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    atol = 1e-6 * max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(gradient))
    chex.assert_trees_all_close(grouped_gradient, gradient, rtol=1e-4, atol=atol)


@pytest.mark.parametrize("shape", [(3,), (4, 3), (2, 4, 3), (2, 1, 4, 3), (0, 4, 3)])
def test_flat_products_have_the_values_and_gradients_of_the_plain_product(shape):
    layer = functional(lambda rngs: linear(3, 5, rngs=rngs))
    params = layer.init(jax.random.key(0)) | {"bias": jnp.arange(5.0)}
    x = jax.random.normal(jax.random.key(1), shape)
    weights = jax.random.normal(jax.random.key(2), (*shape[:-1], 5))

    def loss(params, x):
        product = layer.apply(params, x)
        return jnp.sum(weights * product), product

    (_, product), (of_params, of_x) = jax.value_and_grad(loss, (0, 1), has_aux=True)(params, x)
    kernel, close = params["kernel"], {"rtol": 1e-5, "atol": 1e-6}
    np.testing.assert_allclose(product, np.asarray(x) @ kernel + params["bias"], **close)
    rows, cotangents = np.asarray(x).reshape(-1, 3), np.asarray(weights).reshape(-1, 5)
    np.testing.assert_allclose(of_params["kernel"], rows.T @ cotangents, **close)
    np.testing.assert_allclose(of_x, np.asarray(weights) @ kernel.T, **close)
