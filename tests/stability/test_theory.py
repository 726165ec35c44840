"""The paper's formulas against Monte Carlo, closed forms and each other."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from hopfax.stability import noise_stability, theory

KEY = jax.random.key(2)
RHOS = np.array([-1.0, -0.9, -0.3, 0.0, 0.2, 0.7, 0.99, 1.0])


def test_relu_stability_is_what_monte_carlo_finds():
    found = noise_stability(
        lambda x: jnp.maximum(x[0], 0), KEY, shape=(1,), rho=jnp.asarray(RHOS), num_samples=20_000
    )
    expected = theory.relu_stability(RHOS)
    assert np.all(np.abs(found.mean - expected) < 5 * found.standard_error + 1e-6)
    assert float(found.standard_error.max()) < 0.01


def exact_relu_stability(rho):
    """Float64; the series where the difference of the closed form cancels."""
    angle = 2 * np.arctan2(np.sqrt(1 + rho), np.sqrt(1 - rho))
    series = angle**3 * (1 / 3 - angle**2 / 30 + angle**4 / 840)
    direct = np.sqrt((1 - rho) * (1 + rho)) + rho * angle
    return np.where(angle < 1e-2, series, direct) / (2 * np.pi), angle / (2 * np.pi)


def test_relu_stability_and_its_slope_are_exact_in_float32():
    near = 10.0 ** -np.arange(1, 7.3, 0.25)
    rhos = np.concatenate([[-1, 1], near - 1, 1 - near, np.linspace(-0.99, 0.99, 199)])
    rhos = rhos.astype(np.float32)
    value, slope = exact_relu_stability(rhos.astype(np.float64))
    found = theory.relu_stability(rhos)
    np.testing.assert_allclose(found, value, rtol=2e-6)
    assert np.all((found >= 0) & (found <= 0.5))
    slopes = jax.vmap(jax.grad(theory.relu_stability))(rhos)
    np.testing.assert_allclose(slopes, slope, rtol=2e-6)
    # A correlation out of range that only a running program knows.
    assert np.isnan(jax.jit(theory.relu_stability)(-1.001))


def test_quadratic_is_the_expansion_and_its_error_is_bounded(x64):
    exact, quadratic = theory.relu_stability(RHOS), theory.relu_stability_quadratic(RHOS)
    assert np.max(np.abs(exact - quadratic)[RHOS >= 0]) <= 0.25 - 3 / (4 * np.pi) + 1e-9
    # The remainder is of fourth order, on both sides of 0.
    rhos = np.array([-0.01, 0.01])
    remainder = theory.relu_stability(rhos) - theory.relu_stability_quadratic(rhos)
    np.testing.assert_allclose(remainder, rhos**4 / (48 * np.pi), rtol=1e-3)


def test_recurrences_iterate_eq_5_and_eq_8_to_their_own_limits(x64):
    """Eq. 5 is Eq. 8 at gamma = 1, with limit 0.2172; its linear part ends at 2/(3π)."""
    for gamma in (0.0, 0.5, 1.0):
        visited = theory.transformer_recurrence(0.8, num_layers=40, value_norm=gamma)
        assert visited.shape == (41,)
        expected = theory.relu_stability(gamma**2 * visited[:-1])
        np.testing.assert_allclose(visited[1:], expected, rtol=1e-12)
    np.testing.assert_allclose(visited[-1], 0.217234, atol=1e-5)
    # Unstructured scores: Theorem 5.3 in place of 5.2.
    some = theory.transformer_recurrence(0.8, num_layers=3, num_tokens=16, value_norm=0.9)
    attended = 0.9**2 * theory.attention_stability(some[:-1], num_tokens=16)
    np.testing.assert_allclose(some[1:], theory.relu_stability(attended), rtol=1e-12)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0])
def test_the_linear_proxy_iterates_its_map_to_its_limit_or_diverges(gamma, x64):
    visited = theory.linear_recurrence([0.8, -1.0], num_layers=100, value_norm=gamma)
    expected = 1 / (2 * np.pi) + gamma**2 / 4 * visited[:-1]
    np.testing.assert_allclose(visited[1:], expected, rtol=1e-9)
    if gamma < 2:
        np.testing.assert_allclose(visited[-1], 2 / (np.pi * (4 - gamma**2)), rtol=1e-9)
    else:
        assert np.all(np.abs(visited[-1]) > 10)


@pytest.mark.parametrize(("num_tokens", "rho"), [(1, 0.5), (3, -0.8), (20, 0.97)])
def test_overlap_is_how_often_the_largest_stays(num_tokens, rho):
    rng, shape, r = np.random.default_rng(0), (40_000, num_tokens), rho**2
    first = rng.standard_normal(shape)
    second = r * first + math.sqrt(1 - r**2) * rng.standard_normal(shape)
    expected = (first.argmax(1) == second.argmax(1)).mean()
    found = float(theory.attention_overlap(rho, num_tokens=num_tokens))
    assert abs(found - expected) < 5 * math.sqrt(0.25 / 40_000) + 1e-4


def test_overlap_of_two_tokens_has_a_closed_form_and_of_many_its_ends(x64):
    rhos = np.array([0.0, 0.3, 0.6, 0.9, 0.99, 0.999, 1 - 1e-7, 1 - 1e-8, 1.0])
    found = theory.attention_overlap(rhos, num_tokens=2)
    np.testing.assert_allclose(found, 0.5 + np.arcsin(rhos**2) / np.pi, atol=5e-6)
    found = theory.attention_overlap(np.array([0.0, 1.0, -1.0, 0.99]), num_tokens=1000)
    np.testing.assert_allclose(found, [1 / 1000, 1, 1, 0.6752441], rtol=1e-6)  # the last: 400 nodes
    curve = theory.attention_overlap(np.linspace(0, 1, 8), num_tokens=1000)
    assert np.all(np.diff(curve) >= -1e-9)
    with jax.debug_nans(True):
        slopes = jax.vmap(jax.grad(partial(theory.attention_stability, num_tokens=4)))
        assert np.isfinite(slopes(jnp.linspace(-1, 1, 5))).all()


def test_attention_stability_is_that_of_a_wide_random_layer():
    """σ(XWXᵀ)XW_V with W ~ N(0, 1), d = 64; the mean of 6 tokens and 8 columns of W_V."""
    tokens, width, columns, rho = 6, 64, 8, 0.9

    # A fresh W with every sample: the theorem is about a random one.
    def layer(inputs):
        x, w, v = inputs[:tokens], inputs[tokens:-columns], inputs[-columns:]
        return jax.nn.softmax(x @ w @ x.T) @ x @ v.T / (width * tokens * columns) ** 0.5

    def pair(key, shape, *, rho):
        common = jax.random.normal(key, shape)
        fresh = jax.random.normal(jax.random.fold_in(key, 1), (tokens, width))
        noisy = rho * common[:tokens] + jnp.sqrt(1 - rho**2) * fresh
        return common, common.at[:tokens].set(noisy)

    shape, count = (tokens + width + columns, width), {"num_samples": 1000, "batch_size": 100}
    found = noise_stability(layer, KEY, shape=shape, rho=rho, pair=pair, **count)
    # The theorem is of a limit: a hundredth for the width.
    slack = 5 * found.standard_error + 0.01
    assert abs(found.mean - theory.attention_stability(rho, num_tokens=tokens)) < slack
    # Scores of correlation rho instead of rho^2 would be told apart.
    other = rho * theory.attention_overlap(rho**0.5, num_tokens=tokens)
    assert abs(found.mean - other) > slack


@pytest.mark.parametrize(("scores", "rho"), [("identity", 0.3), ("product", -0.6)])
def test_with_itself_to_attend_to_a_token_is_as_stable_as_its_input(scores, rho):
    """Theorem 5.2: W = I or U Uᵀ with U ~ N(0, 1), in place of a random W; all outputs' mean."""
    tokens, width = 6, 128
    for_scores, for_values = jax.random.split(jax.random.key(6))
    root = jax.random.normal(for_scores, (width, width))
    w = jnp.eye(width) if scores == "identity" else root @ root.T
    values = jax.random.normal(for_values, (width, 8))
    values /= jnp.linalg.norm(values, axis=0, keepdims=True)

    def layer(x):
        return jax.nn.softmax(x @ w @ x.T) @ x @ values / (tokens * 8) ** 0.5

    count = {"num_samples": 300, "batch_size": 100}
    found = noise_stability(layer, KEY, shape=(tokens, width), rho=rho, **count)
    assert abs(found.mean - rho) < 5 * found.standard_error
    assert found.standard_error < 0.03
    # Theorem 5.3's, of a W without structure, would be told apart.
    other = theory.attention_stability(rho, num_tokens=tokens)
    assert abs(found.mean - other) > 5 * found.standard_error


