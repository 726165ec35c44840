"""What the paper's theorems say of layers and networks, measured.

Each function measures one claim, from a key and a `Budget`; it returns rows of results.csv.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from experiments.noise_stability import layers
from hopfax.stability import gaussian_pair, noise_stability, theory

RHOS = (-0.9, -0.5, 0.0, 0.25, 0.5, 0.75, 0.9, 0.99)
START = 0.5  # correlation of deep networks' inputs
MAP_TOKENS, MAP_RHO = 12, 0.01
PROCESSES = ((0.0, 1.0, 1.0), (1.0, 1.0, 0.5), (-1.0, 2.0, 1.5))  # μ, σ, α
BOUNDS = (0.05, 0.1, 0.15, 0.2, 0.25)  # of the inputs' entries
BOUND_TOKENS, BOUND_WIDTH = 4, 2
UNITS = {
    "ReLU": jax.nn.relu,
    "GELU": jax.nn.gelu,
    "tanh": jnp.tanh,
    "step": lambda x: (x > 0).astype(x.dtype),
    "square": jnp.square,
}
# Name -> identity scores, norm of W_V's columns.
TRANSFORMERS = {
    "Eq. 8, γ = 1": (True, 1.0),
    "Eq. 8, γ = 0.5": (True, 0.5),
    "with s(ρ), γ = 1": (False, 1.0),
}

Tables = list[pd.DataFrame]


class Budget(NamedTuple):
    """Size of a run."""

    num_samples: int  # pairs an estimate; fewer for attention layers and deep networks
    networks: int  # random networks
    width: int  # of these networks and of attention
    depth: int
    tokens: tuple[int, ...] = (4, 16)  # of unstructured attention; all else has the last one


def rows(claim: str, name: str, x: Any, value: Any, error: Any = 0.0, **ends: Any) -> pd.DataFrame:
    """Rows of results.csv of a claim and a formula or function, one for each value of `x`.

    `ends` are `formula`, the formula's numbers, `low` and `high`, bounds or ends of intervals, and
    `num_examples`, the number of repetitions behind the standard error, where these are few. The
    standard error is 0 where `low` and `high` are an interval.
    """
    columns = {"level": x, "score": value, "standard_error": error, "num_examples": np.nan, **ends}
    table = pd.DataFrame({name: np.asarray(each, float) for name, each in columns.items()})
    return table.assign(
        task=claim, model=name, corruption="correlated pair", site="input", metric="value"
    )


def estimate(
    fn: Callable[[jax.Array], jax.Array], key: jax.Array, **settings: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Stability of a function and its standard error, by pairs, in one compiled program."""
    measure = jax.jit(lambda key: noise_stability(fn, key, **settings)[:2])
    mean, error = measure(key)
    return np.asarray(mean, float), np.asarray(error, float)


def relu_unit(key: jax.Array, budget: Budget) -> Tables:
    """Theorem 5.1 and its quadratic approximation (Figure 9)."""
    rhos, size = jnp.array(RHOS), budget.num_samples
    measured = estimate(lambda x: jax.nn.relu(x[0]), key, shape=(1,), rho=rhos, num_samples=size)
    quadratic = theory.relu_stability_quadratic(rhos)
    return [
        rows("relu", "Theorem 5.1", rhos, *measured, formula=theory.relu_stability(rhos)),
        rows("relu", "its quadratic part", rhos, *measured, formula=quadratic),
    ]


