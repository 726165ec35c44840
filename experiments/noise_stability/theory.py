"""Do the paper's formulas for layers hold, and how tight are its bounds?

Paper: Haris, Zhang and Yoshida (2026), Theorems 5.1 to 5.3, Eq. 5 and 8, Lemmas 11 and 12; Figures
2 (attention), 3 (attention maps), 4 (deep MLP), 9 (quadratic approximation) and 10 (transformer).
Claims: a ReLU layer has a closed form; attention with identity scores keeps the correlation, with
unstructured scores multiplies it by the chance that a token attends to the same one under noise;
through ReLU layers stability settles near 2/(3π), through a transformer with γ < 1 it vanishes.

Command: `python -m experiments theory` (minutes on two cores), `--budget smoke` (seconds) or
`--budget paper` (a million pairs an estimate).

Expected: Theorems 5.1 to 5.3 and Lemma 11 within their error bars. Eq. 5 and 8 take an
un-normalized stability for a correlation: in deep networks the un-normalized stability vanishes
and the correlation rises towards 1 instead.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from scipy.special import stdtrit

from experiments import report, tidy
from experiments.figures import Panel
from experiments.noise_stability import layers
from experiments.rundir import open_run
from experiments.settings import Run, budget_of, by_budget
from hopfax.stability import gaussian_pair, level_weights, noise_stability, theory
from hopfax.train.progress import Progress

REPRODUCES = "Noise stability, Figures 2, 3, 4, 9, 10: layers against their theorems"


class Budget(NamedTuple):
    """Size of a run.

    Attributes:
        num_samples: Pairs an estimate; fewer for attention layers and deep networks.
        networks: Random networks, of `depth` layers.
        width: Width of these networks and of attention.
        steps: Training steps of the trained network.
        tokens: Sequence lengths of attention with unstructured scores; the last one is also that
            of identity scores and of transformers.
        arc_points: Numbers of points of arcs, which are compared with pairs.
        functions: Number of functions that they are compared on.
    """

    num_samples: int
    networks: int
    width: int
    depth: int
    steps: int
    tokens: tuple[int, ...] = (4, 16)
    arc_points: tuple[int, ...] = (4, 8)
    functions: int = 3


BUDGETS = {
    # Most of its time is compilation: fewer programs.
    "smoke": Budget(2_000, 2, 32, 3, 50, tokens=(4,), arc_points=(4,), functions=1),
    "laptop": Budget(50_000, 5, 128, 10, 4_000),
    "paper": Budget(1_000_000, 20, 256, 10, 20_000),
}
RHOS = (-0.9, -0.5, 0.0, 0.25, 0.5, 0.75, 0.9, 0.99)
START = 0.5  # correlation of deep networks' inputs
MAP_TOKENS, MAP_RHO = 12, 0.01
PROCESSES = ((0.0, 1.0, 1.0), (1.0, 1.0, 0.5), (-1.0, 2.0, 1.5))  # μ, σ, α
BOUNDS = (0.05, 0.1, 0.15, 0.2, 0.25)  # of the inputs' entries
BOUND_TOKENS, BOUND_WIDTH = 4, 2
INPUTS = 10  # of the trained network
UNITS = {
    "ReLU": jax.nn.relu,
    "GELU": jax.nn.gelu,
    "tanh": jnp.tanh,
    "step": lambda x: (x > 0).astype(x.dtype),
    "square": jnp.square,
}
REPEATS = 4  # independent estimates of a variance, for its error
WITHIN, CLOSE = 3, 0.02  # standard errors, or share of the formula, that count as agreement
AGREEMENT = f"within {WITHIN} standard errors or {100 * CLOSE:g} %"
# By claim, the paper's figures first.
PANELS = {
    "attention": Panel("Figure 2: single-layer attention", "ρ", "stability"),
    "maps": Panel(
        "Figure 3: attention maps at ρ = 0.01", "query", "key of most weight", connected=False
    ),
    "depth": Panel("Figure 4: deep ReLU MLP from ρ = 0.5", "layer", "stability, correlation"),
    "relu": Panel("Figure 9: ReLU and its approximation", "ρ", "stability"),
    "transformer": Panel("Figure 10: transformer from ρ = 0.5", "layer", "stability", log=True),
    "lemma 11": Panel("Lemma 11, ReLU", "ρ (probability)", "stability"),
    "lemma 12": Panel("attention: bounds of the form of Lemma 12", "B", "stability / B²"),
    "interval": Panel("stability between its moment bounds", "ρ", "position (0: lower, 1: upper)"),
    "levels": Panel("network that learns sign(x₀x₁)", "degree (7: and above)", "share of variance"),
    "estimators": Panel(
        "arcs relative to pairs, equal cost", "ρ", "variance ratio", log=True, mark=1.0
    ),
}
OWN = "other lemmas, bounds and estimators"
OURS = ("lemma 11", "lemma 12", "interval", "levels", "estimators")

TITLES = {
    "its quadratic part": "quadratic approximation",
    "linear part of Eq. 5": "linear approximation of Eq. 5",
    "with s(ρ), γ = 1": "Eq. 8 with s(ρ), γ = 1",
    "network, fresh": "network, untrained",
    "fresh": "untrained",
}


@dataclass(frozen=True, kw_only=True)
class Config(Run):
    """Settings of the experiment."""

    num_samples: Annotated[int | None, by_budget("num_samples", "INT", BUDGETS)] = None
    """Pairs an estimate, at least 1000."""
    networks: Annotated[int | None, by_budget("networks", "INT", BUDGETS)] = None
    """Random networks, for error bars over their weights; at least 2."""
    seed: int = 0
    """Seed of all draws."""


def run(config: Config) -> Path:
    """Measures everything and writes the page; a flag out of range is a ValueError."""
    budget = budget_of(config, BUDGETS)
    folder = open_run("theory", config, plan=budget._asdict())
    keys = jax.random.split(jax.random.key(config.seed), len(PARTS))
    tables: list[pd.DataFrame] = []
    with Progress(len(PARTS)) as progress:
        for number, (title, (part, place)) in enumerate(PARTS.items()):
            progress.title = f"[{number + 1}/{len(PARTS)}] {title}"
            progress.update(number)
            tables += part(keys[place], budget)
        progress.update(len(PARTS))
    return report.write_run(folder, pd.concat(tables), page)


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

    def measure(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        return noise_stability(fn, key, **settings)[:2]

    mean, error = jax.jit(measure)(key)
    return np.asarray(mean, float), np.asarray(error, float)


def relu_unit(key: jax.Array, budget: Budget) -> list[pd.DataFrame]:
    """Theorem 5.1 and its quadratic approximation (Figure 9)."""
    rhos, size = jnp.array(RHOS), budget.num_samples
    measured = estimate(lambda x: jax.nn.relu(x[0]), key, shape=(1,), rho=rhos, num_samples=size)
    quadratic = theory.relu_stability_quadratic(rhos)
    return [
        rows("relu", "Theorem 5.1", rhos, *measured, formula=theory.relu_stability(rhos)),
        rows("relu", "its quadratic part", rhos, *measured, formula=quadratic),
    ]


def relu_depth(key: jax.Array, budget: Budget) -> list[pd.DataFrame]:
    """Stability and correlation by depth in random networks, with Eq. 5 (Figure 4).

    Eq. 5 is of un-normalized stability, with unit columns of weights; a ReLU halves the second
    moment there. The networks measured have weights that make up for it: their stability after l
    layers is 2^(l-1) times that, since ReLUs are homogeneous.
    """
    draw = partial(layers.random_network, width=budget.width, depth=budget.depth)
    both = by_network(
        draw,
        key,
        budget,
        fn=layers.activations,
        shape=(budget.width,),
        num_samples=max(budget.num_samples // 20, 1000),
        batch_size=64,
    )
    halved = both[:, 0] / 2.0 ** np.arange(budget.depth)
    normalized = [START]
    for _ in range(budget.depth):
        normalized.append(float(2 * theory.relu_stability(normalized[-1])))
    depth = {"num_layers": budget.depth}
    linear = theory.linear_recurrence(START, **depth)
    return [
        by_layer("depth", "Eq. 5", halved, theory.transformer_recurrence(START, **depth)),
        by_layer("depth", "linear part of Eq. 5", halved, linear),
        by_layer("depth", "correlation, Theorem 5.1", both[:, 0] / both[:, 1], normalized),
    ]


TRANSFORMERS = {
    "Eq. 8, γ = 1": (True, 1.0),
    "Eq. 8, γ = 0.5": (True, 0.5),
    "with s(ρ), γ = 1": (False, 1.0),
}


def transformers(key: jax.Array, budget: Budget) -> list[pd.DataFrame]:
    """Stability by depth in random transformers, with Eq. 8 and with s(ρ) in it (Figure 10).

    As in Appendix H: W_Q W_K = I, columns of W_V of norm γ, no residuals. Unstructured scores are
    compared with hopfax's variant of Eq. 8. The correlations are of the same networks.
    """
    tokens, tables = budget.tokens[-1], []
    for name, (structured, gamma) in TRANSFORMERS.items():
        sizes = {"width": budget.width, "depth": budget.depth, "value_norm": gamma}
        both = by_network(
            partial(layers.random_transformer, structured=structured, **sizes),
            key,
            budget,
            fn=layers.transformer,
            shape=(tokens, budget.width),
            # A pair gives one product for each token and output.
            num_samples=max(budget.num_samples // 4000, 32),
            batch_size=16,
        )
        formula = theory.transformer_recurrence(
            START,
            num_layers=budget.depth,
            value_norm=gamma,
            num_tokens=None if structured else tokens,
        )
        tables.append(by_layer("transformer", name, both[:, 0], formula))
        tables.append(by_layer("correlation", name, both[:, 0] / both[:, 1]))
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


def by_layer(claim: str, name: str, by_network: np.ndarray, formula: Any = None) -> pd.DataFrame:
    """A row a layer, with the error over networks; `formula` begins with the input's."""
    depth = np.arange(1, by_network.shape[1] + 1)
    error = by_network.std(axis=0, ddof=1) / len(by_network) ** 0.5
    ends = {} if formula is None else {"formula": formula[1:]}
    mean, count = by_network.mean(axis=0), len(by_network)
    return rows(claim, name, depth, mean, error, num_examples=count, **ends)


