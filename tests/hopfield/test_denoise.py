import itertools
from functools import partial
from importlib import import_module

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax
from scipy.stats import norm

from hopfax import hopfield

WIDTH, COUNT = 12, 23
draw = np.random.default_rng(0)
PATTERNS = draw.normal(size=(COUNT, WIDTH)) * draw.uniform(0.5, 2, (COUNT, 1))
QUERY = PATTERNS[4] + 0.9 * draw.normal(size=WIDTH)
PRIOR = np.log(draw.dirichlet(np.ones(COUNT)))
MASK = np.arange(COUNT) < 17
NEAREST = np.arange(COUNT) == 4


def oracle(query=QUERY, patterns=PATTERNS, sigma=None, log_prior=None, mask=None):
    squares = np.square(query - patterns).sum(1)
    likelihood = -squares / (2 * sigma**2) if sigma else -WIDTH / 2 * np.log(squares)
    scores = likelihood + (0 if log_prior is None else log_prior)
    scores = np.where(True if mask is None else mask, scores, -np.inf)
    posterior = np.exp(log_softmax(scores))
    return posterior @ patterns, posterior.argmax(), posterior.max()


@pytest.mark.parametrize("sigma", [None, 0.1, 0.9, 4.0])
@pytest.mark.parametrize("block_size", [None, 1, 5])
@pytest.mark.parametrize(
    "options",
    [{}, {"log_prior": PRIOR, "mask": MASK}, {"log_prior": np.where(NEAREST, -np.inf, 0.0)}],
    ids=["plain", "prior and mask", "nearest pattern excluded"],
)
def test_denoise_is_the_posterior_mean(sigma, block_size, options):
    got = hopfield.denoise(QUERY, PATTERNS, sigma=sigma, block_size=block_size, **options)
    value, index, probability = oracle(sigma=sigma, **options)
    np.testing.assert_allclose(got.value, value, rtol=2e-4, atol=2e-5)
    assert got.index == index
    np.testing.assert_allclose(got.probability, probability, rtol=2e-4)
    with jax.enable_x64(True):
        exact = hopfield.denoise(QUERY, PATTERNS, sigma=sigma, block_size=block_size, **options)
    np.testing.assert_allclose(exact.value, value, rtol=1e-9)


@pytest.mark.parametrize("sigma", [1.0, 1e-3, 3e-5, 1e-6])
@pytest.mark.parametrize("norm", [0.1, 100.0])
def test_roundings_within_a_program_do_not_matter(rng, norm, sigma):
    """A program computes scores twice, and their roundings differ by more than 1 here."""
    table = norm / 8 * rng.normal(size=(500, 64))
    noisy = table[:4] + min(sigma, norm / 80) * rng.normal(size=(4, 64))

    def loss(noisy, table, sigma, block_size):
        denoise = partial(hopfield.denoise, patterns=table, sigma=sigma, block_size=block_size)
        found = jax.vmap(denoise)(noisy)
        return jnp.sum(found.value[:, 0]) / norm + jnp.sum(found.probability), found

    def run(dtype, block_size):
        arrays = (jnp.asarray(x, dtype) for x in (noisy, table))
        grad = jax.jit(jax.grad(partial(loss, block_size=block_size), (0, 2), has_aux=True))
        return grad(*arrays, jnp.asarray(sigma, dtype))

    with jax.enable_x64(True):
        slopes, exact = jax.tree.map(np.asarray, run(jnp.float64, None))
    for block_size in (None, 37):
        gradients, found = run(jnp.float32, block_size)
        np.testing.assert_allclose(found.value, exact.value, atol=1e-5 * norm)
        np.testing.assert_allclose(found.probability, exact.probability, atol=1e-5)
        for gradient, slope in zip(gradients, slopes, strict=True):
            np.testing.assert_allclose(gradient, slope, rtol=1e-3, atol=1e-5 / sigma)


def test_with_equal_norms_it_is_one_update():
    patterns = PATTERNS / np.linalg.norm(PATTERNS, axis=1, keepdims=True)
    got = hopfield.denoise(QUERY, patterns, sigma=0.5, block_size=7).value
    np.testing.assert_allclose(got, hopfield.update(QUERY, patterns, beta=4.0), rtol=1e-5)


