"""Entropies without eigenvalues: Rényi's of order 2, and Shannon's by matrix products."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from hopfax import hopfield
from hopfax.hopfield.entropy import _CONSTANT, _FIRST, _STEPS

ORACLES = {
    "shannon": oracles.eigen_entropy,
    "renyi2": oracles.renyi2_entropy,
    "shannon_matmul": oracles.eigen_entropy,
}
CHEAP = ("renyi2", "shannon_matmul")
# What may be missing from the oracle's value and gradient.
ERROR = {"shannon": 1e-9, "renyi2": 1e-9, "shannon_matmul": 0.01}


@partial(jax.jit, static_argnames="entropy")
def measure(keys, mask=None, *, entropy):
    return hopfield.eigen_entropy(keys, mask=mask, entropy=entropy)


@partial(jax.jit, static_argnames="entropy")
def slope(keys, mask=None, *, entropy):
    return jax.grad(lambda k: hopfield.eigen_entropy(k, mask=mask, entropy=entropy))(keys)


def keys_with(spectrum, count, width, rng):
    """Centred keys whose covariance has these eigenvalues (up to a factor), and zeros."""
    left = rng.normal(size=(count, len(spectrum)))
    left, _ = np.linalg.qr(left - left.mean(0))
    right, _ = np.linalg.qr(rng.normal(size=(width, len(spectrum))))
    return left * np.sqrt(spectrum) @ right.T


def gap(got, wanted):
    """Relative error in norm."""
    got, wanted = np.asarray(got), np.asarray(wanted)
    return np.linalg.norm(got - wanted) / np.linalg.norm(wanted)


# Of at most 11 eigenvalues: the Gram matrix of 12 keys has a zero one.
SPECTRA = {
    "slow": np.arange(1, 12.0) ** -0.5,
    "fast": np.arange(1, 12.0) ** -3,
    "exponential": 0.3 ** np.arange(11),
    "one above many": np.array([0.9, *[0.01] * 10]),
    "one below many": np.array([*[1.0] * 10, 1e-4]),
    "two levels": np.array([*[1.0] * 4, *[1e-3] * 7]),
    "all but one direction": np.array([1.0, *[1e-4] * 10]),
    "few": np.array([0.7, 0.2, 0.1]),
}


def test_minus_log_is_approximated_within_a_percent_of_slope():
    """What the docstring's bound on value and gradient follows from."""
    u = np.linspace(np.log(5e-6), 0, 4001)
    x = np.exp(u)
    total, change = _FIRST * x + _CONSTANT, _FIRST * x
    moved = x  # dx/du
    for a, b, c in _STEPS:
        x, moved = a * x - b * x**2, (a - 2 * b * x) * moved
        total, change = total + c * x, change + c * moved
    assert np.abs(change + 1).max() < 0.01
    assert abs(total[-1]) < 1e-12
    assert (np.abs(total + u) <= 0.01 * np.abs(u) + 1e-12).all()


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("name", SPECTRA)
def test_matrix_products_give_value_and_gradient_within_a_percent(name, precision, rng):
    for width in (16, 4):
        # Gram matrix, of which most spectra leave a part empty; covariance.
        spectrum = SPECTRA[name][: min(width, 11)]
        keys = keys_with(spectrum, 12, width, rng)
        shares = spectrum / spectrum.sum()
        wanted = oracles.entropy(shares) / np.log(width)
        with jax.enable_x64(True):
            exact = np.asarray(slope(keys, entropy="shannon"))
        with jax.enable_x64(precision == "float64"):
            keys = jnp.asarray(keys, precision)
            np.testing.assert_allclose(measure(keys, entropy="shannon_matmul"), wanted, rtol=0.01)
            got = slope(keys, entropy="shannon_matmul")
        if np.ptp(spectrum):
            assert gap(got, exact) < 0.01
        else:  # at its maximum the entropy has no gradient to be compared with
            assert np.linalg.norm(got) < 1e-5


@pytest.mark.parametrize("entropy", ORACLES)
@pytest.mark.parametrize("shape", [(3, 6), (5, 5), (9, 4)], ids=str)
def test_value_and_gradient_are_the_oracles(x64, shape, entropy, rng):
    keys = rng.normal(size=shape) * np.linspace(0.3, 2, shape[1]) + 5
    oracle, error = ORACLES[entropy], ERROR[entropy]
    np.testing.assert_allclose(measure(keys, entropy=entropy), oracle(keys), rtol=error)
    measured = oracles.central_difference(oracle, keys)
    assert np.abs(measured).max() > 1e-3
    assert gap(slope(keys, entropy=entropy), measured) < max(error, 1e-6)


