"""Do concentrated keys make retrieval more exact, and its basins wider and better separated?

Paper: Podasca and Das (2026), Theorems 2 and 3, sections 2.2 and 2.3. Claims: a query at distance
δ from a pattern ends at most C r_eff δ from it, for a constant C and the keys' effective rank
r_eff; basin radii are proportional to λ₁/λ₂ of the keys' covariance, and the attractors of
low-rank keys are well separated; 2^(d/2) patterns can be stored.

Command: `python -m experiments attractors` (two minutes on two cores). With `--run
runs/robustness/ID --model robertha` also on the keys of a trained model.

Expected: no such C: retrieval ends at the attractor, whose distance from the pattern does not
depend on δ within the basin, and is larger at low rank. Wide basins are shared: at higher λ₁/λ₂,
fewer attractors are left, and the basins of patterns that keep their own are narrower.

Random keys are normal, with the spectrum of a power law or a spike. All keys are scaled to variance
1 (the trace of their covariance), trained ones per text, layer and head. βE is β times variance;
for trained keys, it is the model's mean. A basin's radius is the largest distance from which
queries in all of some random directions end where the pattern itself does.

Rules: `tidy.verdict` with 95 % intervals by resampling key sets (trained: heads of layers and
seeds, with all texts), of the exponent of δ in the mean distance (paper: 1), of Spearman's
correlations over key sets (paper: 1), and of the bits per coordinate of log₂ N (paper: 0.5). N is
the largest power of two of random patterns on a sphere of radius K √(d - 1) that are all retrieved,
at β = 1, from queries at a tenth of the radius; widths at which a set stores all are left out. The
bound of Ramsauer et al. (2021), Theorem 3, should be exceeded where it is 2 or more (all sets).
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array, Float
from scipy.special import lambertw
from scipy.stats import rankdata

from experiments import report, runner, tidy
from experiments.figures import Panel
from experiments.settings import Run, budget_of, by_budget, optional
from hopfax import hopfield

REPRODUCES = "Robertha, Theorems 2 and 3: attractors, basins and capacity"
NUM_KEYS, WIDTH = 16, 64
RANKS = np.arange(1, WIDTH + 1)
SPECTRA = {f"power {power:g}": RANKS**-power for power in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)}
SPECTRA |= {f"spike {size}": np.where(RANKS == 1, size, 1.0) for size in (4, 16, 64, 256)}
SHARPNESS = (16.0, 64.0)  # β times the variance
DELTAS = (0.01, 0.03, 0.1, 0.3, 1.0)
WITHIN, NEAR, FARTHEST = 0.1, 0.05, 8.0  # δ within basins, the same attractor, the widest basin
WIDTHS = {1: (8, 12, 16, 20), 3: (4, 6, 8, 10, 16, 20)}  # of the factor K
TEXTS = 8
RATIO = "log₂ λ₁/λ₂"
PANELS = {
    "distance": Panel("Theorem 2: smallest constant C", "log₂ δ", "C", log=True),
    "basin": Panel("Theorem 3: basins of all patterns", RATIO, "radius", connected=False),
    "own basin": Panel("Basins with one pattern", RATIO, "radius", connected=False),
    "attractors": Panel("Distinct attractors", RATIO, "share of patterns", connected=False),
    "patterns": Panel("Stored patterns N", "width d", "log₂ N", formula="Ramsauer's bound"),
}  # fmt: skip
# Claim -> column of the spectrum, metric and level that correlate.
PAIRS = {
    "distance grows with r_eff": ("effective_rank", "distance", WITHIN),
    "basins grow with λ₁/λ₂": ("ratio", "basin", 0.0),
    "own basins grow with λ₁/λ₂": ("ratio", "own basin", 0.0),
    "attractors grow with λ₁/λ₂": ("ratio", "attractors", 0.0),
}
Budget = namedtuple("Budget", "num_sets directions most")  # at most `most` patterns are stored
BUDGETS = {"smoke": Budget(3, 4, 32), "laptop": Budget(6, 16, 4096), "paper": Budget(30, 64, 16384)}


@dataclass(frozen=True, kw_only=True)
class Config(Run):
    """Settings of the experiment."""

    num_sets: Annotated[int | None, by_budget("num_sets", "INT", BUDGETS)] = None
    """Random key sets of each spectrum, at least 3."""
    run: Annotated[str | None, optional("FOLDER", "none: random keys only")] = None
    """Run with a trained model, whose keys are measured too."""
    model: Annotated[str | None, optional("NAME", "the run's only model")] = None
    """Model of the run."""
    task: Annotated[str | None, optional("NAME", "the run's only task")] = None
    """Task of the run."""


def run(config: Config) -> Path:
    """Measures everything and writes the page; a ValueError or an OSError names a wrong flag."""
    budget = budget_of(config, BUDGETS)
    if budget.num_sets < 3:
        raise ValueError(f"--num-sets must be at least 3, got {budget.num_sets}")
    names = np.repeat([*SPECTRA], budget.num_sets)
    normal = jax.random.normal(jax.random.key(0), (len(names), NUM_KEYS, WIDTH))
    keys = normal * np.sqrt([SPECTRA[name] for name in names])[:, None]
    parts = {f"random keys, βE = {each:g}": partial(rows, "random", names, None, keys, each, budget)
             for each in SHARPNESS}  # fmt: skip
    if config.run:
        parts["trained keys"] = partial(rows, *trained_keys(config), budget)
    parts |= {f"capacity, K = {scale}": partial(capacity, scale, budget) for scale in WIDTHS}
    measure = lambda part, _: {"results": part().round(6)}  # noqa: E731
    jobs = [runner.Job(title, partial(measure, part)) for title, part in parts.items()]
    return runner.fill("attractors", config, jobs, page, plan=budget._asdict())


def trained_keys(config: Config) -> tuple[str, np.ndarray, np.ndarray, Array, float]:
    """Task; layers, groups and keys of every seed, text and head; β times the mean variance."""
    cell, _ = runner.open_trained(str(config.run), model=config.model, task=config.task)
    data, attention = cell.data.test, cell.model.config.attention
    long = np.flatnonzero(data.lengths[:, 0] >= NUM_KEYS)[:TEXTS]
    if len(long) < 3:
        raise ValueError(f"--run requires 3 texts of {NUM_KEYS} tokens or more, got {len(long)}")
    ids = data.ids[long, 0]
    mask = np.arange(ids.shape[1]) < data.lengths[long]

    def of_seed(params: Any) -> Array:
        keys = cell.model.apply(params, ids, mask).encoding.keys[:, :, :NUM_KEYS]
        return keys.reshape(*keys.shape[:-1], attention["num_heads"], -1)

    keys = jnp.moveaxis(jax.lax.map(of_seed, cell.params), (1, 4), (0, 3))
    names = np.repeat([f"layer {n + 1}" for n in range(len(keys))], keys[0, ..., 0, 0].size)
    layers, seeds, texts, heads = keys.shape[:4]
    groups = np.arange(layers * seeds * heads).reshape(layers, seeds, 1, heads)
    groups, keys = groups.repeat(texts, axis=2).ravel(), keys.reshape(-1, *keys.shape[-2:])
    scale = keys.shape[-1] ** -0.5 if attention.get("scale_beta", True) else 1.0
    sharpness = scale * attention.get("beta", 1.0) * jnp.mean(jnp.var(keys, axis=-2).sum(-1))
    return cell.spec.task, names, groups, keys, float(sharpness)


def rows(
    task: str, names: Any, groups: Any, keys: Array, sharpness: float, budget: Budget
) -> pd.DataFrame:
    """Rows of results.csv of key sets, and the groups that intervals resample."""
    draws = jax.random.split(jax.random.key(1), len(keys))
    one = partial(measured, beta=sharpness, directions=budget.directions)
    by_set, by_delta = jax.tree.map(np.asarray, jax.lax.map(lambda pair: one(*pair), (keys, draws)))
    shared = {name: by_set.pop(name) for name in ("effective_rank", "ratio")}
    table = pd.DataFrame({"task": task, "model": names, "group": groups, **shared})
    table = table.assign(sharpness=sharpness, seed=table.index, corruption="shift", level=0.0)
    parts = [table.assign(metric=name, score=score) for name, score in by_set.items()]
    for place, delta in enumerate(DELTAS):
        columns = {name: each[:, place] for name, each in by_delta.items()}
        parts.append(table.assign(metric="distance", level=delta, **columns))
    return pd.concat(parts).dropna(subset="score")


def measured(keys: Array, key: Array, *, beta: float, directions: int) -> Any:
    """Of one key set: spectrum, basins and attractors; by δ, distances and their bound."""
    keys = keys / jnp.sqrt(jnp.sum(jnp.var(keys, axis=0)))
    shares, rank = hopfield.key_spectrum(keys), hopfield.effective_rank(keys)
    steps = jax.random.normal(key, (directions, *keys.shape))
    steps /= jnp.linalg.norm(steps, axis=2, keepdims=True)

    def end(query: Array) -> Array:
        return hopfield.retrieve(query, keys, beta=beta, tol=1e-5, max_steps=300).value

    def distances(radii: Array, targets: Array) -> Float[Array, "directions keys"]:
        ends = jax.vmap(jax.vmap(end))(keys + radii[:, None] * steps)
        return jnp.linalg.norm(ends - targets, axis=2)

    own = jax.vmap(end)(keys)
    same = jnp.linalg.norm(own[:, None] - own[None], axis=2) < NEAR

    def halve(_: int, limits: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = limits
        middle = (low + high) / 2
        returns = jnp.all(distances(middle, own) < NEAR, axis=0)
        return jnp.where(returns, middle, low), jnp.where(returns, high, middle)

    limits = jnp.zeros(len(keys)), jnp.full(len(keys), FARTHEST)
    radii = jax.lax.fori_loop(0, 10, halve, limits)[0]

    def shifted(delta: Array) -> dict[str, Array]:
        found = distances(jnp.full(len(keys), delta), keys)
        bound = hopfield.reconstruction_bound(keys, beta=beta, delta=delta)
        beyond = jnp.sum(found > 1.0001 * bound + 1e-4)  # rounding, and the tolerance of retrieval
        values = jnp.mean(found), jnp.max(found) / (rank * delta), jnp.mean(bound), beyond
        return dict(zip(("score", "constant", "bound", "violations"), values, strict=True))

    return {
        "effective_rank": rank,
        "ratio": shares[0] / shares[1],
        "basin": jnp.mean(radii),
        "own basin": jnp.mean(radii, where=jnp.sum(same, axis=1) == 1),
        "attractors": jnp.mean(jnp.argmax(same, axis=1) == jnp.arange(len(keys))),
    }, jax.lax.map(shifted, jnp.array(DELTAS))


def capacity(scale: int, budget: Budget) -> pd.DataFrame:
    """Rows of log₂ of the numbers of random patterns stored; `bound` is Ramsauer's."""
    found, widest = [], max(WIDTHS[scale])
    for width in WIDTHS[scale]:
        for seed in range(budget.num_sets):
            drawn = np.random.default_rng([seed, width]).normal(size=(2, budget.most, width))
            drawn *= scale * (width - 1) ** 0.5 / np.linalg.norm(drawn, axis=2, keepdims=True)
            # Zeros change nothing, and all widths share their compiled programs.
            patterns, noise = jnp.pad(drawn, ((0, 0), (0, 0), (0, widest - width)))
            bits = 1
            while 2**bits <= budget.most and stores(patterns[: 2**bits], noise[: 2**bits] / 10):
                bits += 1
            found.append((seed, width, bits - 1, log2_capacity(width, scale=scale)))
    table = pd.DataFrame(found, columns=["seed", "level", "score", "bound"])
    table = table.assign(model=f"K = {scale}", metric="patterns", num_examples=budget.most)
    return table.assign(task="sphere", corruption="shift")


