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

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import pandas as pd
from scipy.special import stdtrit

from experiments import report, runner
from experiments.figures import Panel
from experiments.noise_stability import theorems
from experiments.noise_stability.theorems import Budget
from experiments.settings import Run, budget_of, by_budget

REPRODUCES = "Noise stability, Figures 2, 3, 4, 9, 10: layers against their theorems"

BUDGETS = {
    "smoke": Budget(2_000, 2, 32, 3, tokens=(4,)),
    "laptop": Budget(50_000, 5, 128, 10),
    "paper": Budget(1_000_000, 20, 256, 10),
}
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
    "interval": Panel("stability between its moment bounds", "ρ", "position (0: lower, 1: upper)"),
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
    budget, parts = budget_of(config, BUDGETS), theorems.PARTS
    keys = jax.random.split(jax.random.key(config.seed), 10)

    def measure(part: Any, place: int, _: Any) -> dict[str, pd.DataFrame]:
        return {"results": pd.concat(part(keys[place], budget))}

    jobs = [runner.Job(title, partial(measure, *each)) for title, each in parts.items()]
    return runner.fill("theory", config, jobs, page, plan=budget._asdict())


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
    table = report.Table(heads, lines, "Largest distances from each formula")
    title = "Layers against the theorems of the paper"
    return report.Page(title, pictures={"theory": picture}, tables=[table])


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


def drawn(table: pd.DataFrame) -> pd.DataFrame:
    """What the panels show: `mean`, `low` and `high` of points, `formula` of lines."""
    half = stdtrit(table.num_examples.fillna(np.inf) - 1, 0.975) * table.standard_error
    ends = {"low": table.score - half, "high": table.score + half}
    points = table.assign(mean=table.score, **ends)
    bounded, width = table.task == "interval", table.high - table.low
    place = ((table.score - table.low) / width).where(width > 1e-9)
    points["mean"] = points["mean"].where(~bounded, place)
    points.loc[bounded, [*ends]] = np.nan
    lemma = table[table.task == "lemma 12"]
    lines = [
        lemma.assign(mean=np.nan, model=f"{name} bound", formula=lemma[end])
        for name, end in (("lower", "low"), ("upper", "high"))
    ]
    # Two formulas of one measurement: its points once.
    repeated = points.formula.notna() & points.duplicated(["task", "level", "mean"], keep=False)
    once = points[repeated].drop_duplicates(["task", "level"])
    points.loc[repeated, ["mean", *ends]] = np.nan
    return pd.concat([points, once.assign(model="measured", formula=np.nan), *lines])
