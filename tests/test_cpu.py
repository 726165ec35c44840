"""What is faster on a CPU gives the same results."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from hopfax import cpu
from hopfax.cpu import quick, threefry
from hopfax.nn import HopfieldAttention, functional
from hopfax.nn.precision import linear

KEYS = [jax.random.key(seed) for seed in (0, 1, 2**32 - 1)]


@pytest.mark.parametrize("key", KEYS[1:])
@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.uint16, jnp.uint32])
@pytest.mark.parametrize("shape", [(), (2, 3, 5), (0, 2)])
def test_bits_are_jaxs(key, dtype, shape):
    found = jax.random.bits(quick(key), shape, dtype)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, jax.random.bits(key, shape, dtype))


def test_bits_of_64_are_jaxs():
    with jax.enable_x64(True):
        np.testing.assert_array_equal(
            jax.random.bits(quick(KEYS[1]), (5, 3), jnp.uint64),
            jax.random.bits(KEYS[1], (5, 3), jnp.uint64),
        )


@pytest.mark.parametrize("key", KEYS[1:])
def test_keys_made_from_keys_are_jaxs(key):
    for make in (
        lambda key: jax.random.split(key, 5),
        lambda key: jax.random.split(key, (2, 3)),
        lambda key: jax.random.fold_in(key, 77),
        lambda key: jax.random.fold_in(jax.random.split(key)[1], jnp.uint32(2**32 - 5)),
        jax.jit(jax.random.split),
        lambda key: jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(4)),
    ):
        mine, theirs = (jax.random.key_data(make(each)) for each in (quick(key), key))
        np.testing.assert_array_equal(mine, theirs)


def test_threefry_has_its_published_outputs():
    """Known answers of the authors' Random123 library."""
    for counter, key, wanted in (
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0x1CB996FC, 0xBB002BE7)),
        ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
    ):
        words = [tuple(jnp.uint32(word) for word in pair) for pair in (key, counter)]
        assert tuple(map(int, threefry(*words))) == wanted


def test_other_keys_come_back_as_they_are(monkeypatch):
    other = jax.random.key(0, impl="rbg")
    assert quick(other) is other
    assert quick(quick(KEYS[0])).dtype == quick(KEYS[0]).dtype
    with jax.threefry_partitionable(False):
        assert quick(KEYS[0]) is KEYS[0], "other bits"
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert quick(KEYS[0]) is KEYS[0]


def test_old_style_keys_are_taken():
    old = jax.random.PRNGKey(7)
    np.testing.assert_array_equal(jax.random.key_data(quick(old)), old)
    assert quick(jax.random.split(old, 3)).shape == (3,)
    with pytest.raises(TypeError, match="uint32"):
        quick(jnp.zeros(2, int))


def test_a_group_is_the_largest_divisor_that_fits(monkeypatch):
    def size(texts, cores, elements=2**15):
        monkeypatch.setattr(cpu, "usable_cores", lambda: cores)
        return cpu.group_size(texts, elements=elements)

    assert [size(32, cores) for cores in (1, 2, 3, 16, 64)] == [2, 4, 4, 32, 32]
    assert (size(30, 5), size(31, 4), size(0, 4)) == (10, 1, 1)
    assert size(32, 2, elements=2**20) == 1, "a text that fits nowhere"


@pytest.mark.parametrize("texts", [0, 3, 4])
def test_trees_come_back_as_they_went(monkeypatch, texts):
    x = jnp.arange(2.0 * texts).reshape(texts, 2)
    seen = []

    def fn(pair):
        seen.append(pair["a"].shape)
        return pair["a"] + 1, {"b": jnp.sum(pair["b"], axis=-1)}

    cut = cpu.by_groups(fn, {"a": x, "b": -x}, elements=2**30)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    whole = cpu.by_groups(fn, {"a": x, "b": -x}, elements=2**30)
    jax.tree.map(np.testing.assert_array_equal, cut, whole)
    assert seen[0] == ((1, 2) if texts else (0, 2))
    assert seen[-1] == (texts, 2)


@pytest.mark.parametrize("gradient", ["implicit", "unrolled"])
def test_attention_by_groups_is_attention(monkeypatch, gradient):
    layer = functional(
        lambda rngs: HopfieldAttention(8, beta=30.0, max_steps=30, gradient=gradient, rngs=rngs)
    )
    params = jax.tree.map(lambda leaf: 25 * leaf, layer.init(jax.random.key(0)))
    x = jax.random.normal(jax.random.key(1), (6, 5, 8))
    mask = jnp.arange(5) < jnp.array([5, 2, 4, 1, 5, 3])[:, None]

    monkeypatch.setattr(cpu, "usable_cores", lambda: 1)
    outcomes = []
    for texts in (6, 3):
        monkeypatch.setattr(cpu, "_PER_CORE", texts * 2 * 5**2)

        @jax.jit
        def run(params, x):
            found = layer.apply(params, x, mask)
            return jnp.sum(jnp.where(mask[..., None], found.values, 0) ** 2), found

        assert f"f32[{texts},2,5,5]" in str(jax.make_jaxpr(run)(params, x))
        outcomes.append(jax.value_and_grad(run, (0, 1), has_aux=True)(params, x))
    whole, cut = outcomes
    assert len(np.unique(whole[0][1].num_steps)) > 3, "queries that stop at different steps"
    np.testing.assert_array_equal(cut[0][1].num_steps, whole[0][1].num_steps)
    np.testing.assert_array_equal(cut[0][1].converged, whole[0][1].converged)
    np.testing.assert_allclose(cut[0][0], whole[0][0], rtol=1e-5)
    scale = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(whole[1]))
    for ours, theirs in zip(jax.tree.leaves(cut[1]), jax.tree.leaves(whole[1]), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6 * scale)


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