@jax.jit
def stores(patterns: Array, noise: Array) -> Array:
    """Whether retrieval from every noisy pattern ends within the noise's norm of the pattern."""

    def returns(pattern_and_noise: tuple[Array, Array]) -> Array:
        pattern, shift = pattern_and_noise
        end = hopfield.retrieve(pattern + shift, patterns, beta=1.0).value
        return jnp.linalg.norm(end - pattern) < jnp.linalg.norm(shift)

    return jnp.all(jax.lax.map(returns, (patterns, noise), batch_size=256))


def log2_capacity(width: int, *, scale: float, beta: float = 1.0, failure: float = 0.001) -> float:
    """Theorem 3 of Ramsauer et al.: log₂ N of patterns stored with probability 1 - `failure`."""
    b = 2 / 5 * beta * scale**2
    a = 2 / (width - 1) * (1 + np.log(5 * b * failure * (width - 1)))
    c = b / lambertw(b * np.exp(a)).real
    return float(np.log2(failure) / 2 + (width - 1) / 4 * np.log2(c))


def claims(frame: pd.DataFrame) -> pd.DataFrame:
    """Verdicts by the rules above, `tidy.CLAIMS`."""
    lines = []
    for subject, table in frame.groupby(subjects(frame), sort=False):
        scores = table.pivot(index="seed", columns=["metric", "level"], values="score")
        groups = table.group.fillna(table.seed).groupby(table.seed).first()
        sets = [*pd.Series(range(len(scores))).groupby(groups.to_numpy()).indices.values()]
        for claim, paper, statistic in statistics(table, scores):
            of_groups = lambda picks: statistic(np.concatenate([sets[i] for i in picks]))  # noqa: B023, E731
            mean, low, high = of_groups(range(len(sets))), np.nan, np.nan
            if np.isfinite(mean):
                low, high = tidy.bootstrap(len(sets), of_groups)
            lines.append((subject, claim, paper, mean, low, high, tidy.verdict(low, high, paper)))
    return pd.DataFrame(lines, columns=[*tidy.CLAIMS])


