"""Pairs, stability against functions of which it is known, and error bars against repetition."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import bivariate_normal_orthant, hermite

from hopfax import stability
from hopfax.stability import bit_pair, bonami_beckner_pair, gaussian_pair, noise_stability

ARC_POINTS = pytest.mark.parametrize("arc_points", [2, 4])
RHO = 0.6
KEY = jax.random.key(11)


COUNT = 40_000
RHOS = (-1.0, -0.4, 0.0, 0.3, 0.9, 1.0)


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
    changed = noisy[noisy != tokens]
    if rho < 1:
        shares = np.bincount(changed, minlength=5) / len(changed)
        np.testing.assert_allclose(shares, 0.2, atol=5 * 0.4 / len(changed) ** 0.5)


def threshold(x):
    """Asymmetric: true on a tenth of the inputs or so."""
    return (x[0] > 1.2).astype(float)


def majority_stability(rho):
    """Of five bits, whose levels 1, 3 and 5 weigh 45/64, 10/64 and 9/64."""
    return (45 * rho + 10 * rho**3 + 9 * rho**5) / 64


GAUSSIAN = {
    "linear": (lambda x: x @ jnp.arange(1.0, 4.0), (3,), gaussian_pair, lambda rho: 14 * rho),
    "threshold": (threshold, (2,), gaussian_pair, lambda rho: bivariate_normal_orthant(1.2, rho)),
    "hermite 3": (hermite(3), (2,), gaussian_pair, lambda rho: rho**3),
}
CASES = GAUSSIAN | {
    "parity": (lambda x: jnp.prod(x[:3]), (5,), bit_pair, lambda rho: rho**3),
    "majority": (lambda x: jnp.sign(jnp.sum(x)), (5,), bit_pair, majority_stability),
}


def close(estimate, expected, *, least=1e-6):
    error = np.asarray(estimate.standard_error)
    assert np.all(np.abs(np.asarray(estimate.mean) - expected) <= 5 * error + least)
    return error


@pytest.mark.parametrize(
    ("name", "arc_points"), [*((name, 2) for name in CASES), *((name, 4) for name in GAUSSIAN)]
)
def test_known_functions_at_several_rho(name, arc_points):
    fn, shape, pair, exact = CASES[name]
    rhos = jnp.array([-0.8, -0.2, 0.0, RHO, 1.0])
    estimate = noise_stability(
        fn, KEY, shape=shape, rho=rhos, num_samples=5_000, pair=pair, arc_points=arc_points
    )
    assert estimate.mean.shape == estimate.standard_error.shape == (5,)
    assert int(estimate.num_samples) == 5_000
    # At -0.8 some events are too rare to occur at all.
    error = close(estimate, [exact(float(rho)) for rho in rhos], least=1e-4)
    assert error[3] < 0.05 * max(1, exact(1.0))


def test_outputs_add_up_or_stay_apart():
    fn = lambda x: jnp.stack([x[0], x[0] * x[1], jnp.ones(())])  # noqa: E731
    options = {"shape": (2,), "rho": jnp.array([0.0, RHO]), "num_samples": 5_000}
    call = partial(noise_stability, fn, KEY, **options)
    apart = call(per_output=True)
    close(apart, [[0, 0, 1], [RHO, RHO**2, 1]])
    np.testing.assert_allclose(call().mean, apart.mean.sum(1), rtol=1e-4, atol=1e-5)


@ARC_POINTS
def test_estimates_are_unbiased_and_their_error_bars_cover(arc_points):
    """95 % intervals hold the truth in 95 % of repetitions, within five of their own errors."""
    repetitions = 400
    options = {"shape": (1,), "rho": 0.3, "num_samples": 1_000, "arc_points": arc_points}
    run = jax.jit(jax.vmap(lambda key: noise_stability(jax.nn.relu, key, **options)))
    estimate = jax.tree.map(jnp.ravel, run(jax.random.split(KEY, repetitions)))
    truth = stability.relu_stability(0.3)
    inside = np.abs(estimate.mean - truth) < 1.96 * estimate.standard_error
    assert abs(inside.mean() - 0.95) < 5 * math.sqrt(0.95 * 0.05 / repetitions)
    spread = estimate.mean.std(ddof=1)
    np.testing.assert_allclose(estimate.standard_error.mean(), spread, rtol=0.15)
    assert abs(estimate.mean.mean() - truth) < 5 * spread / math.sqrt(repetitions)


@pytest.mark.parametrize(("num_samples", "batch_size"), [(10, 4), (11, 100), (9, 2), (2, 1024)])
def test_batches_merge_to_the_moments_of_the_sample(num_samples, batch_size):
    """By hand, the last batch partly filled; sample i depends on i and the batch size alone."""
    products = []
    size = min(batch_size, num_samples)
    for number in range(-(-num_samples // size)):
        keys = jax.random.split(jax.random.fold_in(KEY, number), size)
        first, second = jax.vmap(partial(gaussian_pair, shape=(1,), rho=RHO))(keys)
        products += (first * second)[:, 0].tolist()
    products = np.array(products[:num_samples])
    estimate = noise_stability(
        lambda x: x[0], KEY, shape=(1,), rho=RHO, num_samples=num_samples, batch_size=batch_size
    )
    np.testing.assert_allclose(estimate.mean, products.mean(), rtol=1e-5)
    error = products.std(ddof=1) / num_samples**0.5
    np.testing.assert_allclose(estimate.standard_error, error, rtol=1e-4)


@pytest.mark.parametrize("kind", [jnp.bfloat16, jnp.int8, bool])
def test_outputs_of_every_dtype_are_averaged_in_float32(kind):
    estimate = noise_stability(lambda x: x[0].astype(kind), KEY, shape=(1,), rho=0.5, num_samples=8)
    assert estimate.mean.dtype == jnp.float32


@ARC_POINTS
def test_error_bars_cover_events_that_occur_rarely_or_never(arc_points):
    levels = np.array([2.0, 3.0, 4.5])
    options = {"shape": (1,), "rho": RHO, "num_samples": 500, "arc_points": arc_points}

    def estimate(level, key):
        return noise_stability(lambda x: (x[0] > level).astype(float), key, **options)

    over_keys = jax.vmap(estimate, (None, 0))
    estimates = jax.jit(jax.vmap(over_keys, (0, None)))(levels, jax.random.split(KEY, 400))
    for level, mean, error in zip(levels, *estimates[:2], strict=True):
        inside = np.abs(mean - bivariate_normal_orthant(level, RHO)) <= 1.96 * error
        assert inside.mean() > 0.93, level
        assert np.all(error > 0)


def test_one_sample_that_differs_counts_as_three():
    count, levels = 1000, np.linspace(2, 4.5, 200)
    estimate = noise_stability(
        lambda x: (x[0] > levels).astype(float),
        KEY, shape=(1,), rho=1.0, num_samples=count, per_output=True,
    )  # fmt: skip
    once = np.round(estimate.mean * count) == 1
    error = np.sqrt(1 + 2 * (1 - 2 / count)) / count  # variance 1 / count, and one untied pair
    np.testing.assert_allclose(estimate.standard_error[once], error, rtol=1e-4)
    assert once.any()


def test_constants_are_nearly_certain_and_zero_has_no_scale():
    fn = lambda x: jnp.stack([jnp.ones(()), x[0], jnp.zeros(()), jnp.asarray(0.3)])  # noqa: E731
    estimate = noise_stability(fn, KEY, shape=(1,), rho=1.0, num_samples=1000, per_output=True)
    # The mean of many 0.3 is not 0.3 exactly.
    expected = 2.83 / 1000 * np.array([1, 0.3**2])
    np.testing.assert_allclose(estimate.standard_error[jnp.array([0, 3])], expected, rtol=1e-3)
    assert np.isinf(estimate.standard_error[2])


def test_many_batches_of_ties_are_counted_exactly():
    """In float32, the shares of tied samples of a thousand batches do not add up to 1."""
    size = {"shape": (1,), "num_samples": 10**6, "batch_size": 1000}
    estimate = jax.jit(partial(noise_stability, lambda x: 0.3 + 0 * x[0], rho=0.5, **size))(KEY)
    np.testing.assert_allclose(estimate.standard_error, 2.83 / 1e6 * 0.3**2, rtol=1e-3)


@pytest.mark.parametrize(
    "fn",
    # Values that are not finite, products that are not, and squares of products.
    [lambda x: jnp.log(x[0]), lambda x: 1e25 * x[0], lambda x: 1e15 * x[0]],
)
def test_what_is_not_finite_is_nan(fn):
    assert np.isnan(noise_stability(fn, KEY, shape=(1,), rho=0.5, num_samples=8).mean)


def test_gradients_are_those_of_the_sample_mean():
    options = {"shape": (1,), "num_samples": 500}

    @jax.jit
    def stab(weight, rho):
        return noise_stability(lambda x: weight * x[0], KEY, rho=rho, **options).mean

    step = 1e-2
    by_weight = (stab(2 + step, RHO) - stab(2 - step, RHO)) / (2 * step)
    by_rho = (stab(2.0, RHO + step) - stab(2.0, RHO - step)) / (2 * step)
    slopes = jax.grad(stab, argnums=(0, 1))(2.0, RHO)
    np.testing.assert_allclose(slopes, [by_weight, by_rho], rtol=1e-2)
