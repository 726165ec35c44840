from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hopfax.stability import geometric_influence, junta_bound, total_influence, walsh_coefficients

KEY = jax.random.key(8)


def tribes(x):
    """An OR of three ANDs of two bits, -1 standing for true."""
    true = x.reshape(3, 2) < 0
    return jnp.where(jnp.any(jnp.all(true, axis=1)), -1.0, 1.0)


@pytest.mark.parametrize(
    ("fn", "num_bits", "expected"),
    [
        (lambda x: x[1], 5, 1.0),
        (lambda x: jnp.stack([x[0], x[1] * x[2]]), 3, 3.0),  # outputs add up
        # A bit of a tribe counts when its partner is true and the other tribes are false.
        (tribes, 6, 6 * (1 / 2) * (3 / 4) ** 2),
    ],
)
def test_total_influence_of_known_functions(fn, num_bits, expected):
    estimate = total_influence(fn, KEY, num_bits=num_bits, num_samples=5_000)
    assert abs(estimate.mean - expected) < 5 * estimate.standard_error + 1e-5
    assert estimate.standard_error < 0.05


def test_influences_of_bits_and_the_inequalities_of_poincare_and_friedgut():
    vote = lambda x: jnp.where(x[3] > 0, jnp.sign(x[:3].sum()), -1.0)  # noqa: E731
    weights = np.square(walsh_coefficients(vote, num_bits=5))
    exact = np.array([weights[np.arange(32) >> bit & 1 == 1].sum() for bit in range(5)])
    np.testing.assert_allclose(exact, [1 / 4, 1 / 4, 1 / 4, 1 / 2, 0], atol=1e-6)
    found = total_influence(vote, KEY, num_bits=5, num_samples=5_000, per_bit=True)
    np.testing.assert_allclose(found.mean, exact, atol=0.04)
    assert (abs(found.mean - exact) < 5 * found.standard_error).all()
    assert weights[1:].sum() <= exact.sum()
    assert round(float(junta_bound(2.0, epsilon=0.5))) == 32 * 9**4


def test_an_influence_that_never_occurred_has_the_error_of_all_bits():
    estimate = total_influence(lambda x: jnp.ones(()), KEY, num_bits=4, num_samples=1000)
    assert estimate.mean == 0
    np.testing.assert_allclose(estimate.standard_error, 2**0.5 * 4 / 1000, rtol=1e-3)


def test_geometric_influence_is_the_mean_norm_of_the_slopes():
    inputs = jax.random.normal(KEY, (50, 3))

    def fn(x):
        return jnp.stack([x[0] ** 2 + 3 * x[1], 4 * x[1]])

    expected = [2 * np.abs(inputs[:, 0]).mean(), 5, 0]
    np.testing.assert_allclose(geometric_influence(fn, inputs), expected, rtol=1e-5)
    batches = jax.jit(lambda x: geometric_influence(fn, x, batch_size=7))(inputs)
    np.testing.assert_allclose(batches, expected, rtol=1e-5)


def test_a_token_counts_by_the_norm_over_its_embedding():
    weights = jnp.array([[1.0, 2.0, 2.0], [0.0, 0.0, 0.5]])
    inputs = jax.random.normal(KEY, (6, 2, 3))
    influence = geometric_influence(lambda x: jnp.sum(weights * x), inputs, per_token=True)
    np.testing.assert_allclose(influence, [3, 0.5], rtol=1e-6)


@pytest.mark.parametrize(("slope", "dtype"), [(1e-30, "f4"), (1e30, "f4"), (1e-5, "f2")])
def test_influence_of_steep_and_flat_functions(slope, dtype):
    inputs = jnp.ones((4, 2), dtype)
    influence = geometric_influence(lambda x: x[0] * jnp.asarray(slope, dtype), inputs)
    np.testing.assert_allclose(influence, [slope, 0], rtol=1e-2)
    both = geometric_influence(lambda x: 1e-12 * x[0] + 1e8 * x[1], jnp.ones((2, 2)))
    np.testing.assert_allclose(both, [1e-12, 1e8], rtol=1e-5)


def test_influence_has_a_gradient_where_it_is_zero():
    inputs = jnp.array([[1.0, -1.0], [2.0, -2.0]])

    fn = lambda weight, x: jnp.sum(jax.nn.relu(weight * x))  # noqa: E731
    total = jax.grad(lambda weight: geometric_influence(partial(fn, weight), inputs).sum())
    np.testing.assert_allclose(total(2.0), 1.0, rtol=1e-6)