def statistics(table: pd.DataFrame, scores: pd.DataFrame) -> Iterator[tuple[str, float, Any]]:
    """Claims of a subject, the paper's numbers, and functions of the chosen key sets."""
    if "patterns" in scores:
        bits, bounds = scores["patterns"], table.groupby("level").bound.first()
        exact = bits.loc[:, bits.max() < np.log2(table.num_examples.max())]
        if exact.shape[1] > 1:
            slopes = np.polyfit(exact.columns, exact.to_numpy().T, 1)[0]
            yield "bits per coordinate", 0.5, lambda chosen: slopes[chosen].mean()
        if len(known := bounds[bounds >= 1]):
            exceeds = (bits[known.index] >= known).to_numpy()
            yield "exceeds Ramsauer's bound", 1.0, lambda chosen: exceeds[chosen].mean()
        return
    logs: Any = np.log(scores["distance"].clip(lower=1e-7))
    exponents = np.polyfit(np.log(logs.columns), logs.to_numpy().T, 1)[0]
    yield "distance grows as δ", 1.0, lambda chosen: exponents[chosen].mean()
    spectra = table.groupby("seed")[["effective_rank", "ratio"]].first()
    for claim, (x, *y) in PAIRS.items():
        if tuple(y) in scores:
            yield claim, 1.0, partial(correlation, np.stack([spectra[x], scores[tuple(y)]]))


