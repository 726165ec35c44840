import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hopfax.stability import bit_pair, bonami_beckner_pair, gaussian_pair

COUNT = 40_000
RHOS = (-1.0, -0.4, 0.0, 0.3, 0.9, 1.0)
KEY = jax.random.key(3)


@pytest.mark.parametrize("pair", [gaussian_pair, bit_pair])
@pytest.mark.parametrize("rho", RHOS)
def test_pairs_have_their_moments_and_their_correlation(pair, rho):
    first, second = pair(KEY, (COUNT,), rho=rho)
    assert first.shape == second.shape == (COUNT,)
    for part in (first, second):
        assert abs(part.mean()) < 5 / COUNT**0.5
        assert abs(part.var() - 1) < 5 * (2 / COUNT) ** 0.5
    assert abs(jnp.mean(first * second) - rho) < 5 * ((1 + rho**2) / COUNT) ** 0.5
    if abs(rho) == 1:
        np.testing.assert_array_equal(second, rho * first)
    if pair is bit_pair:
        assert set(np.unique(first)) == {-1, 1}
    np.testing.assert_array_equal(first, pair(KEY, (COUNT,), rho=0.1)[0])  # whatever rho is


@pytest.mark.parametrize("rho", RHOS)
def test_tokens_are_kept_or_drawn_anew(rho):
    tokens = jax.random.randint(KEY, (COUNT,), 0, 5)
    same, noisy = bonami_beckner_pair(jax.random.key(4), tokens, rho=rho, num_tokens=5)
    np.testing.assert_array_equal(same, tokens)
    kept = (1 + rho) / 2 + (1 - rho) / 2 / 5
    assert abs(jnp.mean(noisy == tokens) - kept) < 5 * 0.5 / COUNT**0.5
    changed = np.bincount(noisy[noisy != tokens], minlength=5)
    if rho < 1:
        np.testing.assert_allclose(
            changed / changed.sum(), 0.2, atol=5 * 0.4 / changed.sum() ** 0.5
        )
