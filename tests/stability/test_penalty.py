import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hopfax.stability import stability_penalty

PROBS, NOISY = jnp.array([0.7, 0.2, 0.1]), jnp.array([0.5, 0.1, 0.4])


def test_is_the_definition_and_its_sign():
    expected = 0.7 * 0.5 + 0.2 * 0.1 + 0.1 * 0.4
    np.testing.assert_allclose(stability_penalty(PROBS, NOISY), -expected, rtol=1e-6)
    found = stability_penalty(PROBS, NOISY, stabilize=False)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_lowest_for_two_equal_certainties():
    certain = jnp.array([0.0, 1.0, 0.0])
    assert float(stability_penalty(certain, certain)) == -1
    assert float(stability_penalty(certain, jnp.roll(certain, 1))) == 0
    # Agreement alone is not what it rewards.
    assert stability_penalty(PROBS, PROBS) > stability_penalty(certain, PROBS) - 0.4


def test_one_penalty_an_example():
    both = stability_penalty(jnp.stack([PROBS, NOISY]), jnp.stack([NOISY, NOISY]))
    assert both.shape == (2,)
    np.testing.assert_allclose(both[0], stability_penalty(PROBS, NOISY), rtol=1e-6)


def test_gradient_reaches_both_sides():
    first, second = jax.grad(stability_penalty, argnums=(0, 1))(PROBS, NOISY)
    np.testing.assert_allclose(first, -NOISY, rtol=1e-6)
    np.testing.assert_allclose(second, -PROBS, rtol=1e-6)


def test_shapes_must_agree():
    with pytest.raises(ValueError, match=r"\(3,\) and \(1, 3\)"):
        stability_penalty(PROBS, NOISY[None])