def test_renyi2_is_the_participation_ratios_logarithm_and_below_shannons(x64, rng):
    for _ in range(10):
        keys = rng.normal(size=(6, 5)) * rng.exponential(size=5)
        renyi2, shannon = (measure(keys, entropy=name) for name in ("renyi2", "shannon"))
        ratio = hopfield.participation_ratio(keys)
        np.testing.assert_allclose(renyi2, np.log(ratio) / np.log(5), rtol=1e-9)
        assert 0 < renyi2 < shannon - 1e-3


@pytest.mark.parametrize("entropy", ORACLES)
def test_equal_spread_is_one_and_one_direction_zero(entropy):
    for width in (2, 5):
        simplex = np.concatenate([np.eye(width), -np.eye(width)])
        got = hopfield.eigen_entropy(simplex, entropy=entropy)
        np.testing.assert_allclose(got, 1, rtol=ERROR[entropy] + 1e-6)
        assert got <= 1 + 1e-6
    line = np.outer(np.arange(6.0), [1.0, -2.0, 0.5, 3.0])
    got = measure(line, entropy=entropy)
    assert 0 <= got < 1e-5
    assert np.isfinite(slope(jnp.asarray(line), entropy=entropy)).all()


@pytest.mark.parametrize("entropy", CHEAP)
@pytest.mark.parametrize("value", [0.0, 0.1, 1e30])
def test_keys_that_do_not_vary_have_neither_entropy_nor_gradient(entropy, value):
    keys = jnp.full((6, 4), value)
    assert measure(keys, entropy=entropy) == 0
    np.testing.assert_array_equal(slope(keys, entropy=entropy), 0)
    nothing = jnp.zeros(6, bool)
    assert measure(jnp.full((6, 4), jnp.nan), nothing, entropy=entropy) == 0
    np.testing.assert_array_equal(slope(jnp.full((6, 4), jnp.nan), nothing, entropy=entropy), 0)


@pytest.mark.parametrize("filler", [1e6, np.nan])
@pytest.mark.parametrize("entropy", CHEAP)
@pytest.mark.parametrize("shape", [(3, 6), (9, 4)], ids=str)
def test_padding_changes_nothing_and_gets_no_gradient(x64, shape, entropy, filler, rng):
    keys = rng.normal(size=shape)
    rows = np.concatenate([np.full((4, shape[1]), filler), keys])
    mask = jnp.arange(len(rows)) >= 4
    alone, padded = measure(keys, entropy=entropy), measure(rows, mask, entropy=entropy)
    np.testing.assert_allclose(padded, alone, rtol=1e-9)
    got = np.asarray(slope(rows, mask, entropy=entropy))
    assert (got[:4] == 0).all()
    np.testing.assert_allclose(got[4:], slope(keys, entropy=entropy), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("entropy", ORACLES)
def test_jit_equals_eager_vmap_a_loop_and_forward_mode_reverse(entropy, rng):
    keys = jnp.asarray(rng.normal(size=(3, 6, 4)), jnp.float32)
    masks = jnp.arange(6) < jnp.array([6, 4, 1])[:, None]

    def run(k, m):
        return hopfield.eigen_entropy(k, mask=m, entropy=entropy)

    together = jax.jit(jax.vmap(jax.value_and_grad(run)))(keys, masks)
    direction = jnp.asarray(rng.normal(size=(6, 4)), jnp.float32)
    for i in range(3):
        alone = run(keys[i], masks[i])
        np.testing.assert_allclose(together[0][i], alone, rtol=1e-4, atol=1e-6)
        _, change = jax.jvp(lambda k, i=i: run(k, masks[i]), (keys[i],), (direction,))
        np.testing.assert_allclose(jnp.sum(together[1][i] * direction), change, atol=1e-5)


@pytest.mark.parametrize("entropy", CHEAP)
def test_no_eigenvalue_is_computed(entropy):
    keys = jnp.zeros((6, 4))
    exact, cheap = (
        str(jax.make_jaxpr(lambda k, n=name: slope(k, entropy=n))(keys))
        for name in ("shannon", entropy)
    )
    assert "eigh" in exact and "eigh" not in cheap
    # Nothing a GPU would hand to a solver library, either.
    gpu = slope.trace(keys, entropy=entropy).lower(lowering_platforms=("cuda",)).as_text()
    assert "custom_call" not in gpu


def test_the_penalty_goes_by_the_entropy_asked_for(rng):
    keys = jnp.asarray(rng.normal(size=(6, 4)), jnp.float32)
    found = [hopfield.esr_penalty(keys, target=0.5, entropy=name) for name in ORACLES]
    wanted = [(measure(keys, entropy=name) - 0.5) ** 2 for name in ORACLES]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert len({float(value) for value in found}) == 3
