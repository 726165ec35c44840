"""Do the paper's formulas for layers hold, and how tight are its bounds?

Paper: Haris, Zhang and Yoshida (2026), Theorems 5.1 to 5.3, Eq. 5 and 8, Lemmas 11 and 12; Figures
2 (attention), 3 (attention maps), 4 (deep MLP), 9 (quadratic approximation) and 10 (transformer).
Claims: a ReLU layer has a closed form; attention with identity scores keeps the correlation, with
unstructured scores multiplies it by the chance that a token attends to the same one under noise;
through ReLU layers stability settles near 2/(3π), through a transformer with γ < 1 it vanishes.

Command: `python -m experiments theory` (minutes on two cores), `--budget smoke` (seconds) or
`--budget paper` (a million pairs an estimate). `--pretrained FOLDER` adds intervals of a model.

Expected: Theorems 5.1 to 5.3 and Lemma 11 within their error bars. Eq. 5 and 8 take an
un-normalized stability for a correlation: in deep networks the un-normalized stability vanishes
and the correlation rises towards 1 instead. W = UUᵀ must have a rank well above log(tokens).

Rules: a point agrees with a formula, or is in an interval, within 3 standard errors or 2 %. Other
claims have `tidy.verdict`: Figure 10's dampening is as weak as the paper says if the last layer has
half of Eq. 8's stability or more, and errors fall with width d if their exponent is below -1/4.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from scipy.special import stdtrit

from experiments import report, runner, tidy
from experiments.figures import Panel
from experiments.models import load, weights_digest
from experiments.noise_stability import layers
from experiments.settings import Run, budget_of, by_budget, optional
from hopfax.stability import noise_stability
from hopfax.stability import theory as formulas

REPRODUCES = "Noise stability, Figures 2, 3, 4, 9, 10: layers against their theorems"

RHOS = (-0.9, -0.5, 0.0, 0.25, 0.5, 0.75, 0.9, 0.99)
START = 0.5  # correlation of deep networks' inputs
MAP_WIDTH, MAP_PAIRS = 128, 500  # of heat maps, as in the paper; to count equal keys in
RANKS = (8, 32)  # of W = UUᵀ
WIDTHS, ROUNDING = (16, 32, 64, 128, 256, 512), 1e-6  # the least error that is seen
PROCESSES = ((0.0, 1.0, 1.0), (1.0, 1.0, 0.5), (-1.0, 2.0, 1.5))  # μ, σ, α
BOUNDS = (0.05, 0.1, 0.15, 0.2, 0.25)  # of the inputs' entries
BOUND_TOKENS, BOUND_WIDTH = 4, 2
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


BUDGETS = {
    "smoke": Budget(2_000, 2, 32, 3, tokens=(4,)),
    "laptop": Budget(50_000, 5, 128, 10),
    "paper": Budget(1_000_000, 20, 256, 10),
}
CLAIMED = ["stability kept, %", "exponent of d in the error", "equal keys, %"]
WITHIN, CLOSE = 3, 0.02  # standard errors, or share of the formula, that count as agreement
# By claim, the paper's figures first.
PANELS = {
    "attention": Panel("Figure 2: single-layer attention", "ρ", "stability"),
    "maps": Panel("Figure 3: attention, ρ = 0.01", "query", "key of most weight", connected=False),
    "depth": Panel("Figure 4: deep ReLU MLP from ρ = 0.5", "layer", "stability, correlation"),
    "relu": Panel("Figure 9: ReLU and its approximation", "ρ", "stability"),
    "transformer": Panel("Figure 10: transformer from ρ = 0.5", "layer", "stability", log=True),
    "lemma 11": Panel("Lemma 11, ReLU", "ρ (probability)", "stability"),
    "lemma 12": Panel("attention: bounds of the form of Lemma 12", "B", "stability / B²"),
    "low rank": Panel("attention, W = UUᵀ of rank k", "ρ", "stability"),
}


@dataclass(frozen=True, kw_only=True)
class Config(Run):
    """Settings of the experiment."""

    num_samples: Annotated[int | None, by_budget("num_samples", "INT", BUDGETS)] = None
    """Pairs an estimate, at least 1000."""
    networks: Annotated[int | None, by_budget("networks", "INT", BUDGETS)] = None
    """Random networks, for error bars over their weights; at least 2."""
    pretrained: Annotated[str | None, optional("FOLDER", "none")] = None
    """Folder of a pretrained model, to measure intervals on."""
    seed: int = 0
    """Seed of all draws."""


def run(config: Config) -> Path:
    """Measures everything and writes the page; a flag out of range is a ValueError."""
    budget, parts, plan = budget_of(config, BUDGETS), dict(PARTS), {}
    if config.pretrained:
        parts["layers of a model"] = partial(pretrained, config.pretrained), 5
        plan["weights"] = weights_digest(config.pretrained)
    keys = jax.random.split(jax.random.key(config.seed), 10)

    def measure(part: Any, place: int, _: Any) -> dict[str, pd.DataFrame]:
        return {"results": pd.concat(part(keys[place], budget))}

    jobs = [runner.Job(title, partial(measure, *each)) for title, each in parts.items()]
    return runner.fill("theory", config, jobs, page, plan=budget._asdict() | plan)


def page(folder: Path) -> report.Page:
    """The page of a run: points are measured, lines are formulas."""
    table = pd.read_csv(folder / "results.csv")
    lines = [
        [name, formula, f"{distance:.4f}", f"{errors:.1f}", f"{beyond} of {points}"]
        for _, (name, formula, distance, errors, beyond, points) in distances(table).iterrows()
    ]
    heads = ["experiment", "formula", "largest error", "in standard errors", "disagree"]
    picture = report.panels(
        "Measured (points) and formulas (lines)", drawn(table), specs=PANELS,
        col="task", x="level", hue="model",
    )  # fmt: skip
    weights = tidy.select(table, task="map weights")
    heat = report.Picture(partial(heat_maps, weights), "Figure 3: weights of keys, by query")
    bounds = tidy.select(table, task="intervals").rename(columns={"score": "mean"})
    cell = partial(report.bracketed, digits=3)
    tables = [
        report.verdicts(claims(table)),
        report.Table(heads, lines, "Largest distances from each formula or interval"),
        report.grid(bounds, "level", "model", "Stability by layer [interval]", cell=cell),
    ]
    title = "Layers against the theorems of the paper"
    return report.Page(title, pictures={"theory": picture, "maps": heat}, tables=tables)


def heat_maps(weights: pd.DataFrame) -> Any:
    """Attention maps of one pair of inputs."""
    from matplotlib.figure import Figure

    figure, maps = Figure((10.4, 3), layout="constrained"), weights.groupby("model", sort=False)
    for axes, (name, each) in zip(figure.subplots(1, len(maps)), maps, strict=True):
        axes.imshow(np.reshape(each.score, (-1, layers.MAP_TOKENS)), cmap="Blues", vmin=0, vmax=1)
        axes.set(title=name, xlabel="key", ylabel="query")
    return figure


def claims(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of `tidy.CLAIMS`."""
    table = tidy.select(drawn(table), task=CLAIMED)
    verdicts = [*map(tidy.verdict, table.low, table.high, table.formula)]
    names = {"model": "subject", "task": "claim", "formula": "paper"}
    return table.assign(verdict=verdicts).rename(columns=names)[list(tidy.CLAIMS)]


