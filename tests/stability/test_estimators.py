"""Against functions whose stability is known, and the error bars against repetition."""

import math
import traceback
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import bivariate_normal_orthant, hermite

from hopfax import stability
from hopfax.stability import (
    bit_pair,
    gaussian_pair,
    noise_stability,
    normalized_stability,
    uniform_token_pair,
)

RHO = 0.6
BITS = 5
KEY = jax.random.key(11)


def majority(x):
    return jnp.sign(jnp.sum(x))


def threshold(x):
    """Asymmetric: true on a tenth of the inputs or so."""
    return (x[0] > 1.2).astype(float)


def linear(x):
    return x @ jnp.arange(1.0, 4.0)


def majority_stability(rho):
    """Of five bits, whose levels 1, 3 and 5 weigh 45/64, 10/64 and 9/64."""
    return (45 * rho + 10 * rho**3 + 9 * rho**5) / 64


GAUSSIAN = {
    "linear": (linear, (3,), gaussian_pair, lambda rho: 14 * rho),
    "threshold": (threshold, (2,), gaussian_pair, lambda rho: bivariate_normal_orthant(1.2, rho)),
    "hermite 3": (hermite(3), (2,), gaussian_pair, lambda rho: rho**3),
}
CASES = GAUSSIAN | {
    "parity": (lambda x: jnp.prod(x[:3]), (BITS,), bit_pair, lambda rho: rho**3),
    "majority": (majority, (BITS,), bit_pair, majority_stability),
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


def test_one_rho_of_a_vector_is_that_rho_alone():
    call = partial(noise_stability, linear, KEY, shape=(3,), num_samples=500)
    together, alone = call(rho=jnp.array([0.2, RHO])), call(rho=RHO)
    assert alone.mean.shape == ()
    np.testing.assert_allclose(together.mean[1], alone.mean, rtol=1e-5)


@pytest.mark.parametrize(("arc_points", "evaluations"), [(2, 11), (4, 31)])
def test_several_rho_share_the_evaluation_at_x(arc_points, evaluations):
    calls = []

    def fn(x):
        jax.debug.callback(lambda _: calls.append(1), x[0])
        return x[0]

    rhos = jnp.linspace(0, 0.9, 10)
    options = {"shape": (1,), "rho": rhos, "num_samples": 20, "batch_size": 5}
    jax.block_until_ready(noise_stability(fn, KEY, arc_points=arc_points, **options))
    jax.effects_barrier()
    assert len(calls) == 20 * evaluations


def test_outputs_add_up_or_stay_apart():
    def fn(x):
        return jnp.stack([x[0], x[0] * x[1], jnp.ones(())])

    call = partial(
        noise_stability, fn, KEY, shape=(2,), rho=jnp.array([0.0, RHO]), num_samples=5_000
    )
    apart = call(per_output=True)
    close(apart, [[0, 0, 1], [RHO, RHO**2, 1]])
    np.testing.assert_allclose(call().mean, apart.mean.sum(1), rtol=1e-4, atol=1e-5)


def test_an_arc_has_less_variance_than_pairs_at_equal_evaluations():
    call = partial(noise_stability, lambda x: jnp.maximum(x[0], 0), KEY, shape=(1,), rho=0.3)
    pairs, arcs = call(num_samples=8_000), call(num_samples=4_000, arc_points=4)
    assert arcs.standard_error < 0.9 * pairs.standard_error


def test_tokens_go_through_the_same_function():
    def fn(tokens):
        return (tokens[0] == 2) * 2.0 - (tokens[1] == 0)

    pair = partial(uniform_token_pair, num_tokens=4)
    estimate = noise_stability(fn, KEY, shape=(2,), rho=RHO, num_samples=5_000, pair=pair)
    kept = (1 + RHO) / 2
    agree = kept / 4 + (1 - kept) / 16
    close(estimate, 4 * agree - 4 / 16 + agree)


@pytest.mark.parametrize("arc_points", [2, 4])
def test_estimates_are_unbiased_and_their_error_bars_cover(arc_points):
    """95 % intervals hold the truth in 95 % of repetitions, within five of their own errors."""
    repetitions = 400

    @jax.jit
    @jax.vmap
    def estimates(key):
        return noise_stability(
            lambda x: jnp.maximum(x[0], 0),
            key,
            shape=(1,),
            rho=0.3,
            num_samples=1_000,
            arc_points=arc_points,
        )

    estimate = estimates(jax.random.split(KEY, repetitions))
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


def test_the_ratio_takes_several_rho():
    rhos = jnp.array([-0.5, 0.0, RHO])
    call = partial(normalized_stability, linear, KEY, shape=(3,), num_samples=2000)
    several, one = call(rho=rhos), call(rho=rhos[2])
    assert np.all(close(several, rhos) < 0.4)
    np.testing.assert_allclose(one[:2], [part[2] for part in several[:2]], rtol=1e-4)


@pytest.mark.parametrize("rho", [RHO, 0.99999, -0.9999])
def test_the_ratio_ignores_scale_and_its_error_bar_is_its_spread(rho):
    @jax.jit
    def estimates(keys, scale):
        return jax.vmap(
            lambda key: normalized_stability(
                lambda x: scale * x[0], key, shape=(1,), rho=rho, num_samples=1000
            )
        )(keys)

    keys = jax.random.split(KEY, 100)
    estimate = estimates(keys, 1.0)
    # Means themselves are rounded to 6e-8.
    np.testing.assert_allclose(
        estimate.standard_error.mean(), estimate.mean.std(ddof=1), rtol=0.3, atol=1e-7
    )
    np.testing.assert_allclose(estimates(keys, 100.0).mean, estimate.mean, rtol=1e-5)


def test_the_error_of_the_ratio_is_by_the_delta_method():
    keys = jax.random.split(jax.random.fold_in(KEY, 0), 50)
    first, second = jax.vmap(partial(gaussian_pair, shape=(), rho=RHO))(keys)
    left, right = (np.asarray(x + x**2, float) for x in (first, second))
    product, square = left * right, (left**2 + right**2) / 2
    ratio = product.mean() / square.mean()
    error = (product - ratio * square).std(ddof=1) / 50**0.5 / square.mean()
    estimate = normalized_stability(lambda x: x + x**2, KEY, shape=(), rho=RHO, num_samples=50)
    np.testing.assert_allclose(estimate[:2], [ratio, error], rtol=1e-4)


@pytest.mark.parametrize(
    ("measure", "options"),
    [
        (noise_stability, {}),
        (noise_stability, {"arc_points": 4}),
        (normalized_stability, {}),
    ],
    ids=["pairs", "arc", "ratio"],
)
def test_error_bars_cover_events_that_occur_rarely_or_never(measure, options):
    levels = np.array([2.0, 3.0, 4.5])

    def estimate(level, key):
        fn = lambda x: (x[0] > level) * 1.0  # noqa: E731
        return measure(fn, key, shape=(1,), rho=RHO, num_samples=500, **options)

    over_keys = jax.vmap(estimate, (None, 0))
    estimates = jax.jit(jax.vmap(over_keys, (0, None)))(levels, jax.random.split(KEY, 400))
    for level, mean, error in zip(levels, *estimates[:2], strict=True):
        both, one = bivariate_normal_orthant(level, RHO), math.erfc(level / math.sqrt(2)) / 2
        truth = both if measure is noise_stability else both / one
        # A ratio of nothing to nothing is nan.
        known = ~np.isnan(mean)
        inside = np.abs(mean - truth) <= 1.96 * error
        assert np.mean(inside[known]) > 0.93, level
        assert np.all(error[known] > 0)


def test_constants_are_nearly_certain_and_zero_has_no_scale():
    def fn(x):
        return jnp.stack([jnp.ones(()), x[0], jnp.zeros(())])

    estimate = noise_stability(fn, KEY, shape=(1,), rho=1.0, num_samples=1000, per_output=True)
    np.testing.assert_allclose(estimate.standard_error[0], 2.83 / 1000, rtol=1e-3)
    assert np.isinf(estimate.standard_error[2])
    # X = Y at rho = 1: these ties are certain.
    still = normalized_stability(lambda x: x[0], KEY, shape=(1,), rho=1.0, num_samples=1000)
    assert still.standard_error < 1e-8
    # Ties between values that are all common leave the usual error.
    bits = normalized_stability(
        lambda x: x[0], KEY, shape=(1,), rho=RHO, num_samples=1000, pair=bit_pair
    )
    np.testing.assert_allclose(bits.standard_error, math.sqrt((1 - RHO**2) / 1000), rtol=0.1)


def test_streams_in_constant_memory():
    def temporary(num_samples):
        def estimate(key):
            return noise_stability(
                jax.nn.relu, key, shape=(64,), rho=0.5, num_samples=num_samples, batch_size=64
            )

        return jax.jit(estimate).lower(KEY).compile().memory_analysis().temp_size_in_bytes

    assert temporary(1_000_000) < 1.2 * temporary(30_000)


def test_a_changed_closure_is_seen():
    """Nothing is compiled by the identity of a function."""
    scale = 1.0

    def fn(x):
        return scale * x[0]

    calls = (
        lambda: noise_stability(fn, KEY, shape=(1,), rho=0.5, num_samples=4).mean,
        lambda: stability.total_influence(fn, KEY, num_bits=1, num_samples=4).mean,
        lambda: stability.walsh_weights(fn, num_bits=1)[1],
        lambda: stability.geometric_influence(fn, jnp.ones((2, 1)))[0] ** 2,
    )
    before = np.array([call() for call in calls])
    scale = 3.0
    np.testing.assert_allclose([call() for call in calls], 9 * before, rtol=1e-6)


def test_three_frames_lead_to_the_function():
    def fn(x):
        raise LookupError

    with pytest.raises(LookupError) as raised:
        noise_stability(fn, KEY, shape=(1,), rho=0.5, num_samples=4)
    frames = [frame for frame in traceback.extract_tb(raised.tb) if "hopfax" in frame.filename]
    names = [frame.name for frame in frames if "/tests/" not in frame.filename]
    assert names == ["noise_stability", "paired_moments", "merge"]


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"rho": 1.2}, ValueError, r"rho must be in \[-1, 1\], got 1\.2"),
        ({"rho": jnp.array([0.1, -3.0])}, ValueError, r"got -3\.0"),
        ({"rho": jnp.zeros((2, 2))}, ValueError, r"got shape \(2, 2\)"),
        ({"num_samples": 1}, ValueError, r"num_samples must be in \[2, inf\), got 1"),
        ({"batch_size": 0}, ValueError, r"batch_size must be in \[1, inf\), got 0"),
        ({"arc_points": 1}, ValueError, r"arc_points must be in \[2, inf\), got 1"),
        ({"arc_points": 4, "pair": bit_pair}, ValueError, "unless pair is gaussian_pair, got 4"),
        ({"fn": lambda x: (x, x)}, ValueError, "must return one array of real numbers, got tuple"),
        ({"fn": lambda x: 1j * x[0]}, ValueError, "got complex64"),
        ({"fn": lambda x: jnp.log(x[0])}, FloatingPointError, "fn must be finite"),
        # Products that are finite, with squares that overflow.
        ({"fn": lambda x: 1e15 * x[0]}, FloatingPointError, "in float32: .* scale it down"),
        ({"pair": lambda key, shape, rho: (rho, rho)}, ValueError, "out_axes"),
        ({"key": jax.random.split(KEY, 3)}, ValueError, "single key"),
    ],
)
def test_bad_input_is_named(changes, error, words):
    options = {"fn": lambda x: x[0], "key": KEY, "shape": (2,), "rho": 0.5, "num_samples": 10}
    with pytest.raises(error, match=words):
        noise_stability(**options | changes)


