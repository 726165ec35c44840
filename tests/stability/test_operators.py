"""Hermite polynomials, the Ornstein-Uhlenbeck operator and Mehler's kernel against closed forms."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from numpy.polynomial.hermite_e import hermegauss, hermevander

from hopfax.stability import hermite, hermite_coefficients, mehler_kernel, ornstein_uhlenbeck
from hopfax.stability.operators import ornstein_uhlenbeck_grid

X = np.linspace(-2, 3, 7, dtype=np.float32)
POINTS, WEIGHTS = hermegauss(40)


@pytest.mark.parametrize("degree", (0, 1, 2, 8))
def test_hermite_polynomials_are_those_of_the_definition_and_orthonormal(degree):
    expected = oracles.hermite(degree)(X[None].astype(float)) * np.ones(7)
    np.testing.assert_allclose(hermite(degree, X), expected, rtol=1e-4, atol=1e-4)
    coefficients = hermite_coefficients(partial(hermite, degree), degree=12)
    np.testing.assert_allclose(coefficients, np.eye(13)[degree], atol=1e-5)


@pytest.mark.parametrize("num_points", [24, 200])  # of 200, some weights underflow
def test_hermite_coefficients_of_an_exponential(num_points):
    """exp(x/2) has the coefficients e^(1/8) 2^-n / sqrt(n!)."""
    found = hermite_coefficients(lambda x: jnp.exp(x / 2), degree=4, num_points=num_points)
    expected = np.exp(1 / 8) * 0.5 ** np.arange(5) / np.sqrt([1, 1, 2, 6, 24])
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert not np.isfinite(hermite_coefficients(jnp.log, degree=4)).any()


@pytest.mark.parametrize(("degree", "num_points"), [(63, 64), (100, 200)])
def test_coefficients_of_high_degree_are_exact(degree, num_points):
    found = hermite_coefficients(partial(hermite, 20), degree=degree, num_points=num_points)
    np.testing.assert_allclose(found, np.arange(degree + 1) == 20, atol=1e-4)


@pytest.mark.parametrize("rho", (-1.0, -0.6, 0.0, 1.0))
def test_the_operator_scales_hermite_polynomials(rho):
    def fn(x):
        return jnp.stack([hermite(2, x[0]) * hermite(3, x[1]), x[1], 1.0])

    x = jnp.array([1.4, -0.7])
    expected = np.array([rho**5, rho, 1]) * fn(x)
    np.testing.assert_allclose(ornstein_uhlenbeck_grid(fn, x, rho=rho), expected, atol=1e-5)
    found = ornstein_uhlenbeck(fn, jax.random.key(2), x, rho=rho, num_samples=20_000)
    np.testing.assert_allclose(found.mean, expected, atol=0.05)
    assert (abs(found.mean - expected) < 5 * found.standard_error + 1e-6).all()


def test_operators_compose_and_do_not_increase_norms():
    """T_a T_b = T_ab; Lemma 5 on a function with jumps."""

    def smooth(fn, rho):
        return jax.vmap(lambda x: ornstein_uhlenbeck_grid(fn, x, rho=rho))

    twice = smooth(lambda x: smooth(jnp.sin, -0.5)(x[None])[0], 0.8)(X)
    np.testing.assert_allclose(twice, smooth(jnp.sin, -0.4)(X), atol=1e-5)
    jumps = lambda x: jnp.where(x > 0.4, 2.0, -0.5) + jnp.floor(x)  # noqa: E731
    for p in (1, 2, 4):
        before, after = (WEIGHTS @ np.abs(fn(POINTS)) ** p for fn in (jumps, smooth(jumps, 0.7)))
        assert 0 < after < before


@pytest.mark.parametrize("rho", (-0.9, 0.0, 0.4))
def test_mehlers_kernel_is_its_series_and_the_operators_density(rho):
    degrees = np.arange(120)
    scales = [math.sqrt(math.factorial(n)) for n in degrees]
    of_x, of_y = (hermevander(np.float64(x), 119) / scales for x in (X, 0.7))
    series = np.sum(rho**degrees * of_x * of_y, axis=1)
    np.testing.assert_allclose(mehler_kernel(X, 0.7, rho=rho), series, rtol=1e-3, atol=1e-4)
    smoothed = WEIGHTS @ (np.sin(POINTS) * mehler_kernel(0.7, POINTS, rho=rho)) / sum(WEIGHTS)
    np.testing.assert_allclose(smoothed, ornstein_uhlenbeck_grid(jnp.sin, 0.7, rho=rho), atol=2e-3)