def test_moment_interval_holds():
    moments = np.array([(1 / math.sqrt(2 * math.pi), 0.5), (0, 1), (2, 6), (0.5, 0.5)])

    def fn(x):
        return jnp.stack([jnp.maximum(x[0], 0), x[0], x[0] ** 2 + 1, jnp.heaviside(x[0], 0.0)])

    rhos = jnp.array([-0.7, 0.0, 0.4, 1.0])
    found = noise_stability(fn, KEY, shape=(1,), rho=rhos, num_samples=20_000, per_output=True)
    low, high = theory.moment_interval(
        rhos[:, None], mean=moments[None, :, 0], second_moment=moments[None, :, 1]
    )
    slack = 5 * found.standard_error + 1e-5
    assert np.all((low - slack <= found.mean) & (found.mean <= high + slack))
    # Sharp: x attains an end at every rho, and x² + 1 the upper one below 0.
    np.testing.assert_allclose(np.where(rhos < 0, low[:, 1], high[:, 1]), rhos)
    np.testing.assert_allclose(high[0, 2], 4 + 2 * 0.7**2)
    np.testing.assert_allclose(low[1:], np.tile(moments[:, 0] ** 2, (3, 1)))


def test_lemma_11_is_an_equality():
    mean, std, scale = jnp.array([(0.0, 1.0, 1.0), (0.7, 0.5, 1.8), (-1.0, 2.0, 0.3)]).T
    rhos = jnp.array([0.0, 0.3, 1.0])

    def pair(key, shape, *, rho):
        """Y = scale X with probability rho, else a fresh draw."""
        for_x, for_y, for_choice = jax.random.split(key, 3)
        x, fresh = (mean + std * jax.random.normal(each, shape) for each in (for_x, for_y))
        return x, jnp.where(jax.random.uniform(for_choice, shape) < rho, scale * x, fresh)

    options = {"shape": (3,), "rho": rhos, "num_samples": 20_000, "per_output": True}
    found = noise_stability(jax.nn.relu, KEY, pair=pair, **options)
    expected = theory.relu_process_stability(
        rhos[:, None], mean=mean[None], std=std[None], scale=scale[None]
    )
    assert np.all(np.abs(found.mean - expected) < 5 * found.standard_error)
    assert np.all(found.standard_error < 0.04 * expected)