def attention(key: jax.Array, budget: Budget) -> list[pd.DataFrame]:
    """Theorems 5.2 and 5.3, with weights drawn anew for every pair (Figure 2)."""
    rhos, tokens = jnp.array([rho for rho in RHOS if rho > 0]), budget.tokens[-1]
    # Name, tokens, rows of W, formula.
    cases: list[tuple[str, int, int, Any]] = [
        (
            f"Theorem 5.3, unstructured, {count} tokens",
            count,
            budget.width,
            jax.jit(partial(theory.attention_stability, num_tokens=count))(rhos),
        )
        for count in budget.tokens
    ]
    cases.append((f"Theorem 5.2, identity, {tokens} tokens", tokens, 0, rhos))
    tables = []
    for number, (name, tokens, rows_of_w, formula) in enumerate(cases):
        measured = estimate(
            partial(layers.attention, tokens),
            jax.random.fold_in(key, number),
            shape=(tokens + rows_of_w + 1, budget.width),
            rho=rhos,
            # Every pair draws its own weights, which costs time: fewer pairs.
            num_samples=budget.num_samples // 2,
            pair=layers.attention_pair(tokens, budget.width),
            batch_size=32,
        )
        tables.append(rows("attention", name, rhos, *measured, formula=formula))
    return tables