def test_inside_jit_what_cannot_raise_is_nan():
    @jax.jit
    def stab(rho, low):
        return noise_stability(
            lambda x: jnp.where(x[0] < low, jnp.inf, x[0]),
            KEY,
            shape=(1,),
            rho=rho,
            num_samples=8,
        ).mean

    assert np.isfinite(stab(0.5, -9.0))
    assert np.isnan(stab(0.5, 9.0)), "not infinite"
    assert np.isnan(stab(1.5, -9.0))


@pytest.mark.parametrize("kind", [jnp.bfloat16, jnp.int8, bool])
def test_all_real_numbers_are_averaged_in_float32(kind):
    estimate = noise_stability(lambda x: x[0].astype(kind), KEY, shape=(1,), rho=0.5, num_samples=8)
    assert estimate.mean.dtype == jnp.float32


def test_gradients_are_those_of_the_sample_mean():
    def stab(weight, rho=RHO, pair=gaussian_pair):
        return noise_stability(
            lambda x: weight * x[0], KEY, shape=(1,), rho=rho, num_samples=500, pair=pair
        ).mean

    both = jax.jit(jax.value_and_grad(stab, argnums=(0, 1)))
    step = 1e-2
    by_weight = (both(2 + step, RHO)[0] - both(2 - step, RHO)[0]) / (2 * step)
    by_rho = (both(1.0, RHO + step)[0] - both(1.0, RHO - step)[0]) / (2 * step)
    np.testing.assert_allclose(both(2.0, RHO)[1][0], by_weight, rtol=1e-3)
    np.testing.assert_allclose(both(1.0, RHO)[1][1], by_rho, rtol=1e-2)
    for pair in (bit_pair, partial(uniform_token_pair, num_tokens=2)):
        with pytest.raises(TypeError, match="no gradient with respect to rho"):
            jax.grad(partial(stab, 1.0, pair=pair))(RHO)
        # Gradients with respect to something else pass.
        jax.make_jaxpr(jax.grad(partial(stab, pair=pair)))(1.0)