@pytest.mark.parametrize(("bound", "rho"), [(0.1, 0.5), (0.5, 0.0), (0.5, 1.0)])
def test_attention_interval_holds(bound, rho):
    """Lemma 12's form: entries in [-B, B] and [0, B], each kept with probability rho."""
    tokens, width, count = 3, 2, 5_000
    keys = jax.random.split(jax.random.key(3), 5)
    w = jax.random.uniform(keys[0], (width, width), minval=-1)
    values = jax.random.normal(keys[1], (width,))
    for least in (-bound, 0.0):
        x, fresh = (
            jax.random.uniform(key, (count, tokens, width), minval=least, maxval=bound)
            for key in keys[2:4]
        )
        y = jnp.where(jax.random.uniform(keys[4], x.shape) < rho, x, fresh)
        attend = jax.vmap(lambda x: jax.nn.softmax(x[0] @ w @ x.T) @ x @ values)
        product = attend(x) * attend(y)
        parts = jnp.einsum("si,sj->sij", x @ values, y @ values)
        signs = (jnp.sum(jnp.mean(jnp.maximum(sign * parts, 0), axis=0)) for sign in (1, -1))
        sizes = {"num_tokens": tokens, "width": width, "bound": bound}
        low, high = theory.attention_interval(*signs, **sizes, weight_bound=float(abs(w).max()))
        # The inequality holds sample by sample, so also for the means of one set of draws.
        assert low <= jnp.mean(product) <= high