def maps(key: jax.Array, budget: Budget) -> list[pd.DataFrame]:
    """Attention maps A_X and A_Y of one pair of inputs, two kinds of scores (Figure 3)."""

    @jax.jit
    def attention_maps(key: jax.Array) -> list[jax.Array]:
        for_pair, for_scores = jax.random.split(key)
        pair = gaussian_pair(for_pair, (MAP_TOKENS, budget.width), rho=MAP_RHO)
        unstructured = jax.random.normal(for_scores, (budget.width, budget.width))
        scores = jnp.eye(budget.width), unstructured
        return [layers.attention_map(inputs, w) for w in scores for inputs in pair]

    names = ("identity, A_X", "identity, A_Y", "unstructured, A_X", "unstructured, A_Y")
    return [
        rows("maps", f"{name}, query {query}", np.arange(MAP_TOKENS), weights)
        for name, queries in zip(names, attention_maps(key), strict=True)
        for query, weights in enumerate(np.asarray(queries))
    ]


def lemma_11(key: jax.Array, budget: Budget) -> list[pd.DataFrame]:
    """A ReLU unit under Bonami-Beckner Gaussian processes."""
    rhos = jnp.array([0.0, 0.25, 0.5, 0.75, 1.0])
    mean, error = estimate(
        jax.nn.relu,
        key,
        shape=(len(PROCESSES),),
        rho=rhos,
        num_samples=budget.num_samples,
        pair=layers.process_pair(*jnp.array(PROCESSES).T),
        per_output=True,
    )
    return [
        rows(
            "lemma 11",
            f"μ = {mu:g}, σ = {sigma:g}, α = {alpha:g}",
            rhos,
            mean[:, place],
            error[:, place],
            formula=theory.relu_process_stability(rhos, mean=mu, std=sigma, scale=alpha),
        )
        for place, (mu, sigma, alpha) in enumerate(PROCESSES)
    ]


