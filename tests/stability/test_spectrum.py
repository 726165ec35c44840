import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from hopfax.stability import bit_pair, level_weights, spectral_tail_bound, walsh_weights
from hopfax.stability.spectrum import concentration_degree, walsh_coefficients

KEY = jax.random.key(5)


def odd(x):
    """Neither symmetric nor of one degree."""
    return jnp.where(x[0] + 0.5 * x[1] - x[2] * x[3] > 0.3, 1.0, -2.0) + 0.1 * x[4]


def test_walsh_weights_are_those_of_the_definition():
    rows = [[1 - 2 * ((number >> i) & 1) for i in range(5)] for number in range(2**5)]
    expected = oracles.walsh_weights([float(odd(np.array(row, np.float32))) for row in rows], 5)
    np.testing.assert_allclose(walsh_weights(odd, num_bits=5), expected, atol=1e-6)


def test_walsh_coefficients_expand_the_function():
    parity = walsh_coefficients(lambda x: x[0] * x[2], num_bits=3)
    np.testing.assert_allclose(parity, np.eye(8)[0b101], atol=1e-7)
    x = np.array([1.0, -1, -1, 1, -1], np.float32)
    products = [np.prod(x[[i for i in range(5) if subset >> i & 1]]) for subset in range(32)]
    assert abs(np.dot(walsh_coefficients(odd, num_bits=5), products) - odd(x)) < 1e-5


@pytest.mark.parametrize("degree", (0, 3))
def test_fit_finds_the_one_level_of_a_hermite_polynomial(degree):
    found = level_weights(oracles.hermite(degree), KEY, shape=(1,), num_samples=20_000, degree=5)
    np.testing.assert_allclose(found.weights, np.eye(6)[degree], atol=0.12)
    assert ((found.low <= found.weights) & (found.weights <= found.high)).all()
    assert found.low[degree] <= 1.02 and found.high[degree] >= 0.98
    assert found.tail[0] < 0.1


def test_fit_finds_the_levels_of_a_relu():
    """1/2π, 1/4, 1/4π, 0, and the rest above."""
    found = level_weights(lambda x: jnp.maximum(x[0], 0), KEY, shape=(1,), num_samples=40_000)
    expected = [1 / (2 * np.pi), 1 / 4, 1 / (4 * np.pi)]
    np.testing.assert_allclose(found.weights[:3], expected, atol=0.015)
    assert found.weights[3] < 0.015
    np.testing.assert_allclose(found.weights.sum() + found.tail[0], 0.5, rtol=0.03)
    np.testing.assert_allclose(found.shares[0].sum(), 1, rtol=1e-5)
    variance = 1 / 2 - 1 / (2 * np.pi)
    np.testing.assert_allclose(found.shares[0, :2] * variance, [1 / 4, 1 / (4 * np.pi)], atol=0.015)


def test_errors_of_a_level_and_of_the_variance_cancel_in_shares():
    found = level_weights(lambda x: x.sum(), KEY, shape=(10,), num_samples=128, degree=2)
    value, low, high = found.shares[:, 0]
    assert low <= value <= high == 1 and low > 0.95
    assert found.high[1] - found.low[1] > 0.3 * found.weights[1]
    constant = level_weights(lambda x: 1.0 + 0 * x[0], KEY, shape=(1,), num_samples=128, degree=2)
    assert np.isnan(constant.shares).all() and constant.weights[0] > 0.99


def test_fit_finds_walsh_levels_of_bits():
    found = level_weights(
        lambda x: jnp.sign(x.sum()), KEY, shape=(3,), num_samples=10_000, pair=bit_pair, degree=4
    )
    np.testing.assert_allclose(found.weights, [0, 3 / 4, 0, 1 / 4, 0], atol=0.05)