def correlation(pairs: np.ndarray, chosen: np.ndarray) -> float:
    """Spearman's correlation of the chosen pairs; nan with fewer than three distinct values."""
    pairs = pairs[:, chosen][:, np.isfinite(pairs[:, chosen]).all(axis=0)]
    few = min(len(np.unique(each)) for each in pairs) < 3
    return np.nan if few else float(np.corrcoef(rankdata(pairs, axis=1))[0, 1])


def subjects(frame: pd.DataFrame) -> pd.Series:
    """What a row is of: keys at their β times variance, or patterns on a sphere."""
    keys = frame.task + " keys, βE = " + frame.sharpness.map("{:.3g}".format)
    return frame.model.where(frame.metric == "patterns", keys)


def drawn(frame: pd.DataFrame) -> pd.DataFrame:
    """What the panels show: medians and 95 % ranges over key sets, and the bound of capacity."""
    shifted, lines = frame.metric == "distance", frame.metric.isin(["distance", "patterns"])
    x = frame.ratio.where(~lines, frame.level)
    table = frame.assign(subject=subjects(frame), group=x.where(lines, frame.model), x=x)
    table["score"] = table.score.where(~shifted, table.constant)
    points = table.groupby(["metric", "subject", "group"], sort=False, as_index=False).agg(
        mean=("score", "median"), x=("x", "median"), formula=("bound", "median"),
        low=("score", partial(pd.Series.quantile, q=0.025)),
        high=("score", partial(pd.Series.quantile, q=0.975)),
    )  # fmt: skip
    capacities = points.metric == "patterns"
    points["formula"] = points.formula.where(capacities & (points.formula >= 0))
    return points.assign(x=points.x.where(capacities, np.log2(points.x)))


def page(folder: Path) -> report.Page:
    """The page of a run."""
    frame = tidy.read(folder)
    most, beyond = frame.num_examples.max(), frame.violations.sum()
    caption = f"N at most {most:g}, distances above `reconstruction_bound`: {beyond:g}"
    axes = {"col": "metric", "x": "x", "hue": "subject"}
    pictures = {"attractors": report.panels(caption, drawn(frame), specs=PANELS, **axes)}
    tables = [report.verdicts(claims(frame))]
    return report.Page("Attractors, basins and capacity", pictures=pictures, tables=tables)