def relu_depth(key: jax.Array, budget: Budget) -> Tables:
    """Stability and correlation by depth in random networks, with Eq. 5 (Figure 4).

    Eq. 5 is of un-normalized stability, with unit columns of weights; a ReLU halves the second
    moment there. The networks measured have weights that make up for it: their stability after l
    layers is 2^(l-1) times that, since ReLUs are homogeneous.
    """
    draw = partial(layers.random_network, width=budget.width, depth=budget.depth)
    samples = {"num_samples": max(budget.num_samples // 20, 1000), "batch_size": 64}
    both = by_network(draw, key, budget, fn=layers.activations, shape=(budget.width,), **samples)
    halved = both[:, 0] / 2.0 ** np.arange(budget.depth)
    normalized = [START]
    for _ in range(budget.depth):
        normalized.append(float(2 * theory.relu_stability(normalized[-1])))
    full = theory.transformer_recurrence(START, num_layers=budget.depth)
    linear = theory.linear_recurrence(START, num_layers=budget.depth)
    return [
        by_layer("depth", "Eq. 5", halved, full),
        by_layer("depth", "linear part of Eq. 5", halved, linear),
        by_layer("depth", "correlation, Theorem 5.1", both[:, 0] / both[:, 1], normalized),
    ]


def transformers(key: jax.Array, budget: Budget) -> Tables:
    """Stability by depth in random transformers, with Eq. 8 and with s(ρ) in it (Figure 10).

    As in Appendix H: W_Q W_K = I, columns of W_V of norm γ, no residuals. Unstructured scores are
    compared with hopfax's variant of Eq. 8.
    """
    tokens, tables = budget.tokens[-1], []
    # A pair gives one product for each token and output.
    samples = {"num_samples": max(budget.num_samples // 4000, 32), "batch_size": 16}
    shape, sizes = (tokens, budget.width), {"width": budget.width, "depth": budget.depth}
    for name, (identity, norm) in TRANSFORMERS.items():
        draw = partial(layers.random_transformer, structured=identity, value_norm=norm, **sizes)
        both = by_network(draw, key, budget, fn=layers.transformer, shape=shape, **samples)
        count = None if identity else tokens
        formula = theory.transformer_recurrence(
            START, num_layers=budget.depth, value_norm=norm, num_tokens=count
        )
        tables.append(by_layer("transformer", name, both[:, 0], formula))
    return tables


def by_network(
    draw: Callable[[jax.Array], layers.Weights], key: jax.Array, budget: Budget, **settings: Any
) -> np.ndarray:
    """Stability and second moment of every layer of random networks: (networks, 2, layers)."""
    for_weights, for_pairs = jax.random.split(key)
    moments = [
        layer_moments(draw(one), jax.random.fold_in(for_pairs, number), **settings)
        for number, one in enumerate(jax.random.split(for_weights, budget.networks))
    ]
    return np.asarray(moments, float)


@partial(jax.jit, static_argnames=("fn", "shape", "num_samples", "batch_size"))
def layer_moments(
    weights: layers.Weights, key: jax.Array, *, fn: Callable[..., jax.Array], **settings: Any
) -> jax.Array:
    """Means over outputs, of `fn(weights, x)` with a leading axis of layers: (2, layers)."""
    rho = jnp.array([START, 1.0])
    mean = noise_stability(partial(fn, weights), key, rho=rho, per_output=True, **settings).mean
    return jnp.mean(mean, axis=tuple(range(2, mean.ndim)))


def by_layer(claim: str, name: str, by_network: np.ndarray, formula: Any) -> pd.DataFrame:
    """A row a layer, with the error over networks; `formula` begins with the input's."""
    count, depth = by_network.shape
    error = by_network.std(axis=0, ddof=1) / count**0.5
    mean, numbers = by_network.mean(axis=0), np.arange(1, depth + 1)
    return rows(claim, name, numbers, mean, error, num_examples=count, formula=formula[1:])


def attention(key: jax.Array, budget: Budget) -> Tables:
    """Theorems 5.2 and 5.3, with weights drawn anew for every pair (Figure 2).

    Theorem 5.3 is the limit of wide layers. A query prefers tokens of larger norm: at width d the
    stability is higher by up to about (E[M²] - 1) / d, with M the largest of as many standard
    normal numbers as tokens.
    """
    rhos, width = jnp.array([rho for rho in RHOS if rho > 0]), budget.width
    # Every pair draws its own weights, which costs time: fewer pairs.
    samples = {"num_samples": budget.num_samples // 2, "batch_size": 32}
    # Name, tokens, rows of W, formula.
    cases: list[tuple[str, int, int, Any]] = [
        (f"Theorem 5.3, unstructured, {count} tokens", count, width, theory.attention_stability)
        for count in budget.tokens
    ]
    last = budget.tokens[-1]
    cases.append((f"Theorem 5.2, identity, {last} tokens", last, 0, lambda rhos, **_: rhos))
    tables = []
    for number, (name, tokens, rows_of_w, formula) in enumerate(cases):
        layer, own = partial(layers.attention, tokens), jax.random.fold_in(key, number)
        shape, pair = (tokens + rows_of_w + 1, width), layers.attention_pair(tokens, width)
        measured = estimate(layer, own, shape=shape, rho=rhos, pair=pair, **samples)
        expected = jax.jit(partial(formula, num_tokens=tokens))(rhos)
        tables.append(rows("attention", name, rhos, *measured, formula=expected))
    return tables


def maps(key: jax.Array, budget: Budget) -> Tables:
    """The key with the most weight of every query, before and after noise (Figure 3).

    Attention maps A_X and A_Y of one pair of inputs, with two kinds of scores.
    """
    for_pair, for_scores = jax.random.split(key)
    pair = gaussian_pair(for_pair, (MAP_TOKENS, budget.width), rho=MAP_RHO)
    unstructured = jax.random.normal(for_scores, (budget.width, budget.width))
    return [
        rows("maps", f"{name}, {side}", np.arange(MAP_TOKENS), attended.argmax(axis=1))
        for name, w in (("identity", jnp.eye(budget.width)), ("unstructured", unstructured))
        for side, x in zip(("A_X", "A_Y"), pair, strict=True)
        for attended in [layers.attention_map(x, w)]
    ]


def lemma_11(key: jax.Array, budget: Budget) -> Tables:
    """A ReLU unit under Bonami-Beckner Gaussian processes."""
    rhos = jnp.array([0.0, 0.25, 0.5, 0.75, 1.0])
    settings: dict[str, Any] = {"num_samples": budget.num_samples, "per_output": True}
    pair, shape = layers.process_pair(*jnp.array(PROCESSES).T), (len(PROCESSES),)
    measured = estimate(jax.nn.relu, key, shape=shape, rho=rhos, pair=pair, **settings)
    tables = []
    for place, (mu, sigma, alpha) in enumerate(PROCESSES):
        formula = theory.relu_process_stability(rhos, mean=mu, std=sigma, scale=alpha)
        name = f"μ = {mu:g}, σ = {sigma:g}, α = {alpha:g}"
        ours = (each[:, place] for each in measured)
        tables.append(rows("lemma 11", name, rhos, *ours, formula=formula))
    return tables


def lemma_12(key: jax.Array, budget: Budget) -> Tables:
    """An attention layer with bounded inputs, and the form of Lemma 12 derived here.

    Entries are uniform on [-B, B], each kept with probability 1/2, else drawn anew. Everything is
    divided by B².
    """
    for_scores, for_values, for_pairs, for_parts = jax.random.split(key, 4)
    shape, pair = (BOUND_TOKENS, BOUND_WIDTH), layers.uniform_pair
    w = jax.random.uniform(for_scores, (BOUND_WIDTH, BOUND_WIDTH), minval=-1)
    v = jax.random.normal(for_values, (BOUND_WIDTH,))
    bounds = jnp.array(BOUNDS)

    def layer(x: jax.Array) -> jax.Array:
        return jax.vmap(lambda bound: (layers.attention_map(bound * x, w) @ (x @ v))[0])(bounds)

    @jax.jit
    def parts(key: jax.Array) -> list[jax.Array]:
        first, second = pair(key, (min(budget.num_samples, 100_000), *shape), rho=0.5)
        products = jnp.einsum("si,sj->sij", first @ v, second @ v)
        return [jnp.sum(jnp.mean(jnp.maximum(s * products, 0), axis=0)) for s in (1, -1)]

    settings: dict[str, Any] = {"num_samples": budget.num_samples, "per_output": True}
    measured = estimate(layer, for_pairs, shape=shape, rho=0.5, pair=pair, **settings)
    moments = [float(each) for each in parts(for_parts)]
    sizes = {"num_tokens": BOUND_TOKENS, "width": BOUND_WIDTH}
    largest = float(jnp.abs(w).max())
    ends = [
        theory.attention_interval(*moments, bound=bound, weight_bound=largest, **sizes)
        for bound in BOUNDS
    ]
    low, high = np.asarray(ends, float).T
    return [rows("lemma 12", "measured", BOUNDS, *measured, low=low, high=high)]


def intervals(key: jax.Array, budget: Budget) -> Tables:
    """Where common units lie between the bounds that their first two moments imply."""
    # Moments are means over weighted points, exact but for rounding.
    nodes, lengths = np.polynomial.legendre.leggauss(200)
    points = np.concatenate([6 * (nodes - 1), 6 * (nodes + 1)])
    density = np.exp(-(points**2) / 2) / np.sqrt(2 * np.pi)
    weights = 6 * np.tile(lengths, 2) * density

    def units(x: jax.Array) -> jax.Array:
        return jnp.stack([unit(x[0]) for unit in UNITS.values()])

    values = np.asarray(jax.jit(jax.vmap(units))(jnp.asarray(points)[:, None]), float)
    settings: dict[str, Any] = {"num_samples": budget.num_samples, "per_output": True}
    own, rhos, tables = jax.random.split(key, 4)[0], jnp.array(RHOS), []
    measured = estimate(units, own, shape=(1,), rho=rhos, **settings)
    for name, outputs, *ours in zip(UNITS, values.T, *(each.T for each in measured), strict=True):
        moments = {"mean": float(weights @ outputs), "second_moment": float(weights @ outputs**2)}
        low, high = theory.moment_interval(rhos, **moments)
        tables.append(rows("interval", name, RHOS, *ours, low=low, high=high))
    return tables


# Part of the run -> function, number of its key.
PARTS = {
    "single-layer attention": (attention, 2),
    "attention maps": (maps, 6),
    "deep ReLU networks": (relu_depth, 1),
    "a ReLU unit": (relu_unit, 0),
    "deep transformers": (transformers, 7),
    "Lemma 11": (lemma_11, 8),
    "Lemma 12": (lemma_12, 9),
    "bounds from two moments": (intervals, 3),
}