def test_intervals_cover_where_weight_lies_at_all_levels():
    """A step: 2/π at level 1, 1/(3π) at level 3, and a long tail."""
    truth = {1: 2 / np.pi, 3: 1 / (3 * np.pi)}

    def fit(key):
        return level_weights(lambda x: jnp.sign(x[0]), key, shape=(1,), num_samples=1280, degree=4)

    levels = jax.jit(partial(jax.lax.map, fit))(jax.random.split(KEY, 30))
    covered = [(levels.low[:, k] <= w) & (w <= levels.high[:, k]) for k, w in truth.items()]
    # Of 60. Nine in ten is what they do; of 75 % intervals as many would be one in fifty.
    assert np.sum(covered) >= 51


def test_the_high_levels_of_a_majority_are_hard_to_tell_apart():
    """Of five bits; the docstring has the numbers."""
    options = {"shape": (5,), "num_samples": 3200, "degree": 5, "pair": bit_pair}
    fit = jax.jit(lambda key: level_weights(lambda x: jnp.sign(x.sum()), key, **options))
    fits = [fit(key) for key in jax.random.split(jax.random.key(3), 60)]
    weights, low, high = (np.array([getattr(each, n) for each in fits])[:, [1, 3, 5]]
                          for n in ("weights", "low", "high"))  # fmt: skip
    exact = np.array([45, 10, 9]) / 64
    np.testing.assert_allclose(weights.mean(0), [0.70, 0.20, 0.086], atol=0.015)
    coverage = np.mean((low <= exact) & (exact <= high), axis=0)
    assert (coverage > 0.6).all() and (coverage < 0.93).all()


def test_tail_bound_holds_and_is_lemma_1():
    weights = np.asarray(walsh_weights(odd, num_bits=7), np.float64)
    variance = weights.sum()
    for rho in (0.3, 0.9):
        stab = weights @ rho ** np.arange(8)
        for degree in range(1, 8):
            bound = float(spectral_tail_bound(stab, variance, rho=rho, degree=degree))
            assert weights[degree:].sum() <= bound + 1e-6
    # The appendix: delta, epsilon and T = log(1 - delta/epsilon) / log(rho).
    rho, delta, degree = 0.8, 0.1, 6
    epsilon = float(spectral_tail_bound(1 - delta, 1.0, rho=rho, degree=degree))
    assert epsilon < 1
    np.testing.assert_allclose(math.log(1 - delta / epsilon) / math.log(rho), degree, rtol=1e-5)
    assert concentration_degree(delta, 1.001 * epsilon, rho) == degree
    assert concentration_degree(delta, 0.999 * epsilon, rho) == degree + 1
    assert concentration_degree(jnp.array([0.75, 0.0]), 1.0, 0.5).tolist() == [2, 1]
    assert concentration_degree(0.05, 0.1, 0.999999) == 693147


def test_an_estimate_above_the_variance_proves_no_empty_tail():
    """A tenth of the weight lies at degree 3, and an estimate says that none does."""
    bound = partial(spectral_tail_bound, variance=1.0, rho=0.5, degree=3)
    error = 0.35
    high = 0.9 * 0.5 + 0.1 * 0.5**3 + 1.6 * error
    assert bound(high) == 0
    assert 0.1 < bound(high, standard_error=error) <= 1
    several = bound(0.5, standard_error=jnp.array([0.1, 0.0]))
    np.testing.assert_allclose(several, [bound(0.5 - 1.96 * 0.1), bound(0.5)], rtol=1e-6)
    assert (bound(1.1), bound(-1.0)) == (0, 1)
    # A function that is 0 at all inputs drawn may still have any tail.
    assert bound(0.0, standard_error=np.inf) == 1
    assert np.isnan(bound(np.nan))


def test_what_is_not_finite_has_nan_weights():
    def fn(x):
        return jnp.log(x[0])

    levels = level_weights(fn, KEY, shape=(1,), num_samples=128)
    assert all(np.isnan(part).all() for part in levels)
    assert np.isnan(walsh_weights(fn, num_bits=2)).all()