@pytest.mark.parametrize("sigma", [None, 0.9])
def test_gradients_are_central_differences(sigma):
    """In a random direction of each input."""
    cotangent = draw.normal(size=WIDTH)

    def loss(fn, inputs):
        query, patterns, log_prior, *level = inputs
        options = {"sigma": level[0] if level else None, "log_prior": log_prior}
        value, _, probability = fn(query, patterns, **options)
        return value @ cotangent + 3 * probability

    inputs = [QUERY, PATTERNS, PRIOR, *([np.float64(sigma)] if sigma else [])]
    for block_size in (None, 5):
        blocked = partial(loss, partial(hopfield.denoise, block_size=block_size))
        gradients = jax.jit(jax.grad(blocked))([jnp.asarray(x) for x in inputs])
        for place, gradient in enumerate(gradients):
            direction = draw.normal(size=np.shape(gradient))
            steps = [1e-5 * direction if n == place else 0 for n in range(len(inputs))]
            high, low = (
                loss(oracle, [x + sign * step for x, step in zip(inputs, steps, strict=True)])
                for sign in (1, -1)
            )
            slope = (high - low) / 2e-5
            np.testing.assert_allclose(np.sum(gradient * direction), slope, rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize("sigma", [None, 0.9])
def test_padding_changes_nothing_and_gets_no_gradient(sigma):
    patterns = jnp.asarray(PATTERNS).at[17:].set(jnp.nan)

    def total(patterns):
        value = hopfield.denoise(QUERY, patterns, sigma=sigma, mask=MASK, block_size=5).value
        return value.sum(), value

    gradient, value = jax.grad(total, has_aux=True)(patterns)
    short = hopfield.denoise(QUERY, PATTERNS[:17], sigma=sigma)
    np.testing.assert_allclose(value, short.value, rtol=1e-5)
    assert not np.any(gradient[17:])
    assert np.isfinite(gradient).all() and np.any(gradient[:17])
    excluded = np.where(MASK, 0, -np.inf)
    other = hopfield.denoise(QUERY, patterns, sigma=sigma, log_prior=excluded, block_size=5)
    np.testing.assert_allclose(other.value, short.value, rtol=1e-5)


def test_a_query_with_a_nan_has_no_posterior():
    got = hopfield.denoise(jnp.asarray(QUERY).at[0].set(jnp.nan), PATTERNS)
    assert np.isnan(got.value).all() and np.isnan(got.probability)


@pytest.mark.parametrize("sigma", [None, 0.9])
@pytest.mark.parametrize(
    "options", [{"mask": np.zeros(COUNT, bool)}, {"log_prior": np.full(COUNT, -np.inf)}]
)
def test_without_a_possible_pattern_the_result_is_zero(sigma, options):
    value, index, probability = hopfield.denoise(QUERY, PATTERNS, sigma=sigma, **options)
    assert not np.any(value)
    assert (index, probability) == (0, 0)


def test_a_clean_pattern_and_its_duplicate():
    """Without noise the pattern itself returns, with a finite gradient."""
    got = hopfield.denoise(PATTERNS[3], PATTERNS)
    np.testing.assert_allclose(got.value, PATTERNS[3], rtol=1e-6)
    assert (got.index, got.probability) == (3, 1)
    gradient = jax.grad(lambda x: hopfield.denoise(x, PATTERNS).value.sum())(jnp.array(PATTERNS[3]))
    assert np.isfinite(gradient).all()
    for distance in (0.0, 1e-5):  # rounding hides the second one
        twice = np.concatenate([PATTERNS, PATTERNS[3:4] + np.eye(1, PATTERNS.shape[1]) * distance])
        got = hopfield.denoise(PATTERNS[3], twice.astype(np.float32))
        assert got.index in (3, COUNT) and got.probability == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize("sigma", [None, 0.9])
@pytest.mark.parametrize("log_prior", [None, PRIOR])
def test_products_are_as_wide_as_the_patterns_and_add_up_in_float32(sigma, log_prior):
    narrow = jnp.asarray(PATTERNS, jnp.bfloat16)
    query, patterns = jnp.asarray(QUERY, jnp.bfloat16).astype(float), narrow.astype(float)
    one = partial(hopfield.denoise, sigma=sigma, log_prior=log_prior)
    got, want = one(query, narrow), one(query, patterns)
    assert got.value.dtype == jnp.float32
    # Products of two bfloat16 numbers are exact; only the weights are rounded.
    np.testing.assert_allclose(got.probability, want.probability, rtol=1e-5)
    np.testing.assert_allclose(got.value, want.value, atol=2**-8 * np.abs(PATTERNS).max())
    np.testing.assert_array_equal(one(jnp.asarray(QUERY), narrow).value, got.value)

    def weighted(query, patterns):
        return one(query, patterns).value @ jnp.arange(1.0, WIDTH + 1)

    slopes = jax.grad(weighted, argnums=(0, 1))
    for slope, exact in zip(slopes(query, narrow), slopes(query, patterns), strict=True):
        np.testing.assert_allclose(slope.astype(float), exact, atol=0.05 * np.abs(exact).max())
    # The derivatives of a certain answer cancel.
    clean = jax.grad(lambda x: hopfield.denoise(x, narrow, sigma=0.05).value.sum())(patterns[3])
    assert np.abs(clean).max() < 1e-3


@pytest.mark.parametrize("sigma", [None, 0.6])
@pytest.mark.parametrize("block_size", [1536, 5])
def test_after_a_layer_norm_it_is_denoise_of_normalized_patterns(sigma, block_size, monkeypatch):
    monkeypatch.setattr(import_module("hopfax.hopfield.denoise"), "BLOCK", block_size)
    offset, scale, bias = draw.normal(size=(3, WIDTH))
    centered = PATTERNS + offset - (PATTERNS + offset).mean(1, keepdims=True)
    normalized = centered / np.sqrt(centered.var(1, keepdims=True) + 0.3) * scale + bias
    query = normalized[4] + 0.6 * draw.normal(size=WIDTH)
    layer_norm = {"scale": scale, "bias": bias, "epsilon": 0.3}
    options = {"sigma": sigma, "log_prior": np.where(MASK, PRIOR, -np.inf)}
    uncompiled = hopfield.denoise_normalized.__wrapped__  # a compiled one keeps its block size
    got = uncompiled(query, PATTERNS, offset, **layer_norm, **options)
    want = hopfield.denoise(query, normalized, **options)
    np.testing.assert_allclose(got.value, want.value, rtol=1e-3, atol=1e-4)
    assert got.index == want.index
    np.testing.assert_allclose(got.probability, want.probability, rtol=1e-3)


def test_estimate_sigma_knows_neither_noise_nor_patterns():
    draw = np.random.default_rng(0)
    patterns = draw.normal(size=(200, 64))
    clean, noise, mask = patterns[draw.choice(200, 50)], draw.normal(size=(50, 64)), np.arange(50)
    for sigma in (0.5, 3.0):
        noisy = jnp.asarray(clean + sigma * noise).at[40:].set(jnp.nan)
        got = hopfield.estimate_sigma(noisy, patterns, mask=mask < 40)
        np.testing.assert_allclose(got, sigma, rtol=0.1)
    estimate = partial(hopfield.estimate_sigma, patterns=patterns, mask=mask < 40)
    slope = np.asarray(jax.grad(estimate)(noisy))
    assert np.isfinite(slope).all() and not slope[40:].any() and slope[:40].any()
    coarse = jnp.asarray(clean + noise, jnp.bfloat16)
    want = hopfield.estimate_sigma(coarse.astype(jnp.float32), patterns)
    np.testing.assert_allclose(hopfield.estimate_sigma(coarse, patterns), want, rtol=1e-5)
    loud = np.concatenate([patterns, 9 * patterns])
    unlikely = np.log(np.repeat([1 / 200, 1e-9], 200))
    got = hopfield.estimate_sigma(clean + 0.5 * noise, loud, log_prior=unlikely)
    np.testing.assert_allclose(got, 0.5, rtol=0.1)
    floor = 1e-3 * np.sqrt(np.square(loud).mean())
    np.testing.assert_allclose(hopfield.estimate_sigma(clean, loud), floor, rtol=1e-5)


def test_capacity_is_shannon_s_of_parallel_channels():
    for bits, width in ((10.0, 128), (3.0, 2), (1e-3, 50)):
        white = float(hopfield.capacity_snr_db(bits, width=width))
        np.testing.assert_allclose(width / 2 * np.log2(1 + 10 ** (white / 10)), bits, rtol=1e-4)
        even = jnp.full(width, 1 / width)
        same = hopfield.capacity_snr_db(bits, width=width, spectrum=even)
        assert same == pytest.approx(white, abs=1e-3)
    # A signal in 32 of 128 directions, with half of its power in the mean.
    half = jnp.repeat(jnp.array([0.5 / 32, 0.0]), jnp.array([32, 96]))
    expected = hopfield.capacity_snr_db(10.0, width=32) + 10 * np.log10(32 / 128 / 0.5)
    got = hopfield.capacity_snr_db(10.0, width=128, spectrum=half)
    assert got == pytest.approx(float(expected), abs=1e-3)
    shares = np.random.default_rng(0).dirichlet(np.ones(64))
    bits = jnp.array([3.0, 12.0])
    snr = 10 ** (np.asarray(hopfield.capacity_snr_db(bits, width=64, spectrum=shares), float) / 10)
    capacity = np.log2(1 + 64 * np.outer(snr, shares)).sum(axis=1) / 2
    np.testing.assert_allclose(capacity, bits, rtol=1e-4)


def distances_of(rows):
    """The distances between patterns; infinity from each to itself."""
    distances = np.linalg.norm(rows[:, None].astype(float) - rows, axis=-1)
    return distances + np.diag(np.full(len(rows), np.inf))


def test_below_the_certified_radius_the_nearest_pattern_is_the_right_one():
    certified = jax.jit(hopfield.certified_radius)
    radii = np.asarray(certified(PATTERNS))
    distances = distances_of(PATTERNS)
    np.testing.assert_allclose(radii, distances.min(1) / 2, rtol=1e-5)
    nearest = PATTERNS[distances.argmin(1)]
    unit = (nearest - PATTERNS) / np.linalg.norm(nearest - PATTERNS, axis=1, keepdims=True)
    decode = jax.jit(jax.vmap(lambda x: hopfield.denoise(x, PATTERNS).index))
    for factor, survives in ((0.999, True), (1.001, False)):
        moved = PATTERNS + factor * radii[:, None] * unit  # the worst direction
        assert ((decode(moved) == np.arange(COUNT)) == survives).all()
    twice = np.concatenate([PATTERNS, PATTERNS[:1]])
    assert hopfield.certified_radius(twice)[0] == 0
    padded = np.asarray(hopfield.certified_radius(PATTERNS, mask=MASK))
    np.testing.assert_allclose(padded[:17], certified(PATTERNS[:17]), rtol=1e-6)
    assert np.isnan(padded[17:]).all()
    assert np.isinf(hopfield.certified_radius(PATTERNS[:1])).all()


def simulated(patterns, sigma, prior, count=4000):
    noise = sigma * np.random.default_rng(8).normal(size=(count, patterns.shape[1]))
    bias = prior - np.square(patterns).sum(1) / (2 * sigma**2)
    scores = (bias + (pattern + noise) @ patterns.T / sigma**2 for pattern in patterns)
    return np.array([np.mean(each.argmax(1) == v) for v, each in enumerate(scores)])


SCALED = np.eye(60) * np.random.default_rng(5).uniform(0.8, 1.2, (60, 1))
UNEVEN = np.log(np.random.default_rng(5).dirichlet(np.full(60, 5.0)))
DOMINANT = np.where(np.arange(40) == 5, 50.0, 0.0)


@pytest.mark.parametrize(
    ("patterns", "sigma", "prior", "tolerance"),
    [
        # The rate is exact for orthogonal differences, and within 4.5 standard errors.
        (np.eye(60), 0.4, np.zeros(60), 0.035),
        (SCALED, 0.4, UNEVEN, 0.035),
        (np.random.default_rng(1).normal(size=(40, 16)), 0.7, DOMINANT, 0.04),
        (PATTERNS, 0.45, np.zeros(COUNT), 1.0),
        (PATTERNS, 0.45, PRIOR, 1.0),
    ],
)
def test_recovery_is_what_simulations_find_and_above_its_bound(patterns, sigma, prior, tolerance):
    options = {"sigma": sigma, "log_prior": prior}
    bound = np.asarray(hopfield.recovery_bound(patterns, **options))
    rate = np.asarray(hopfield.recovery_rate(patterns, **options))
    exact = simulated(patterns, sigma, prior)
    np.testing.assert_allclose(rate, exact, atol=tolerance)
    assert (bound <= exact + 0.04).all() and (bound <= rate + 5e-3).all()
    if patterns is PATTERNS:  # the bound is not a trivial one
        assert (bound > 0.9).sum() > COUNT / 2
        np.testing.assert_allclose(bound[bound > 0.98], exact[bound > 0.98], atol=0.02)


def test_recovery_of_some_rows_and_of_excluded_patterns():
    rows, excluded = np.array([6, 1, 1]), np.where(np.arange(60) < 2, UNEVEN, -np.inf)
    for function in (hopfield.recovery_rate, hopfield.recovery_bound):
        run = partial(function, sigma=0.4)
        every, some = run(SCALED, log_prior=UNEVEN), run(SCALED, log_prior=UNEVEN, index=rows)
        np.testing.assert_allclose(some, np.asarray(every)[rows], rtol=1e-6)
        alone = run(SCALED[:2], log_prior=UNEVEN[:2])
        np.testing.assert_allclose(run(SCALED, log_prior=excluded), [*alone, *[0] * 58], atol=1e-6)


def test_two_patterns_reach_the_bound_and_the_rate():
    patterns, prior = np.array([[0.0, 0.0], [3.0, 4.0]]), np.log([0.8, 0.2])
    margins = 5 / 4 + 2 / 5 * np.log([4, 1 / 4])
    bound = hopfield.recovery_bound(patterns, sigma=2.0, log_prior=prior)
    np.testing.assert_allclose(bound, norm.cdf(margins), rtol=1e-5)
    far = 1e3 + jax.random.normal(jax.random.key(3), (2, 6))
    apart = np.linalg.norm(far[0].astype(float) - far[1])
    for sigma in (0.4, 0.7, 2.0, 5.0):
        margins = apart / (2 * sigma) + sigma / apart * (prior - prior[::-1])
        rate = hopfield.recovery_rate(far, sigma=sigma, log_prior=prior)
        np.testing.assert_allclose(rate, norm.cdf(margins), atol=1e-4)


def test_equal_patterns_are_recovered_half_of_the_time_and_one_pattern_always():
    rows = 9 * np.eye(3)[[0, 1, 0]]
    np.testing.assert_allclose(hopfield.recovery_rate(rows, sigma=0.5), [0.5, 1, 0.5], atol=1e-5)
    favored = hopfield.recovery_rate(rows, sigma=0.5, log_prior=np.log([0.6, 0.3, 0.1]))
    np.testing.assert_allclose(favored, [1, 1, 0], atol=1e-5)
    assert hopfield.recovery_rate(np.zeros((1, 3)), sigma=2.0).tolist() == [1]


@pytest.mark.parametrize("function", [hopfield.recovery_rate, hopfield.recovery_bound])
def test_recovery_has_gradients_where_the_prior_excludes_a_pattern(function):
    prior = jnp.log(jnp.array([0.5, 0.3, 0.2, 0.0]))
    rows = jnp.asarray(PATTERNS[:4], jnp.float32)

    @jax.jit
    @partial(jax.value_and_grad, argnums=(0, 1, 2))
    def total(rows, sigma, prior):
        return function(rows, sigma=sigma, log_prior=prior).sum()

    _, slopes = total(rows, 0.8, prior)
    assert all(np.isfinite(slope).all() and np.any(slope) for slope in slopes)
    step = (total(rows, 0.81, prior)[0] - total(rows, 0.79, prior)[0]) / 0.02
    np.testing.assert_allclose(slopes[1], step, rtol=0.02)


@pytest.mark.parametrize("sigma", [None, 0.9])
def test_candidates_are_the_most_probable_patterns_and_know_their_likelihoods(sigma):
    options = {"sigma": sigma, "log_prior": np.where(MASK, PRIOR, -np.inf)}
    got = hopfield.candidates(QUERY, PATTERNS, count=17, **options)
    scores = got.log_likelihood + PRIOR[got.index]
    assert (np.diff(scores) <= 0).all()
    value, index, probability = oracle(**options)
    posterior = jax.nn.softmax(scores)
    np.testing.assert_allclose(posterior @ PATTERNS[got.index], value, rtol=1e-3, atol=1e-4)
    assert got.index[0] == index
    np.testing.assert_allclose(posterior[0], probability, rtol=1e-3)
    everything = hopfield.candidates(QUERY, PATTERNS, count=COUNT, **options)
    assert (everything.log_likelihood[17:] == -np.inf).all()


def test_equal_patterns_have_no_recovery_bound():
    rows = np.random.default_rng(4).normal(size=(3, 64)).astype(np.float32)
    prior = np.log([0.4, 0.3, 0.3, 0.4])
    bound = hopfield.recovery_bound(rows[[0, 1, 2, 0]], sigma=0.5, log_prior=prior)
    assert (np.asarray(bound)[[0, 3]] == 0).all() and (np.asarray(bound)[1:3] > 0.99).all()


@pytest.mark.parametrize(("width", "separation"), [(384, 0.02), (384, 0.05), (1, 1e-3)])
def test_the_bound_of_near_duplicates_is_not_above_the_exact_rate(width, separation):
    rows = np.random.default_rng(20).normal(size=(6, width)).astype(np.float32)
    rows[1] = rows[0] + np.float32(separation) * rows[2] / np.linalg.norm(rows[2])
    distance = np.linalg.norm(rows[1].astype(float) - rows[0])
    bound = hopfield.recovery_bound(rows, sigma=distance / 6)
    assert (np.asarray(bound)[:2] <= norm.cdf(3) + 1e-6).all()
    assert (np.asarray(bound)[2:] > 0.99).all()


def test_a_prior_does_not_raise_the_bound_of_near_duplicates_above_the_exact_rate():
    # Its term is the larger, the smaller the distance: here this has lost half of its square.
    first = np.zeros(384, np.float32)
    first[0] = 1
    second = first.copy()
    second[1] = 0.01
    rows = np.stack([first, second, -first])
    bound = hopfield.recovery_bound(rows, sigma=0.05, log_prior=np.array([0.2, 0, 0]))
    exact = norm.cdf(0.01 / 0.1 + 0.2 * 0.05 / 0.01)
    assert 0 < bound[0] <= exact + 1e-6


def test_the_certified_radius_is_never_too_large():
    """Far from the origin, in distant clusters, and of near duplicates."""
    rows = (0.05 * np.random.default_rng(3).normal(size=(200, 32)) + 100).astype(np.float32)
    exact = distances_of(rows).min(1) / 2
    np.testing.assert_allclose(hopfield.certified_radius(rows), exact, rtol=1e-3)
    for shift in (1e2, 1e4):
        rows = np.random.default_rng(0).normal(size=(100, 8))
        rows = (rows + shift * np.repeat([0, 1], 50)[:, None]).astype(np.float32)
        exact = distances_of(rows).min(1) / 2
        assert (hopfield.certified_radius(rows) <= (1 + 1e-5) * exact).all()
    for width, separation in itertools.product((1, 2, 8, 384), (1e-5, 1e-4, 1e-2)):
        rng = np.random.default_rng(width)
        rows = rng.normal(size=(6, width)) / np.sqrt(width)
        rows[1] = rows[0] + separation * rng.normal(size=width) / np.sqrt(width)
        rows = rows.astype(np.float32)
        exact = distances_of(rows).min(1) / 2
        assert (hopfield.certified_radius(rows) <= (1 + 1e-6) * exact).all()


@pytest.mark.parametrize("sigma", [None, 0.1])
def test_the_likeliest_pattern_does_not_depend_on_how_logits_are_rounded(sigma):
    """XLA may compute logits twice, and rounds the two differently with few optimizations."""
    patterns = jax.random.normal(jax.random.key(0), (3000, 32))
    noisy = patterns[:64] + 0.1 * jax.random.normal(jax.random.key(1), (64, 32))
    prior = jax.nn.log_softmax(jax.random.normal(jax.random.key(2), (3000,)))
    denoise = partial(hopfield.denoise, patterns=patterns, sigma=sigma, log_prior=prior)
    options = {"xla_backend_optimization_level": "0"}
    found = jax.jit(jax.vmap(denoise), compiler_options=options)(noisy)
    assert (found.index == np.arange(64)).all()
    np.testing.assert_allclose(found.probability, 1, atol=1e-3)


@pytest.mark.parametrize("block_size", [None, 100])
def test_many_queries_do_not_copy_the_patterns(block_size):
    denoise = partial(hopfield.denoise, patterns=jnp.ones((400, 32)), block_size=block_size)
    compiled = jax.jit(jax.vmap(denoise)).lower(jnp.ones((64, 32))).compile()
    copies = 4 * 64 * 32 * (block_size or 400)
    assert compiled.memory_analysis().temp_size_in_bytes < copies / 4