def test_the_known_form_of_lemma_12_fails_and_with_a_second_moment_it_holds():
    """Two independent texts of two tokens: 2 with probability 1/3, else -1; d = 1, W_V = 1."""
    tokens, odds = np.array([[2.0, 2], [2, -1], [-1, 2], [-1, -1]]), np.array([1, 2, 2, 4]) / 9
    np.testing.assert_allclose(odds @ tokens, 0, atol=1e-12)  # so R_l = R_r = 0
    weights = scipy.special.softmax(0.1 * tokens[:, :1] * tokens, axis=1)
    stability = (odds @ np.sum(weights * tokens, axis=1)) ** 2
    half = 4 * (odds @ tokens[:, 0] ** 2) / 2  # n^2 V / 2
    sizes = {"num_tokens": 2, "width": 1, "bound": 2.0, "weight_bound": 0.1}
    low, high = theory.attention_interval(half, half, **sizes)
    assert low <= stability <= high and stability > 1e-3  # which is above E R_r = 0
    np.testing.assert_allclose(high, 2 * np.sinh(4 * 2**2 * 0.1), rtol=1e-6)


def test_propagated_intervals_hold_for_any_attention_and_are_exact_without(x64):
    rng, tokens, width, start = np.random.default_rng(0), 3, 2000, (0.0, 0.6)
    for ends in theory.propagate_interval(start, num_layers=3, num_tokens=1):
        np.testing.assert_allclose(ends[1:], 2 * theory.relu_stability(ends[:-1]), rtol=1e-12)
    x, fresh = rng.standard_normal((2, tokens, width))
    y, ends = 0.6 * x + 0.8 * fresh, theory.propagate_interval(start, num_layers=3, num_tokens=3)
    for low, high in zip(ends.low[1:], ends.high[1:], strict=True):
        values = rng.standard_normal((width, width)) * (2 / width) ** 0.5
        maps = rng.dirichlet(np.ones(tokens), (2, tokens))
        maps[:, 0], maps[:, 1] = 1 / tokens, np.eye(tokens)[1]  # of all tokens, and of itself
        x, y = (np.maximum(each @ z @ values, 0) for each, z in zip(maps, (x, y), strict=True))
        found = x @ y.T / width
        assert low - 0.05 < found.min() and found.max() < high + 0.05
    assert found[1, 1] > 0.9 * high


def test_attention_interval_tightens_and_widens_to_its_limits():
    sizes = {"num_tokens": 4, "width": 3}
    exact = theory.attention_interval(8.0, 2.0, bound=0.0, **sizes)
    np.testing.assert_allclose(exact, 6 / 16, rtol=1e-6)
    factor = np.exp(4 * 9 * 0.1**2 * 0.5)
    low, high = theory.attention_interval(8.0, 2.0, bound=0.1, weight_bound=0.5, **sizes)
    np.testing.assert_allclose(low, (8 / factor - 2 * factor) / 16, rtol=1e-6)
    np.testing.assert_allclose(high, (8 * factor - 2 / factor) / 16, rtol=1e-6)
    low, high = theory.attention_interval(8.0, 0.0, bound=10.0, **sizes)
    assert low == 0 and high == np.inf
