"""The bound on where retrieval from near a pattern ends, and the Hessian of the energy."""

from functools import partial

import jax
import numpy as np
import pytest
from scipy.special import softmax

from hopfax import hopfield


@pytest.mark.parametrize("delta", [0.0, 0.1, 0.5, 2.0])
@pytest.mark.parametrize("beta", [0.5, 2.0, 8.0])
def test_no_query_ends_beyond_the_bound(rng, beta, delta):
    """From random directions, and those to every other pattern."""
    for scales in ([1, 1, 1, 1], [3, 0.3, 0.1, 0.1]):
        patterns = rng.normal(size=(6, 4)) * scales
        bound = hopfield.reconstruction_bound(patterns, beta=beta, delta=delta)
        for number, own in enumerate(patterns):
            ways = np.concatenate([rng.normal(size=(20, 4)), np.delete(patterns, number, 0) - own])
            queries = own + delta * ways / np.linalg.norm(ways, axis=1, keepdims=True)
            for _ in range(500):
                queries = softmax(beta * queries @ patterns.T, axis=1) @ patterns
            ends = np.linalg.norm(queries - own, axis=1)
            assert ends.max() <= bound[number] * (1 + 1e-5) + 1e-6


def test_the_bound_of_two_patterns_is_the_attractor_and_does_not_vanish_with_delta():
    """x = a tanh(β a x): Theorem 2's C r δ tends to 0, and the distance does not."""
    a = end = 1.5
    for _ in range(1000):
        end = a * np.tanh(0.9 * a * end)
    patterns = np.array([[a, 0.7], [-a, 0.7]])
    for delta, expected in ((0.0, a - end), (1e-3, a - end), (1.4, a - end), (1.6, a + end)):
        bound = hopfield.reconstruction_bound(patterns, beta=0.9, delta=delta)
        np.testing.assert_allclose(bound, expected, rtol=1e-3)
    for beta, delta in ((1e-3, 0.1), (0.9, 1e4)):  # nothing to prove: at most the farthest pattern
        bound = hopfield.reconstruction_bound(patterns, beta=beta, delta=delta)
        assert np.all((bound > 0.99 * a) & (bound < 2.0001 * a))


@pytest.mark.parametrize("scale", [30.0, 300.0])
def test_rounding_of_large_logits_does_not_lower_the_bound(rng, scale):
    patterns = scale * rng.normal(size=(4, 16))
    distances = np.linalg.norm(patterns[:, None] - patterns, axis=2)
    bound = hopfield.reconstruction_bound(patterns, beta=5.0, delta=distances.max())
    assert np.all(bound >= distances.max(axis=1) * (1 - 1e-6))


def test_masked_patterns_have_no_bound_and_change_none(rng):
    patterns, bound = rng.normal(size=(7, 5)), partial(hopfield.reconstruction_bound, beta=4.0)
    mask = np.array([True, True, False, True, True, False, True])
    found = bound(patterns, delta=0.5, mask=mask)
    np.testing.assert_allclose(found[mask], bound(patterns[mask], delta=0.5), rtol=1e-5)
    assert np.isnan(found[~mask]).all() and bound(patterns[:1], delta=9.0) < 1e-5


def test_the_hessian_of_the_energy_is_eq_27(rng):
    patterns, state = rng.normal(size=(5, 3)), rng.normal(size=3)
    p = softmax(1.7 * patterns @ state)
    expected = np.eye(3) - 1.7 * patterns.T @ (np.diag(p) - np.outer(p, p)) @ patterns
    found = jax.hessian(lambda x: hopfield.energy(x, patterns, beta=1.7))(state)
    np.testing.assert_allclose(found, expected, atol=1e-5)