def distances(table: pd.DataFrame) -> pd.DataFrame:
    """Largest `distance` of a measurement from each formula, largest in standard `errors`.

    `beyond` counts the points that disagree with it, of `points`.
    """
    # Of an interval, the nearest number.
    near = table.score.clip(table.low, table.high).where(table.low.notna())
    compared = table.assign(formula=table.formula.fillna(near))[~table.task.isin(CLAIMED)]
    compared = compared.dropna(subset="formula")
    distance = (compared.score - compared.formula).abs()
    errors = (distance / compared.standard_error).where(distance != 0, 0)
    beyond = ~((errors < WITHIN) | (distance < CLOSE * compared.formula.abs()))
    compared = compared.assign(distance=distance, errors=errors, beyond=beyond, points=1)
    groups = compared.groupby(["task", "model"], sort=False, as_index=False)
    return groups.agg({"distance": "max", "errors": "max", "beyond": "sum", "points": "sum"})


def drawn(table: pd.DataFrame) -> pd.DataFrame:
    """What the panels show: `mean`, `low` and `high` of points, `formula` of lines."""
    half = stdtrit(table.num_examples.fillna(np.inf) - 1, 0.975) * table.standard_error
    ends = {"low": table.score - half, "high": table.score + half}
    points = table.assign(mean=table.score, **ends)
    lemma = table[table.task == "lemma 12"]
    lines = [
        lemma.assign(mean=np.nan, model=f"{name} bound", formula=lemma[end])
        for name, end in (("lower", "low"), ("upper", "high"))
    ]
    # Two formulas of one measurement: its points once.
    repeated = points.formula.notna() & points.duplicated(["task", "level", "mean"], keep=False)
    once = points[repeated].drop_duplicates(["task", "level", "mean"])
    points.loc[repeated, ["mean", *ends]] = np.nan
    return pd.concat([points, once.assign(model="measured", formula=np.nan), *lines])


