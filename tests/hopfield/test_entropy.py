"""Entropies without eigenvalues: Rényi's of order 2, and Shannon's by matrix products."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from hopfax import hopfield


@partial(jax.jit, static_argnames="entropy")
def measure(keys, *, entropy):
    return jax.value_and_grad(partial(hopfield.eigen_entropy, entropy=entropy))(keys)


def keys_with(spectrum, count, width, rng):
    """Centered keys whose covariance has these eigenvalues (up to a factor), and zeros."""
    left = rng.normal(size=(count, len(spectrum)))
    left, _ = np.linalg.qr(left - left.mean(0))
    right, _ = np.linalg.qr(rng.normal(size=(width, len(spectrum))))
    return left * np.sqrt(spectrum) @ right.T


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
            _, exact = jax.device_get(measure(keys, entropy="shannon"))
        with jax.enable_x64(precision == "float64"):
            keys = jnp.asarray(keys, precision)
            value, got = jax.device_get(measure(keys, entropy="shannon_matmul"))
        np.testing.assert_allclose(value, wanted, rtol=0.01)
        if np.ptp(spectrum):
            assert np.linalg.norm(got - exact) < 0.01 * np.linalg.norm(exact)
        else:  # at its maximum the entropy has no gradient to be compared with
            assert np.linalg.norm(got) < 1e-5


def test_no_eigenvalue_is_computed():
    keys = jnp.zeros((6, 4))
    for entropy, solver in (("shannon", True), ("renyi2", False), ("shannon_matmul", False)):
        traced = measure.trace(keys, entropy=entropy)
        assert ("eigh" in str(traced.jaxpr)) == solver
        if not solver:
            # Nor is a GPU's solver library called.
            assert "custom_call" not in traced.lower(lowering_platforms=("cuda",)).as_text()