def lemma_12(key: jax.Array, budget: Budget) -> list[pd.DataFrame]:
    """An attention layer with bounded inputs, and the form of Lemma 12 derived here.

    Entries are uniform on [-B, B], each kept with probability 1/2, else drawn anew. Everything is
    divided by B².
    """
    for_scores, for_values, for_pairs, for_parts = jax.random.split(key, 4)
    shape = BOUND_TOKENS, BOUND_WIDTH
    w = jax.random.uniform(for_scores, (BOUND_WIDTH, BOUND_WIDTH), minval=-1)
    v = jax.random.normal(for_values, (BOUND_WIDTH,))
    bounds = jnp.array(BOUNDS)

    def layer(x: jax.Array) -> jax.Array:
        return jax.vmap(lambda bound: (layers.attention_map(bound * x, w) @ (x @ v))[0])(bounds)

    @jax.jit
    def parts(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        count = min(budget.num_samples, 100_000)
        first, second = layers.uniform_pair(key, (count, *shape), rho=0.5)
        products = jnp.einsum("si,sj->sij", first @ v, second @ v)
        positive, negative = jnp.maximum(products, 0), jnp.maximum(-products, 0)
        return jnp.sum(jnp.mean(positive, axis=0)), jnp.sum(jnp.mean(negative, axis=0))

    measured = estimate(
        layer,
        for_pairs,
        shape=shape,
        rho=0.5,
        num_samples=budget.num_samples,
        pair=layers.uniform_pair,
        per_output=True,
    )
    positive, negative = map(float, parts(for_parts))
    ends = [
        theory.attention_interval(
            positive,
            negative,
            num_tokens=BOUND_TOKENS,
            width=BOUND_WIDTH,
            bound=bound,
            weight_bound=float(jnp.abs(w).max()),
        )
        for bound in BOUNDS
    ]
    low, high = np.asarray(ends, float).T
    return [rows("lemma 12", "measured", BOUNDS, *measured, low=low, high=high)]


def intervals(key: jax.Array, budget: Budget) -> list[pd.DataFrame]:
    """Where functions lie between the bounds that their first two moments imply.

    Common units, and a network of ten inputs before and after training.
    """
    for_units, for_networks, for_inputs, for_pairs = jax.random.split(key, 4)
    both = networks(for_networks, budget.steps)
    # Moments are means over weighted points; those of units are exact but for rounding.
    nodes, lengths = np.polynomial.legendre.leggauss(200)
    points = np.concatenate([6 * (nodes - 1), 6 * (nodes + 1)])
    density = np.exp(-(points**2) / 2) / np.sqrt(2 * np.pi)
    normal = np.asarray(jax.random.normal(for_inputs, (budget.num_samples, INPUTS)))
    equal = np.full(len(normal), 1 / len(normal))
    cases: list[tuple[Any, Any, Any, Any, Any]] = [
        (
            lambda x: jnp.stack([unit(x[0]) for unit in UNITS.values()]),
            for_units,
            tuple(UNITS),
            points[:, None],
            6 * np.tile(lengths, 2) * density,
        ),
        (
            lambda x: jnp.stack([layers.mlp(each, x) for each in both]),
            for_pairs,
            ("network, fresh", "network, trained"),
            normal,
            equal,
        ),
    ]
    tables = []
    for fn, key, names, points, weights in cases:
        values = jax.jit(partial(jax.lax.map, fn, batch_size=1024))(jnp.asarray(points))
        mean, error = estimate(
            fn,
            key,
            shape=points.shape[1:],
            rho=jnp.array(RHOS),
            num_samples=budget.num_samples,
            per_output=True,
        )
        for number, (name, own) in enumerate(zip(names, np.asarray(values, float).T, strict=True)):
            moments = {"mean": float(weights @ own), "second_moment": float(weights @ own**2)}
            low, high = theory.moment_interval(jnp.array(RHOS), **moments)
            measured = mean[:, number], error[:, number]
            tables.append(rows("interval", name, RHOS, *measured, low=low, high=high))
    return tables


@partial(jax.jit, static_argnames="steps")
def networks(key: jax.Array, steps: int) -> tuple[layers.Weights, layers.Weights]:
    """A network of ten inputs, and the same trained on the parity of two of their signs."""
    params = layers.init_mlp(key, (INPUTS, 64, 64, 1))
    for_inputs = jax.random.fold_in(key, 1)
    trained = layers.train_mlp(params, for_inputs, lambda x: jnp.sign(x[0] * x[1]), steps=steps)
    return params, trained


def trained(key: jax.Array, budget: Budget) -> list[pd.DataFrame]:
    """Level weights of a network before and after it has learned a parity of two signs."""
    both, tables = networks(key, budget.steps), []
    for number, (name, params) in enumerate(zip(("fresh", "trained"), both, strict=True)):
        levels = level_weights(
            partial(layers.mlp, params),
            jax.random.fold_in(key, number),
            shape=(INPUTS,),
            num_samples=max(budget.num_samples // 10, 128),
        )
        value, low, high = np.asarray(levels.shares)
        numbers = np.arange(1, len(value) + 1)
        tables.append(rows("levels", name, numbers, value, low=low, high=high))
    return tables


def estimators(key: jax.Array, budget: Budget) -> list[pd.DataFrame]:
    """Variance of `noise_stability` with arcs relative to pairs, at equal evaluations.

    Above 1, pairs are better. Each ρ is estimated separately, because pairs for several ρ share
    the evaluation of their first point.
    """
    _, fitted = networks(key, budget.steps)
    weights = layers.random_network(key, width=64, depth=1)
    tokens, width = 8, 16
    matrix, value = (
        jax.random.normal(jax.random.fold_in(key, number), (width, width)) for number in range(2)
    )

    def head(x: jax.Array) -> jax.Array:
        scores = x @ matrix @ x.T / width
        return jax.nn.softmax(scores) @ x @ value / width**0.5

    functions = {
        "ReLU layer": (partial(layers.activations, weights), (64,)),
        "attention layer": (head, (tokens, width)),
        "trained network": (partial(layers.mlp, fitted), (INPUTS,)),
    }
    keys = jax.vmap(partial(jax.random.fold_in, key))(7 + jnp.arange(REPEATS))
    evaluations = 2 * max(budget.num_samples // (5 * REPEATS), 250)
    tables = []
    for name, (fn, shape) in list(functions.items())[: budget.functions]:

        def variance(key: jax.Array, rho: float, points: int, fn: Any = fn, shape: Any = shape):
            estimate = noise_stability(
                fn,
                key,
                shape=shape,
                rho=rho,
                num_samples=evaluations // points,
                arc_points=points,
                batch_size=128,
            )
            return estimate.standard_error**2

        compiled = jax.jit(jax.vmap(variance, (0, None, None)), static_argnums=2)
        for rho in (0.1, 0.5, 0.9):
            pairs = compiled(keys, rho, 2)
            for points in budget.arc_points:
                ratios = np.asarray(compiled(keys, rho, points) / pairs)
                error = ratios.std(ddof=1) / REPEATS**0.5
                title = f"{name}, {points} points"
                tables.append(
                    rows("estimators", title, [rho], [ratios.mean()], error, num_examples=REPEATS)
                )
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
    "a trained network": (trained, 4),
    "estimators at equal cost": (estimators, 5),
}


def page(folder: Path) -> report.Page:
    """The page of a run or of published results."""
    table = pd.read_csv(folder / "results.csv")
    off, (held, total) = distances(table), closed_forms(table)
    deep = tidy.select(table, task="depth", model="Eq. 5")
    deepest = deep.sort_values("level").iloc[-1]
    in_errors = [f"{errors:.1f}" if errors <= 100 else "over 100" for errors in off.errors]
    formulas = off.model.replace(TITLES)
    beyond = [f"{row.beyond} of {row.points}" for _, row in off.iterrows()]
    absolute = off.distance.map("{:.4f}".format)
    lines = zip(off.task, formulas, absolute, in_errors, beyond, strict=True)
    return report.Page(
        title="Layers against the theorems of the noise-stability paper",
        answer=(
            f"**Theorems 5.1 to 5.3 hold on {held} of {total} curves: all points are {AGREEMENT} "
            "of the formula.** In deep networks, Eq. 5 and Eq. 8 do not hold: at layer "
            f"{deepest.level:g}, Eq. 5 predicts a stability of {deepest.formula:.2f}, but we "
            f"measure {deepest.score:.2g}."
        ),
        pictures={
            picture: report.panels(
                f"Measured stability (points) and formulas (lines): {title}",
                drawn(table),
                specs={name: PANELS[name] for name in PANELS if (name in OURS) == (title == OWN)},
                col="task",
                x="level",
                hue="model",
            )
            for picture, title in (("theory", "figures of the paper"), ("theory_more", OWN))
        },
        tables=[
            report.Table(
                ("experiment", "formula", "largest error", "in standard errors", "disagree"),
                list(lines),
                "Largest distance of a measurement from each formula; points that disagree: not "
                f"{AGREEMENT}.",
            )
        ],
        notes=[
            "Points are measured, with 95 % intervals; lines are formulas.",
            "Eq. 5 and Eq. 8 treat unnormalized stability as a correlation; the rising curve in "
            "Figure 4 is the correlation.",
            "The quadratic approximation of Theorem 5.1 is not exact, so its distance does not "
            "contradict the theorem.",
            "Theorem 5.3 is the limit of wide layers. A query prefers tokens with a larger norm: "
            "at width d the stability is higher by up to about (E[M²] − 1) / d, where M is the "
            "largest of as many standard normal numbers as tokens (0.01 for 16 tokens and "
            "d = 256).",
            "The curve with s(ρ) is hopfax's variant of Eq. 8 for unstructured scores.",
            "Moment bounds: the least and the greatest stability of functions with the same mean "
            "and second moment.",
            "A_X: attention of the clean input; A_Y: of the noisy input; at equal heights, noise "
            "does not change the key with the most weight. B: bound on the inputs' entries.",
            "The points of a curve share their draws, so their errors are correlated.",
            "Arcs: `noise_stability` with 4 or 8 `arc_points` instead of pairs. A ratio below 1 "
            "favors arcs; which are better depends on the function and on ρ.",
        ],
    )


def distances(table: pd.DataFrame) -> pd.DataFrame:
    """Largest `distance` of a measurement from each formula, largest in standard `errors`.

    `beyond` counts the points that disagree with it, of `points`.
    """
    compared = table[table.formula.notna()]
    distance = (compared.score - compared.formula).abs()
    errors = (distance / compared.standard_error).where(distance != 0, 0)
    beyond = ~((errors < WITHIN) | (distance < CLOSE * compared.formula.abs()))
    groups = compared.assign(distance=distance, errors=errors, beyond=beyond).groupby(
        ["task", "model"], sort=False, as_index=False
    )
    return groups.agg(
        distance=("distance", "max"), errors=("errors", "max"), beyond=("beyond", "sum"),
        points=("beyond", "size"),
    )  # fmt: skip


def closed_forms(table: pd.DataFrame) -> tuple[int, int]:
    """How many closed forms of the theorems hold, and how many there are."""
    off = distances(table)
    held = off.beyond[off.model.str.contains("Theorem")] == 0
    return int(held.sum()), len(held)


def drawn(table: pd.DataFrame) -> pd.DataFrame:
    """What the panels show: `mean`, `low` and `high` of points, `formula` of lines."""
    table = table.rename(columns={"score": "mean"})
    factor = stdtrit(table.num_examples.fillna(np.inf) - 1, 0.975)
    bounds, half = table[["low", "high"]].copy(), factor * table.standard_error
    ends = pd.DataFrame({"low": table["mean"] - half, "high": table["mean"] + half})
    table[["low", "high"]] = ends.where(table.task != "levels", bounds)
    width = bounds.high - bounds.low
    place = ((table["mean"] - bounds.low) / width).where(width > 1e-9)
    table["mean"] = table["mean"].where(table.task != "interval", place)
    table.loc[table.task == "interval", ["low", "high"]] = np.nan
    lemma, maps = table[table.task == "lemma 12"], table[table.task == "maps"]
    lines = [
        lemma.assign(mean=np.nan, model=f"{name} bound", formula=bounds[end])
        for name, end in (("lower", "low"), ("upper", "high"))
    ]
    # Two formulas of one measurement: its points once.
    repeated = table.formula.notna() & table.duplicated(["task", "level", "mean"], keep=False)
    once = table[repeated].drop_duplicates(["task", "level"]).assign(model="measured", formula=None)
    table.loc[repeated, ["mean", "low", "high"]] = np.nan
    # Of an attention map, every query's key with the most weight; A_Y beside A_X.
    most = maps.loc[maps.groupby("model", sort=False)["mean"].idxmax().to_numpy()]
    names = most.model.str.rsplit(", query ", n=1, expand=True)
    queries = names[1].astype(float) + 0.25 * names[0].str.endswith("A_Y")
    most = most.assign(mean=most.level, level=queries, model=names[0], low=np.nan, high=np.nan)
    table = pd.concat([table[table.task != "maps"], most, once, *lines])
    return table.assign(model=table.model.replace(TITLES))