def rows(claim: str, name: str, x: Any, value: Any, error: Any = 0.0, **ends: Any) -> pd.DataFrame:
    """Rows of results.csv of a claim and a formula or function, one for each value of `x`.

    `ends` are `formula`, the formula's numbers, bounds `low` and `high`, and `num_examples`, the
    number of repetitions behind the standard error, where these are few.
    """
    ends = dict.fromkeys(("num_examples", "formula", "low", "high"), np.nan) | ends
    columns = {"level": x, "score": value, "standard_error": error, **ends}
    table = pd.DataFrame({name: np.asarray(each, float) for name, each in columns.items()})
    return table.assign(
        task=claim, model=name, corruption="correlated pair", site="input", metric="value"
    )


def relu_unit(key: jax.Array, budget: Budget) -> Tables:
    """Theorem 5.1 and its quadratic approximation (Figure 9)."""
    rhos, size = jnp.array(RHOS), budget.num_samples
    measured = noise_stability(jax.nn.relu, key, shape=(1,), rho=rhos, num_samples=size)[:2]
    quadratic = formulas.relu_stability_quadratic(rhos)
    return [
        rows("relu", "Theorem 5.1", rhos, *measured, formula=formulas.relu_stability(rhos)),
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
    sizes = {"num_layers": budget.depth, "num_tokens": 1}
    _, high = formulas.propagate_interval((START, START), **sizes)
    full = formulas.transformer_recurrence(START, num_layers=budget.depth)
    linear = formulas.linear_recurrence(START, num_layers=budget.depth)
    return [
        by_layer("depth", "Eq. 5", halved, formula=full[1:]),
        by_layer("depth", "linear part of Eq. 5", halved, formula=linear[1:]),
        by_layer("depth", "correlation, Theorem 5.1", both[:, 0] / both[:, 1], formula=high[1:]),
    ]


def transformers(key: jax.Array, budget: Budget) -> Tables:
    """Stability by depth in random transformers, with Eq. 8 and with s(ρ) in it (Figure 10).

    As in Appendix H: W_Q W_K = I, columns of W_V of norm γ, no residuals. Unstructured scores are
    compared with hopfax's variant of Eq. 8. Intervals are of the stability times (2/γ²)^l.
    """
    tokens, tables = budget.tokens[-1], []
    # A pair gives one product for each token and output.
    samples = {"num_samples": max(budget.num_samples // 4000, 32), "batch_size": 16}
    shape, sizes = (tokens, budget.width), {"width": budget.width, "depth": budget.depth}
    low, high = formulas.propagate_interval((0, START), num_layers=budget.depth, num_tokens=tokens)
    for name, (identity, norm) in TRANSFORMERS.items():
        draw = partial(layers.random_transformer, structured=identity, value_norm=norm, **sizes)
        both = by_network(draw, key, budget, fn=layers.transformer, shape=shape, **samples)
        own: Any = {"value_norm": norm, "num_tokens": None if identity else tokens}
        formula = formulas.transformer_recurrence(START, num_layers=budget.depth, **own)
        tables.append(by_layer("transformer", name, both[:, 0], formula=formula[1:]))
        scaled = both[:, 0] * (2 / norm**2) ** np.arange(1, budget.depth + 1)
        tables.append(by_layer("intervals", name, scaled, low=low[1:], high=high[1:]))
        kept, expected = both[:, 0, -1:] * (100 / START), formula[-1:] * (100 / START)
        tables.append(by_layer(CLAIMED[0], f"Figure 10, {name}", kept, formula=expected))
    return tables


def pretrained(folder: str, key: jax.Array, budget: Budget) -> Tables:
    """Correlation after every layer of a model, at Gaussian embeddings of the model's size.

    Bounds are `moment_interval` of the input's correlation, or, without the mean and as if states
    were Gaussian, of that in the layer before.
    """
    model = load(folder)
    scale, shape = float(model.table.std()), (budget.tokens[-1], model.table.shape[1])
    samples = {"num_samples": max(budget.num_samples // 4000, 32), "batch_size": 16}
    samples |= {"shape": shape, "rhos": (START, 1.0, 0.0)}

    def states(params: Any, x: jax.Array) -> jax.Array:
        mask = jnp.ones((1, len(x)), bool)
        return model.forward(scale * x[None], mask, params=params).hidden_states[:, 0]

    moments = by_network(lambda _: model.params, key, budget, fn=states, **samples)
    stable, second, squared = moments.transpose(1, 0, 2)
    share = np.clip(squared / second, 0, 0.999)  # sampling errors go beyond
    rest = np.clip((stable / second - share) / (1 - share), -1, 1)
    tables = []
    for start, rho in (("the input", START), ("the layer before", rest[:, :-1])):
        ends = formulas.moment_interval(rho, mean=share[:, 1:] ** 0.5, second_moment=1.0)
        low, high = (end.mean(axis=0) for end in ends)
        name = f"{Path(folder).name}, from {start}"
        tables.append(by_layer("intervals", name, (stable / second)[:, 1:], low=low, high=high))
    return tables


def by_network(draw: Any, key: jax.Array, budget: Budget, **settings: Any) -> np.ndarray:
    """Moments of every layer of random networks: (networks, correlations, layers)."""
    for_weights, for_pairs = jax.random.split(key)
    moments = [
        layer_moments(draw(one), jax.random.fold_in(for_pairs, number), **settings)
        for number, one in enumerate(jax.random.split(for_weights, budget.networks))
    ]
    return np.asarray(moments, float)


@partial(jax.jit, static_argnames=("fn", "shape", "num_samples", "batch_size", "rhos"))
def layer_moments(
    weights: Any, key: jax.Array, *, fn: Any, rhos: Any = (START, 1.0), **settings: Any
) -> jax.Array:
    """Means over outputs, of `fn(weights, x)` with a leading axis of layers: (rhos, layers)."""
    fn, rho = partial(fn, weights), jnp.array(rhos)
    mean = noise_stability(fn, key, rho=rho, per_output=True, **settings).mean
    return jnp.mean(mean, axis=tuple(range(2, mean.ndim)))


def by_layer(claim: str, name: str, by_network: np.ndarray, **ends: Any) -> pd.DataFrame:
    """A row a layer, with the error over networks."""
    count, mean = len(by_network), by_network.mean(axis=0)
    error = by_network.std(axis=0, ddof=1) / count**0.5
    return rows(claim, name, 1 + np.arange(mean.size), mean, error, num_examples=count, **ends)


def attention(key: jax.Array, budget: Budget) -> Tables:
    """Theorems 5.2, for W = I and UUᵀ, and 5.3, with weights drawn for every pair (Figure 2)."""
    rhos, width = jnp.array([rho for rho in RHOS if rho > 0]), budget.width
    # Every pair draws its own weights, which costs time: fewer pairs.
    samples: Any = {"num_samples": budget.num_samples // 2, "batch_size": 32}
    # Name, tokens, rows of W or columns of U.
    cases = [
        (f"Theorem 5.3, unstructured, {count} tokens", count, width) for count in budget.tokens
    ]
    last, tables = budget.tokens[-1], []
    cases.append((f"Theorem 5.2, identity, {last} tokens", last, 0))
    cases += [(f"Theorem 5.2, k = {k}", last, k) for k in RANKS]
    for number, (name, tokens, rows_of_w) in enumerate(cases):
        low_rank, own = "k =" in name, jax.random.fold_in(key, number)
        layer = partial(layers.attention, tokens, low_rank=low_rank)
        shape, pair = (tokens + rows_of_w + 1, width), layers.attention_pair(tokens, width)
        measured = noise_stability(layer, own, shape=shape, rho=rhos, pair=pair, **samples)[:2]
        formula = rhos if "5.2" in name else formulas.attention_stability(rhos, num_tokens=tokens)
        claim = "low rank" if low_rank else "attention"
        tables.append(rows(claim, name, rhos, *measured, formula=formula))
        if low_rank:  # the best line through zero
            slope = rhos @ measured[0] / (rhos @ rhos)
            name = f"k = {rows_of_w}: {slope:.3f} ρ"
            tables.append(rows(claim, name, rhos, *measured, formula=slope * rhos))
    return tables


def widths(key: jax.Array, budget: Budget) -> Tables:
    """How far attention with identity scores is from Theorem 5.2 at width d.

    The input's correlation on the same draws is a control variate.
    """
    sizes, errors = [width for width in WIDTHS if width <= 4 * budget.width], []
    samples = {"num_samples": budget.num_samples // budget.networks // 4, "batch_size": 256}
    for width in sizes:
        shape = (budget.tokens[-1], width)
        both = by_network(lambda _: [], key, budget, fn=layers.attended, shape=shape, **samples)
        errors.append(both[:, 0, 0] - both[:, 0, 1])
    errors, name = np.stack(errors, axis=1), "Theorem 5.2, identity"
    table = by_layer("width", name, errors).assign(level=sizes)
    visible = np.log(np.maximum(np.abs(errors), ROUNDING))
    slopes = np.polyfit(np.log(sizes)[:3], visible[:, :3].T, 1)[:1].T
    return [table, by_layer(CLAIMED[1], name, slopes, formula=-0.5)]


def maps(key: jax.Array, budget: Budget) -> Tables:
    """The key with the most weight of every query, before and after noise (Figure 3).

    Attention maps A_X and A_Y of one pair of inputs, with two kinds of scores; then, at the paper's
    width, one pair's weights and how many queries of all pairs keep their key, in percent.
    """
    many = jax.random.split(jax.random.fold_in(key, 1), MAP_PAIRS)
    weights = np.asarray(jax.jit(jax.vmap(partial(layers.map_pair, width=MAP_WIDTH)))(many))
    keys = weights.argmax(axis=-1)
    own = layers.map_pair(key, width=budget.width).argmax(axis=-1)
    chance = float(formulas.attention_overlap(layers.MAP_RHO, num_tokens=layers.MAP_TOKENS))
    tables = []
    for place, (name, share) in enumerate({"identity": 1.0, "unstructured": chance}.items()):
        for at, side in enumerate(("A_X", "A_Y")):
            label, cells = f"{name}, {side}", weights[0, place, at].ravel()
            tables.append(rows("maps", label, np.arange(layers.MAP_TOKENS), own[place, at]))
            tables.append(rows("map weights", label, np.arange(cells.size), cells))
        kept = 100 * np.mean(keys[:, place, 0] == keys[:, place, 1], axis=1, keepdims=True)
        tables.append(by_layer(CLAIMED[2], f"Figure 3, {name}", kept, formula=100 * share))
    return tables


def lemma_11(key: jax.Array, budget: Budget) -> Tables:
    """A ReLU unit under Bonami-Beckner Gaussian processes."""
    rhos = jnp.array([0.0, 0.25, 0.5, 0.75, 1.0])
    settings: dict[str, Any] = {"num_samples": budget.num_samples, "per_output": True}
    pair, shape = layers.process_pair(*jnp.array(PROCESSES).T), (len(PROCESSES),)
    measured = noise_stability(jax.nn.relu, key, shape=shape, rho=rhos, pair=pair, **settings)[:2]
    tables = []
    for place, (mu, sigma, alpha) in enumerate(PROCESSES):
        formula = formulas.relu_process_stability(rhos, mean=mu, std=sigma, scale=alpha)
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
    measured = noise_stability(layer, for_pairs, shape=shape, rho=0.5, pair=pair, **settings)[:2]
    moments = [float(each) for each in parts(for_parts)]
    sizes: Any = {"num_tokens": BOUND_TOKENS, "width": BOUND_WIDTH, "weight_bound": abs(w).max()}
    ends = [formulas.attention_interval(*moments, bound=bound, **sizes) for bound in BOUNDS]
    low, high = np.asarray(ends, float).T
    return [rows("lemma 12", "measured", BOUNDS, *measured, low=low, high=high)]


# Part of the run -> function of a key and a budget that measures a claim, number of its key.
PARTS = {
    "single-layer attention": (attention, 2),
    "attention maps": (maps, 6),
    "attention by width": (widths, 4),
    "deep ReLU networks": (relu_depth, 1),
    "a ReLU unit": (relu_unit, 0),
    "deep transformers": (transformers, 7),
    "Lemma 11": (lemma_11, 8),
    "Lemma 12": (lemma_12, 9),
}
