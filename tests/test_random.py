"""The quick generator draws what jax's draws, bit by bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hopfax.random import quick, threefry

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


def test_arrays_of_keys_are_drawn_from_side_by_side():
    keys = jax.random.split(KEYS[0], (2, 3))
    draw = jax.vmap(jax.vmap(lambda key: jax.random.randint(key, (4,), 0, 1000)))
    np.testing.assert_array_equal(jax.jit(draw)(quick(keys)), draw(keys))


def test_distributions_are_jaxs_but_for_rounding():
    for draw in (jax.random.normal, jax.random.uniform, jax.random.rademacher):
        np.testing.assert_allclose(draw(quick(KEYS[1]), (100,)), draw(KEYS[1], (100,)), rtol=1e-6)


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


def test_more_numbers_than_counters_are_refused():
    with pytest.raises(ValueError, match="at most 2"):
        jax.jit(lambda: jax.random.bits(quick(KEYS[0]), (2**16, 2**16))).lower()
